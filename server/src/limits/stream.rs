//! A connection with a timeout for writes: a client that does not read a pending response is disconnected, because the response
//! is in memory until then. Reads pass through [`HeadReader`], which has a timeout for heads.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep, timeout};

use super::Limit;
use super::head::HeadReader;

/// How long data of a refused client is still read. If a connection is closed with unread data, TCP resets it,
/// and the client may never see the response.
const LINGER: Duration = Duration::from_secs(1);

pub struct Patient<S> {
    stream: S,
    reader: HeadReader,
    /// Zero disables the timeout.
    patience: Duration,
    /// Runs while a write waits.
    deadline: Option<Pin<Box<Sleep>>>,
    stalled: bool,
}

impl<S> Patient<S> {
    pub fn new(stream: S, patience: Duration, reader: HeadReader) -> Self {
        Self { stream, reader, patience, deadline: None, stalled: false }
    }

    /// The limit that ended the connection.
    pub fn exceeded(&self) -> Option<Limit> {
        if self.stalled { Some(Limit::WriteTime) } else { self.reader.exceeded() }
    }

    /// Any progress restarts the timeout.
    fn limited<T>(
        &mut self,
        cx: &mut Context<'_>,
        attempt: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>>
    where
        S: Unpin,
    {
        if let Poll::Ready(done) = attempt(Pin::new(&mut self.stream), cx) {
            self.deadline = None;
            return Poll::Ready(done);
        }
        if self.patience.is_zero() {
            return Poll::Pending;
        }
        let patience = self.patience;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(deadline.as_mut().poll(cx));
        self.stalled = true;
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads nothing")))
    }
}

impl<S: AsyncRead + Unpin> Patient<S> {
    pub async fn linger(&mut self) {
        // A client that keeps sending has had its response.
        _ = timeout(LINGER, discard(&mut self.stream)).await;
    }
}

/// Reads until the client closes.
pub async fn discard(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    let mut waste = [0; 4096];
    while stream.read(&mut waste).await? > 0 {}
    Ok(())
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, reader, .. } = self.get_mut();
        reader.poll_read(stream, cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.limited(cx, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.limited(cx, |stream, cx| stream.poll_write_vectored(cx, bytes))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.limited(cx, AsyncWrite::poll_flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.limited(cx, AsyncWrite::poll_shutdown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::budget::Budget;
    use crate::limits::head::Head;
    use tokio::io::{AsyncWriteExt, duplex};

    const PATIENCE: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn a_reader_that_stops_is_given_up_and_a_slow_one_is_not() {
        let (server, mut client) = duplex(10);
        let reader = HeadReader::new(Head::new(&Budget::heads(0)), Duration::ZERO);
        let mut server = Patient::new(server, PATIENCE, reader);
        let slow = async {
            let mut byte = [0];
            for _ in 0..30 {
                sleep(PATIENCE / 20).await;
                client.read_exact(&mut byte).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(server.write_all(&[0; 40]), slow);
        written.unwrap();
        assert_eq!(server.exceeded(), None);
        let error = server.write_all(b"x").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(server.exceeded(), Some(Limit::WriteTime));
    }
}
