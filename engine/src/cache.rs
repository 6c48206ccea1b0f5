//! A bounded map in two generations: an entry moves to the young one when it is used, and the old one is dropped as a
//! whole when the young one has filled half the budget. Close to least-recently-used, without a list to maintain.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::mem;

/// # Invariants
/// - The weights of all entries add up to at most the budget, except for one oversized entry.
/// - An entry used since the last turn of generations survives the next.
pub struct Cache<K, V> {
    young: HashMap<K, (V, usize)>,
    old: HashMap<K, (V, usize)>,
    young_weight: usize,
    old_weight: usize,
    budget: usize,
}

impl<K: Hash + Eq, V> Cache<K, V> {
    pub fn new(budget: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), young_weight: 0, old_weight: 0, budget }
    }

    pub fn get<Q>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if let Some((key, (value, weight))) = self.old.remove_entry(key) {
            self.old_weight -= weight;
            self.insert(key, value, weight);
        }
        self.young.get_mut(key).map(|(value, _)| value)
    }

    pub fn insert(&mut self, key: K, value: V, weight: usize) {
        self.remove(&key);
        if self.young_weight + weight > self.budget / 2 && !self.young.is_empty() {
            self.old = mem::take(&mut self.young);
            self.old_weight = mem::take(&mut self.young_weight);
        }
        self.young_weight += weight;
        self.young.insert(key, (value, weight));
    }

    /// Updates the weight of an entry that has grown or shrunk.
    pub fn reweigh<Q>(&mut self, key: &Q, weight: usize)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if let Some((key, (value, before))) = self.young.remove_entry(key) {
            self.young_weight -= before;
            self.insert(key, value, weight);
        }
    }

    pub fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if let Some((value, weight)) = self.young.remove(key) {
            self.young_weight -= weight;
            return Some(value);
        }
        let (value, weight) = self.old.remove(key)?;
        self.old_weight -= weight;
        Some(value)
    }

    pub fn clear(&mut self) {
        *self = Self::new(self.budget);
    }

    pub fn retain(&mut self, mut keep: impl FnMut(&K, &V) -> bool) {
        for (map, total) in [(&mut self.young, &mut self.young_weight), (&mut self.old, &mut self.old_weight)]
        {
            map.retain(|key, (value, weight)| {
                let kept = keep(key, value);
                *total -= if kept { 0 } else { *weight };
                kept
            });
        }
    }

    pub fn weight(&self) -> usize {
        self.young_weight + self.old_weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_used_stays_and_what_is_not_goes() {
        let mut cache = Cache::new(8);
        cache.insert(0, "kept", 1);
        for key in 1..100 {
            cache.insert(key, "passing", 1);
            assert!(cache.get(&0).is_some());
        }
        assert!(cache.get(&1).is_none());
    }

    proptest! {
        #[test]
        fn the_budget_holds_whatever_happens(steps in prop::collection::vec((0u8..3, 0u8..20, 1usize..5), 0..300)) {
            let mut cache = Cache::new(20);
            for (action, key, weight) in steps {
                match action {
                    0 => cache.insert(key, (), weight),
                    1 => { cache.get(&key); }
                    _ => { cache.remove(&key); }
                }
                prop_assert!(cache.weight() <= 20 + 4);
                let sum: usize = cache.young.values().chain(cache.old.values()).map(|(_, weight)| weight).sum();
                prop_assert_eq!(sum, cache.weight());
            }
        }
    }
}
