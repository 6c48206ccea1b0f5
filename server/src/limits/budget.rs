//! Memory budgets: for all request bodies together, and for all unfinished heads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;

/// Smaller bodies are not counted; the number of connections bounds them.
const COUNTED_FROM: usize = 64 << 10;

#[derive(Debug)]
pub struct Budget {
    /// 0: no limit.
    limit: usize,
    counted_from: usize,
    taken: AtomicUsize,
}

/// The share of one body or head, until it is dropped. It grows with the data that arrives, not with the announced length, and
/// never waits for more, so that two bodies cannot wait for each other.
pub struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, counted_from: COUNTED_FROM, taken: AtomicUsize::new(0) })
    }

    /// For heads, which are counted from the first byte, because a connection with one costs a client almost nothing.
    pub fn heads(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, counted_from: 0, taken: AtomicUsize::new(0) })
    }

    pub fn share(self: &Arc<Self>) -> Share {
        Share { budget: self.clone(), bytes: 0 }
    }
}

impl Share {
    /// `false` if there is not enough left.
    #[must_use]
    pub fn grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        if bytes < self.budget.counted_from || more == 0 {
            return true;
        }
        let limit = self.budget.limit;
        let fits = |taken: usize| (limit == 0 || taken + more <= limit).then_some(taken + more);
        let grown = self.budget.taken.fetch_update(Relaxed, Relaxed, fits).is_ok();
        if grown {
            self.bytes = bytes;
        }
        grown
    }

    /// Returns the share.
    pub fn clear(&mut self) {
        self.budget.taken.fetch_sub(self.bytes, Relaxed);
        self.bytes = 0;
    }

    /// The body, which returns its share when its last part is dropped.
    pub fn keep(self, body: Bytes) -> Bytes {
        match self.bytes {
            0 => body,
            _ => Bytes::from_owner(Kept { body, _share: self }),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.clear();
    }
}

struct Kept {
    body: Bytes,
    _share: Share,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_comes_back_with_the_last_part_of_the_body() {
        let budget = Budget::new(300_000);
        let (mut first, mut second) = (budget.share(), budget.share());
        assert!(first.grow_to(100_000) && first.grow_to(200_000) && second.grow_to(100_000));
        assert!(!second.grow_to(100_001), "all is taken");
        assert!(second.grow_to(COUNTED_FROM - 1), "small ones are not counted");
        let body = first.keep(Bytes::from(vec![7; 200_000]));
        let part = body.slice(5..10);
        drop(body);
        assert!(!second.grow_to(200_000));
        assert_eq!(part.as_ref(), [7; 5]);
        drop(part);
        assert!(second.grow_to(300_000));
        drop(second);
        assert_eq!(budget.taken.load(Relaxed), 0);
    }

    #[test]
    fn without_a_limit_everything_fits() {
        let mut share = Budget::new(0).share();
        assert!(share.grow_to(usize::MAX / 2));
    }
}
