//! Tracks which incarnation of the server answers. An incarnation lasts from a start or failover of PostgreSQL to the
//! next. An earlier one may have committed what a later one has lost, so nothing that it answered may be kept.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The incarnations that a set of connections has met. Clones share it.
#[derive(Clone, Default)]
pub struct Incarnations(Arc<Inner>);

#[derive(Default)]
struct Inner {
    met: Mutex<Met>,
    /// How many have ended. Outside the lock, because a caller holds the lock of a cache, and emptying caches holds
    /// this one.
    ended: AtomicU64,
}

#[derive(Default)]
struct Met {
    current: Option<String>,
    on_new: Option<Box<dyn Fn() + Send + Sync>>,
}

/// The incarnation of one connection's server.
pub struct Incarnation {
    name: String,
    number: u64,
    all: Incarnations,
}

impl Incarnations {
    /// `forget` is called before any connection to a new incarnation is handed out.
    pub fn on_new(&self, forget: impl Fn() + Send + Sync + 'static) {
        self.lock().on_new = Some(Box::new(forget));
    }

    /// A connection was opened; `name` identifies the incarnation of its server.
    pub fn met(&self, name: String) -> Incarnation {
        let mut met = self.lock();
        let before = met.current.replace(name.clone());
        if before.is_some_and(|before| before != name) {
            self.0.ended.fetch_add(1, Release);
            if let Some(forget) = &met.on_new {
                forget();
            }
        }
        Incarnation { name, number: self.ended(), all: self.clone() }
    }

    /// How many have ended.
    pub fn ended(&self) -> u64 {
        self.0.ended.load(Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, Met> {
        self.0.met.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Incarnation {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether this is the incarnation that was met last.
    pub fn is_current(&self) -> bool {
        self.number == self.all.ended()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn a_new_incarnation_makes_earlier_connections_stale_and_empties_caches_first() {
        let (all, forgotten) = (Incarnations::default(), Arc::new(AtomicUsize::new(0)));
        let (counter, asked) = (forgotten.clone(), all.clone());
        // Asks from within the notification, as caches do.
        all.on_new(move || _ = counter.fetch_add(asked.ended() as usize, Release));
        let first = all.met("a".to_owned());
        let same = all.met("a".to_owned());
        assert!(first.is_current() && same.is_current() && all.ended() == 0);
        let second = all.met("b".to_owned());
        assert!(!first.is_current() && second.is_current());
        assert_eq!((all.ended(), forgotten.load(Acquire)), (1, 1));
        // The old primary again, before it knows that it has been replaced.
        let back = all.met("a".to_owned());
        assert!(back.is_current() && !first.is_current() && !second.is_current());
        assert_eq!((back.name(), all.ended(), forgotten.load(Acquire)), ("a", 2, 3));
    }
}
