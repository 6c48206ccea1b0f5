//! Whoever reads our standard output, and whether he is still there.

use std::future::pending;
use std::io;
use std::os::fd::AsFd;

use tokio::io::Interest;
use tokio::net::unix::pipe;

/// Looks only. Nothing is written here, and how others write stays as it is.
#[derive(Debug)]
pub struct Reader(Option<pipe::Sender>);

impl Reader {
    pub fn of_stdout() -> Self {
        Self::of(io::stdout())
    }

    /// What cannot be watched is a file, and nobody leaves a file.
    fn of(output: impl AsFd) -> Self {
        let copy = output.as_fd().try_clone_to_owned();
        Self(copy.and_then(pipe::Sender::from_owned_fd_unchecked).ok())
    }

    /// Returns once he has left, and from then on at once.
    ///
    /// # Cancel safety
    /// Nothing is missed.
    pub async fn left(&self) {
        if let Some(pipe) = &self.0 {
            // An error is what a pipe has that nobody reads, and a terminal that is gone.
            while let Ok(ready) = pipe.ready(Interest::ERROR).await {
                if ready.is_error() {
                    return;
                }
            }
        }
        pending().await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_reader_is_missed_once_he_has_left_and_not_before() {
        let (end, output) = io::pipe().unwrap();
        let reader = Reader::of(output);
        assert!(reader.left().now_or_never().is_none());
        drop(end);
        timeout(Duration::from_secs(20), reader.left()).await.expect("he has left");
        assert!(reader.left().now_or_never().is_some());
    }

    #[tokio::test]
    async fn nobody_leaves_a_file() {
        let reader = Reader::of(tempfile::tempfile().unwrap());
        assert!(reader.0.is_none());
    }
}
