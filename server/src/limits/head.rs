//! The timeout for the head of a request, from its first byte, and the memory for all unfinished heads. A connection between
//! requests has no such timeout.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::Limit;
use super::budget::{Budget, Share};
use super::framing::{Lines, Rest};

/// Size of one read of an incomplete head. It is small, so that the buffer does not grow for bytes that may never arrive.
const PIECE_BYTES: u64 = 4 << 10;

/// The current head of a connection. Its stream sees bytes and its service sees requests; they share this.
#[derive(Clone)]
pub struct Head(Arc<Mutex<Progress>>);

struct Progress {
    at: Part,
    /// A request is complete, and its response is not.
    serving: bool,
    /// Bytes of heads that the service has not seen.
    arrived: usize,
    /// Their share of the budget.
    share: Share,
    /// Bytes after a head that the service has not seen, so the length of its body is not known.
    ahead: BytesMut,
    /// Runs while a head is incomplete and no more of it has arrived.
    deadline: Option<Pin<Box<Sleep>>>,
}

/// What the next byte belongs to.
enum Part {
    Head(Lines),
    Behind,
    Body(Rest),
}

impl Head {
    pub fn new(budget: &Arc<Budget>) -> Self {
        Self(Arc::new(Mutex::new(Progress {
            at: Part::Head(Lines::of_head()),
            serving: false,
            arrived: 0,
            share: budget.share(),
            ahead: BytesMut::new(),
            deadline: None,
        })))
    }

    /// The head is complete. `body` is the length of its body, `None` if it is chunked.
    pub fn complete(&self, body: Option<u64>) {
        let mut progress = self.progress();
        (progress.at, progress.serving) = (Part::Body(Rest::of(body)), true);
        (progress.arrived, progress.deadline) = (0, None);
        progress.share.clear();
        let mut ahead = std::mem::take(&mut progress.ahead);
        ahead.advance(progress.pass(&ahead));
        progress.keep(ahead);
    }

    /// The response is sent. A part of the next head may have arrived.
    fn next(&self) {
        self.progress().serving = false;
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress {
    fn is_arriving(&self) -> bool {
        !self.serving && self.arrived > 0
    }

    fn take(&mut self, bytes: &[u8]) {
        let passed = self.pass(bytes);
        if passed < bytes.len() {
            let mut ahead = std::mem::take(&mut self.ahead);
            self.arrived -= ahead.len();
            ahead.extend_from_slice(&bytes[passed..]);
            self.keep(ahead);
        }
    }

    /// Consumes bytes as long as it is known what they belong to. Returns how many.
    fn pass(&mut self, bytes: &[u8]) -> usize {
        let mut passed = 0;
        while passed < bytes.len() {
            let rest = &bytes[passed..];
            let (end, next) = match &mut self.at {
                Part::Head(lines) => {
                    let end = lines.end(rest);
                    self.arrived += end.unwrap_or(rest.len());
                    (end, Part::Behind)
                }
                Part::Body(body) => (body.end(rest), Part::Head(Lines::of_head())),
                Part::Behind => break,
            };
            let Some(end) = end else { return bytes.len() };
            self.at = next;
            passed += end;
        }
        passed
    }

    fn keep(&mut self, ahead: BytesMut) {
        self.arrived += ahead.len();
        if !ahead.is_empty() {
            self.ahead = ahead;
        }
    }
}

/// A reader that tracks a [`Head`].
pub struct HeadReader {
    head: Head,
    /// Zero disables the timeout.
    patience: Duration,
    exceeded: Option<Limit>,
}

impl HeadReader {
    pub fn new(head: Head, patience: Duration) -> Self {
        Self { head, patience, exceeded: None }
    }

    /// Why reading has failed.
    pub fn exceeded(&self) -> Option<Limit> {
        self.exceeded
    }

    pub fn poll_read<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let arriving = self.head.progress().is_arriving();
        let done = match arriving {
            true => ready!(self.poll_rest(stream, cx, buffer)),
            false => ready!(Pin::new(stream).poll_read(cx, buffer)),
        };
        self.head.progress().take(&buffer.filled()[before..]);
        Poll::Ready(done)
    }

    /// Starts the timeout of a head that is incomplete, as its reader asks for more.
    fn poll_rest<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let fits = {
            let progress = &mut *self.head.progress();
            progress.share.grow_to(progress.arrived)
        };
        if !fits {
            return self.fail(Limit::Heads, "unfinished heads take too much memory");
        }
        if let Poll::Ready(done) = Pin::new(&mut stream.take(PIECE_BYTES)).poll_read(cx, buffer) {
            return Poll::Ready(done);
        }
        if self.patience.is_zero() {
            return Poll::Pending;
        }
        {
            let mut progress = self.head.progress();
            let deadline = progress.deadline.get_or_insert_with(|| Box::pin(sleep(self.patience)));
            ready!(deadline.as_mut().poll(cx));
        }
        self.fail(Limit::HeaderTime, "the head of a request is not complete in time")
    }

    fn fail(&mut self, limit: Limit, why: &'static str) -> Poll<io::Result<()>> {
        self.exceeded = Some(limit);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
    }
}

/// A response body. When it ends, the next head may begin.
pub struct Answer<B> {
    body: B,
    head: Head,
}

impl<B> Answer<B> {
    pub fn new(body: B, head: Head) -> Self {
        Self { body, head }
    }
}

impl<B> Drop for Answer<B> {
    fn drop(&mut self) {
        self.head.next();
    }
}

impl<B: Body + Unpin> Body for Answer<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::stream::Patient;
    use futures_util::FutureExt;
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::timeout;

    const PATIENCE: Duration = Duration::from_millis(100);
    const LONG: Duration = Duration::from_millis(300);

    fn connection(budget: &Arc<Budget>) -> (Patient<DuplexStream>, Head, DuplexStream) {
        let (server, client) = duplex(1 << 20);
        let head = Head::new(budget);
        (Patient::new(server, LONG, HeadReader::new(head.clone(), PATIENCE)), head, client)
    }

    async fn read(stream: &mut Patient<DuplexStream>) -> io::Result<usize> {
        let mut buffer = vec![0; 100_000];
        stream.read(&mut buffer).await
    }

    fn answered(head: &Head) {
        drop(Answer::new((), head.clone()));
    }

    #[tokio::test]
    async fn only_a_head_that_has_begun_has_to_be_complete_in_time() {
        let (mut server, head, mut client) = connection(&Budget::heads(0));
        for _ in 0..3 {
            assert!(timeout(LONG, read(&mut server)).await.is_err(), "an idle connection is left alone");
            client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
            read(&mut server).await.unwrap();
            head.complete(Some(0));
            assert!(timeout(LONG, read(&mut server)).await.is_err(), "its handler takes its time");
            answered(&head);
        }
        client.write_all(b"GET").await.unwrap();
        read(&mut server).await.unwrap();
        let dripping = async {
            loop {
                sleep(PATIENCE / 4).await;
                client.write_all(b"x").await.unwrap();
            }
        };
        let cut_off = async { while read(&mut server).await.is_ok() {} };
        tokio::select! { () = dripping => {}, () = cut_off => {} }
        assert_eq!(server.exceeded(), Some(Limit::HeaderTime));
    }

    #[tokio::test]
    async fn what_comes_behind_a_body_belongs_to_the_next_head() {
        for (body, sent, is_next) in [
            (Some(4), &b"body"[..], false),
            (Some(4), b"bodyGET /", true),
            (None, b"4\r\nbody\r\n0\r\n\r\n", false),
            (None, b"4\r\nbody\r\n0\r\n\r\nGET /", true),
        ] {
            let (mut server, head, mut client) = connection(&Budget::heads(0));
            client.write_all(b"POST / HTTP/1.1\r\n\r\n").await.unwrap();
            read(&mut server).await.unwrap();
            head.complete(body);
            client.write_all(sent).await.unwrap();
            read(&mut server).await.unwrap();
            answered(&head);
            let ended = timeout(LONG, read(&mut server)).await;
            assert_eq!(ended.is_ok_and(|read| read.is_err()), is_next, "{}", String::from_utf8_lossy(sent));
        }
    }

    #[tokio::test]
    async fn a_head_that_begins_in_the_read_of_another_request_has_to_be_complete_in_time() {
        const CHUNKED: &str = "POST / HTTP/1.1\r\n\r\n6;x=1\r\n\r\n\r\nab\r\n0\r\nT: v\r\n\r\n";
        for (request, body) in [
            ("\r\nGET / HTTP/1.1\r\n\r\n", Some(0)),
            ("GET / HTTP/1.1\n\n", Some(0)),
            ("POST / HTTP/1.1\r\n\r\nbo\r\n\r\ndy", Some(8)),
            (CHUNKED, None),
        ] {
            for (requests, rest) in [(1, ""), (1, "GET /"), (3, ""), (3, "GET / HTTP/1.1\r\nHost: a\r\n")] {
                let (mut server, head, mut client) = connection(&Budget::heads(0));
                let sent = request.repeat(requests) + rest;
                client.write_all(sent.as_bytes()).await.unwrap();
                read(&mut server).await.unwrap();
                for _ in 0..requests {
                    head.complete(body);
                    assert!(read(&mut server).now_or_never().is_none());
                    sleep(PATIENCE + PATIENCE / 2).await;
                    answered(&head);
                }
                assert!(read(&mut server).now_or_never().is_none(), "it has its whole time: {sent:?}");
                let ended = timeout(LONG, read(&mut server)).await;
                assert_eq!(ended.is_ok_and(|read| read.is_err()), !rest.is_empty(), "{sent:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_head_that_begins_in_the_read_of_another_request_counts() {
        let (mut server, head, mut client) = connection(&Budget::heads(1_000));
        let sent = format!("GET / HTTP/1.1\r\n\r\nGET /{}", "x".repeat(1_000));
        client.write_all(sent.as_bytes()).await.unwrap();
        read(&mut server).await.unwrap();
        head.complete(Some(0));
        answered(&head);
        assert!(timeout(LONG, read(&mut server)).await.unwrap().is_err());
        assert_eq!(server.exceeded(), Some(Limit::Heads));
    }

    #[tokio::test]
    async fn all_unfinished_heads_share_one_budget() {
        let budget = Budget::heads(10_000);
        let (mut first, first_head, mut one) = connection(&budget);
        let (mut second, _, mut two) = connection(&budget);
        one.write_all(&[b'x'; 9_000]).await.unwrap();
        two.write_all(&[b'x'; 2_000]).await.unwrap();
        assert_eq!((read(&mut first).await.unwrap(), read(&mut second).await.unwrap()), (9_000, 2_000));
        assert!(read(&mut first).now_or_never().is_none());
        assert!(read(&mut second).await.is_err(), "nothing is left for it");
        assert_eq!(second.exceeded(), Some(Limit::Heads));
        first_head.complete(Some(0));
        let (mut third, _, mut three) = connection(&budget);
        three.write_all(&[b'x'; 9_000]).await.unwrap();
        read(&mut third).await.unwrap();
        three.write_all(&[b'x'; 9_000]).await.unwrap();
        assert_eq!(read(&mut third).await.unwrap(), PIECE_BYTES as usize, "a small piece at a time");
    }
}
