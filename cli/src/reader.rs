//! Notices when the reader of standard output has left.

use std::future::pending;
use std::io;
use std::os::fd::AsFd;

use tokio::io::Interest;
use tokio::net::unix::pipe;

/// Only watches. Nothing is written here, and the mode of standard output stays as it is.
#[derive(Debug)]
pub struct Reader(Option<pipe::Sender>);

impl Reader {
    pub fn of_stdout() -> Self {
        Self::of(io::stdout())
    }

    // Only pipes and terminals can be watched; a file has no reader.
    fn of(output: impl AsFd) -> Self {
        let copy = output.as_fd().try_clone_to_owned();
        Self(copy.and_then(pipe::Sender::from_owned_fd_unchecked).ok())
    }

    /// Returns once the reader has left.
    ///
    /// # Cancel safety
    /// No state is lost.
    pub async fn left(&self) {
        if let Some(pipe) = &self.0 {
            // A pipe without a reader reports an error, and so does a closed terminal.
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
        timeout(Duration::from_secs(20), reader.left()).await.expect("the reader has left");
        assert!(reader.left().now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_file_has_no_reader_that_leaves() {
        let reader = Reader::of(tempfile::tempfile().unwrap());
        assert!(reader.0.is_none());
    }
}
