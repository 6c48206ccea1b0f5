//! Counts things by client, and forgets clients that have none.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// # Invariants
/// - There is an entry for each client that holds a place, and for no other.
pub struct Counted<K: Hash + Eq> {
    /// 0 is no limit; then nothing is counted.
    limit: usize,
    held: Mutex<HashMap<K, usize>>,
}

/// A place, until it is dropped.
pub struct Place<K: Hash + Eq>(Option<(Arc<Counted<K>>, K)>);

impl<K: Hash + Eq + Clone> Counted<K> {
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, held: Mutex::default() })
    }

    /// `None` if the client has reached the limit.
    pub fn enter(self: &Arc<Self>, key: K) -> Option<Place<K>> {
        if self.limit == 0 {
            return Some(Place(None));
        }
        let mut held = self.lock();
        let count = held.entry(key.clone()).or_default();
        if *count >= self.limit {
            return None;
        }
        *count += 1;
        drop(held);
        Some(Place(Some((self.clone(), key))))
    }
}

impl<K: Hash + Eq> Counted<K> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, usize>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq> Drop for Place<K> {
    fn drop(&mut self) {
        let Some((counted, key)) = &self.0 else { return };
        let mut held = counted.lock();
        if let Some(count) = held.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                held.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_has_his_own_and_who_has_none_is_forgotten() {
        let counted = Counted::new(2);
        let first = counted.enter("a").unwrap();
        let second = counted.enter("a").unwrap();
        assert!(counted.enter("a").is_none());
        let other = counted.enter("b").unwrap();
        drop(first);
        let third = counted.enter("a").unwrap();
        assert!(counted.enter("a").is_none());
        drop((second, third, other));
        assert!(counted.lock().is_empty());
    }

    #[test]
    fn without_a_limit_nothing_is_counted() {
        let counted = Counted::new(0);
        let places: Vec<_> = (0..100).filter_map(|_| counted.enter("a")).collect();
        assert_eq!(places.len(), 100);
        assert!(counted.lock().is_empty());
    }
}
