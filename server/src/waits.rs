//! Pops whose wait can be ended from outside: a pop with a `waitId`, and the request that ends it. They come on different
//! connections, so the end may arrive first. It knows neither routes nor the engine.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Ends per owner whose pops have not arrived yet: enough for many consumers that stop at the same moment.
const EARLY_MAX: usize = 256;
/// Owners with such ends, 4 MB in all.
const EARLY_OWNERS_MAX: usize = 1_000;

/// The owner of a wait; `None` without access control. Waits of other owners count as unknown.
type Owner = Option<Arc<str>>;
type Key = (Owner, Uuid);

#[derive(Default)]
pub struct Waits(Mutex<Known>);

/// # Invariants
/// - `held` has an entry for every `Wait` that is held, and for nothing else, so never more than pops in progress.
/// - `early` has at most `EARLY_OWNERS_MAX` owners with 1 to `EARLY_MAX` ends each, the newest last.
#[derive(Default)]
struct Known {
    held: HashMap<Key, CancellationToken>,
    early: HashMap<Owner, VecDeque<Uuid>>,
}

/// A registered wait, until it is dropped.
pub struct Wait {
    waits: Arc<Waits>,
    key: Key,
    pub ended: CancellationToken,
}

impl Waits {
    /// `None` if another pop with this id is in progress. A wait that was ended before it began ends at once.
    /// `revoked` ends it as well.
    pub fn begin(
        self: &Arc<Self>,
        owner: Owner,
        id: Uuid,
        revoked: Option<&CancellationToken>,
    ) -> Option<Wait> {
        let key = (owner, id);
        let mut known = self.lock();
        if known.held.contains_key(&key) {
            return None;
        }
        let ended = revoked.map_or_else(CancellationToken::new, CancellationToken::child_token);
        if known.forget(&key) {
            ended.cancel();
        }
        known.held.insert(key.clone(), ended.clone());
        drop(known);
        Some(Wait { waits: self.clone(), key, ended })
    }

    /// Whether there is such a wait. If not, its pop may still arrive.
    pub fn end(&self, owner: Owner, id: Uuid) -> bool {
        let key = (owner, id);
        let mut known = self.lock();
        if let Some(ended) = known.held.get(&key) {
            ended.cancel();
            return true;
        }
        known.remember(key);
        false
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn remember(&mut self, (owner, id): Key) {
        if self.early.len() == EARLY_OWNERS_MAX && !self.early.contains_key(&owner) {
            let most = self.early.iter().max_by_key(|(_, ids)| ids.len()).map(|(owner, _)| owner.clone());
            most.and_then(|most| self.early.remove(&most));
        }
        let ids = self.early.entry(owner).or_default();
        if ids.len() == EARLY_MAX {
            ids.pop_front();
        }
        ids.push_back(id);
    }

    /// Whether there was such an end.
    fn forget(&mut self, (owner, id): &Key) -> bool {
        let Some(ids) = self.early.get_mut(owner) else { return false };
        let Some(at) = ids.iter().position(|early| early == id) else { return false };
        ids.remove(at);
        if ids.is_empty() {
            self.early.remove(owner);
        }
        true
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.waits.lock().held.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_ended_by_whom_it_belongs_to_and_forgotten_with_its_request() {
        let waits = Arc::<Waits>::default();
        let (me, another) = (|| Some("me".into()), || Some("another".into()));
        let id = Uuid::from_u128(7);
        let (mine, theirs) =
            (waits.begin(me(), id, None).unwrap(), waits.begin(another(), id, None).unwrap());
        assert!(waits.begin(me(), id, None).is_none(), "an id is one pop's at a time");
        assert!(!waits.end(None, id) && !waits.end(me(), Uuid::from_u128(8)));
        assert!(!mine.ended.is_cancelled());
        assert!(waits.end(me(), id));
        assert!(mine.ended.is_cancelled() && !theirs.ended.is_cancelled());
        drop((mine, theirs));
        assert!(waits.lock().held.is_empty());
        assert!(!waits.begin(me(), id, None).unwrap().ended.is_cancelled(), "its end was for the one before");
    }

    #[test]
    fn an_end_that_comes_first_waits_for_its_pop_and_the_oldest_ones_are_forgotten() {
        let waits = Arc::<Waits>::default();
        let id = |number| Uuid::from_u128(number);
        assert!(!waits.end(None, id(1)));
        let ended = |number| waits.begin(None, id(number), None).unwrap().ended.is_cancelled();
        assert!(ended(1) && !ended(1), "once");
        for number in 0..=EARLY_MAX as u128 {
            assert!(!waits.end(None, id(number)));
        }
        assert!(!ended(0) && ended(1) && ended(EARLY_MAX as u128));
    }

    #[test]
    fn ends_that_come_first_push_out_nobody_elses() {
        let waits = Arc::<Waits>::default();
        let (id, another) = (Uuid::from_u128(7), || Some("another".into()));
        assert!(!waits.end(None, id));
        for number in 0..=EARLY_MAX as u128 {
            assert!(!waits.end(another(), Uuid::from_u128(number)));
        }
        assert!(waits.begin(None, id, None).unwrap().ended.is_cancelled());
        for number in 0..2 * EARLY_OWNERS_MAX {
            assert!(!waits.end(Some(number.to_string().into()), id));
        }
        assert_eq!(waits.lock().early.len(), EARLY_OWNERS_MAX);
    }

    #[test]
    fn a_wait_ends_with_the_key_of_its_pop() {
        let (waits, revoked) = (Arc::<Waits>::default(), CancellationToken::new());
        let id = Uuid::from_u128(7);
        let wait = waits.begin(None, id, Some(&revoked)).unwrap();
        assert!(waits.end(None, id) && !revoked.is_cancelled(), "its end is not that of the key");
        drop(wait);
        let wait = waits.begin(None, id, Some(&revoked)).unwrap();
        revoked.cancel();
        assert!(wait.ended.is_cancelled());
    }
}
