//! Token buckets by name. A bucket is stored as the time at which it will be full again; full buckets are dropped, so only clients
//! of the last seconds are stored.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The burst: how much may be taken at once, as the time in which it refills.
const BURST: Duration = Duration::from_secs(2);
/// Names chosen by clients have up to a kilobyte: 50 MB in the worst case.
const BUCKETS_MAX: usize = 50_000;
/// A pass over all buckets takes about a millisecond.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

pub struct Buckets<K>(Mutex<State<K>>);

struct State<K> {
    full_at: HashMap<K, Instant>,
    /// Shared by all names for which there is no room: a flood of made-up names shares one rate, and other clients keep theirs.
    others: Option<Instant>,
    swept: Option<Instant>,
}

/// The bucket that is empty, and how long until it is not.
#[derive(Debug, PartialEq, Eq)]
pub struct Short<'a, Q: ?Sized> {
    pub key: &'a Q,
    pub wait: Duration,
}

impl<K: Hash + Eq> Buckets<K> {
    pub fn new() -> Self {
        Self(Mutex::new(State { full_at: HashMap::new(), others: None, swept: None }))
    }

    /// Takes from all buckets or from none. A cost is the time in which that many tokens refill. Each key is given once.
    pub fn take<'a, Q>(&self, now: Instant, asks: &[(&'a Q, Duration)]) -> Result<(), Short<'a, Q>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.make_room(now);
        for (key, cost) in asks {
            let full_at = state.full_at.get(*key).copied();
            let known = full_at.or_else(|| state.others.filter(|_| state.full_at.len() >= BUCKETS_MAX));
            if let Err(wait) = room(known.unwrap_or(now), now, *cost) {
                return Err(Short { key, wait });
            }
        }
        for (key, cost) in asks {
            if let Some(full_at) = state.full_at.get_mut(*key) {
                *full_at = now.max(*full_at) + *cost;
                continue;
            }
            if state.full_at.len() < BUCKETS_MAX {
                state.full_at.insert((*key).to_owned(), now + *cost);
            } else {
                state.others = Some(now.max(state.others.unwrap_or(now)) + *cost);
            }
        }
        Ok(())
    }
}

impl<K: Hash + Eq> State<K> {
    fn make_room(&mut self, now: Instant) {
        let early = self.swept.is_some_and(|swept| now < swept + SWEEP_EVERY);
        if self.full_at.len() < BUCKETS_MAX || early {
            return;
        }
        self.swept = Some(now);
        self.full_at.retain(|_, full_at| *full_at > now);
    }
}

/// Whether a bucket has that much, or how long until it does. A cost above the size of a bucket is taken from a full one,
/// which then takes longer to refill. Otherwise it could never be taken.
fn room(full_at: Instant, now: Instant, cost: Duration) -> Result<(), Duration> {
    let missing = full_at.saturating_duration_since(now);
    let allowed = BURST.saturating_sub(cost);
    if missing <= allowed { Ok(()) } else { Err(missing - allowed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EACH: Duration = Duration::from_millis(100);

    fn taken(buckets: &Buckets<String>, now: Instant, key: &str, count: usize) -> usize {
        (0..count).filter(|_| buckets.take(now, &[(key, EACH)]).is_ok()).count()
    }

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let (buckets, start) = (Buckets::new(), Instant::now());
        assert_eq!(taken(&buckets, start, "a", 100), 20);
        assert_eq!(taken(&buckets, start, "b", 100), 20, "everybody has one of his own");
        let short = buckets.take(start, &[("a", EACH)]).unwrap_err();
        assert_eq!((short.key, short.wait), ("a", EACH));
        assert_eq!(taken(&buckets, start + Duration::from_millis(350), "a", 100), 3);
        assert_eq!(
            taken(&buckets, start + Duration::from_secs(60), "a", 100),
            20,
            "it does not fill for ever"
        );
    }

    #[test]
    fn all_are_taken_from_or_none() {
        let (buckets, now) = (Buckets::<String>::new(), Instant::now());
        assert_eq!(taken(&buckets, now, "poor", 20), 20);
        assert_eq!(buckets.take(now, &[("rich", EACH * 5), ("poor", EACH)]).unwrap_err().key, "poor");
        assert_eq!(taken(&buckets, now, "rich", 100), 20);
    }

    #[test]
    fn more_than_a_bucket_holds_is_given_by_a_full_one_and_paid_off() {
        let (buckets, now) = (Buckets::<String>::new(), Instant::now());
        let large = Duration::from_secs(10);
        assert!(buckets.take(now, &[("q", large)]).is_ok());
        assert_eq!(buckets.take(now, &[("q", EACH)]).unwrap_err().wait, large + EACH - BURST);
        assert_eq!(buckets.take(now, &[("q", large)]).unwrap_err().wait, large);
        assert!(buckets.take(now + large, &[("q", large)]).is_ok());
    }

    #[test]
    fn a_flood_of_names_takes_bounded_memory_and_nobody_elses_tokens() {
        let (buckets, start) = (Buckets::new(), Instant::now());
        assert_eq!(taken(&buckets, start, "old friend", 10), 10);
        let passed: usize =
            (0..BUCKETS_MAX + 1_000).map(|n| taken(&buckets, start, &format!("n{n}"), 1)).sum();
        assert_eq!(passed, BUCKETS_MAX - 1 + 20, "those beyond share one bucket");
        assert_eq!(taken(&buckets, start, "old friend", 100), 10);
        assert_eq!(buckets.0.lock().unwrap().full_at.len(), BUCKETS_MAX);
        let later = start + Duration::from_secs(3);
        assert_eq!(taken(&buckets, later, "newcomer", 100), 20);
        assert!(buckets.0.lock().unwrap().full_at.len() < 10, "who is quiet is forgotten");
    }
}
