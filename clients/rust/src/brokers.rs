//! Chooses the broker for a request, by availability and affinity. Pure: the time is an argument.

use std::time::Duration;

use tokio::time::Instant;

/// How long an unreachable broker is avoided at first; doubles each time.
const DOWN_FIRST: Duration = Duration::from_secs(1);
const DOWN_MAX: Duration = Duration::from_secs(30);

/// What determines the broker of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Any broker: the first available one.
    First,
    /// Affinity to a [`key`]: always the same broker while it is available.
    Key(u32),
    /// The broker that made a delivery.
    At(usize),
}

impl Route {
    pub fn lane(queue: &str, partition: &str) -> Self {
        Self::Key(key(&[queue, partition]))
    }
}

/// # Invariants
/// - With the same brokers available, the same key always gives the same broker.
/// - When a broker becomes unavailable, only its own keys move.
#[derive(Debug)]
pub struct Brokers {
    list: Vec<Broker>,
}

#[derive(Debug)]
struct Broker {
    hash: u32,
    down: Option<Down>,
}

#[derive(Debug, Clone, Copy)]
struct Down {
    until: Instant,
    pause: Duration,
}

impl Brokers {
    pub fn new<'a>(urls: impl IntoIterator<Item = &'a str>) -> Self {
        let list = urls.into_iter().map(|url| Broker { hash: key(&[url]), down: None }).collect();
        Self { list }
    }

    /// The best available broker. If none is available, the one whose pause ends first.
    pub fn choose(&self, route: Route, now: Instant) -> usize {
        let well = (0..self.list.len()).filter(|&index| self.list[index].is_well(now));
        let best = match route {
            Route::First => well.min(),
            Route::Key(key) => well.max_by_key(|&index| mix(self.list[index].hash ^ key)),
            Route::At(there) => well.min_by_key(|&index| (index != there, index)),
        };
        let due = |&index: &usize| self.list[index].down.map(|down| down.until);
        best.or_else(|| (0..self.list.len()).min_by_key(due)).unwrap_or(0)
    }

    pub fn is_any_well(&self, now: Instant) -> bool {
        self.list.iter().any(|broker| broker.is_well(now))
    }

    pub fn worked(&mut self, broker: usize) {
        self.list[broker].down = None;
    }

    pub fn failed(&mut self, broker: usize, now: Instant) {
        let broker = &mut self.list[broker];
        // Concurrent requests fail together and count as one failure.
        if !broker.is_well(now) {
            return;
        }
        let pause = broker.down.map_or(DOWN_FIRST, |down| (down.pause * 2).min(DOWN_MAX));
        broker.down = Some(Down { until: now + pause, pause });
    }
}

impl Broker {
    fn is_well(&self, now: Instant) -> bool {
        self.down.is_none_or(|down| down.until <= now)
    }
}

/// FNV-1a over the parts, separated by line breaks. All clients use it, so that a partition's producers and consumers use the
/// same broker whatever language they are written in.
pub fn key(parts: &[&str]) -> u32 {
    let mut hash = 0x811c_9dc5_u32;
    let mut add = |byte: u8| hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    for (number, part) in parts.iter().enumerate() {
        if number > 0 {
            add(b'\n');
        }
        part.bytes().for_each(&mut add);
    }
    hash
}

/// The finalizer of MurmurHash3: FNV alone would favor brokers by the last character of their address.
fn mix(mut hash: u32) -> u32 {
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use proptest::prelude::*;

    const URLS: [&str; 3] = ["http://a:6632", "http://b:6632", "http://c:6632"];

    fn at(brokers: &Brokers, now: Instant) -> Vec<usize> {
        (0..300).map(|n| brokers.choose(Route::lane("orders", &format!("customer-{n}")), now)).collect()
    }

    #[test]
    fn keys_are_spread_and_a_broker_that_goes_down_moves_its_own_only() {
        let (mut brokers, now) = (Brokers::new(URLS), clock::now());
        let before = at(&brokers, now);
        for broker in 0..3 {
            let share = before.iter().filter(|&&chosen| chosen == broker).count();
            assert!((60..=140).contains(&share), "{broker}: {share}");
        }
        brokers.failed(1, now);
        for (before, after) in before.iter().zip(at(&brokers, now)) {
            assert!(after != 1 && (*before == 1 || *before == after));
        }
        brokers.worked(1);
        assert_eq!(at(&brokers, now), before);
    }

    #[test]
    fn the_hash_is_the_one_that_other_clients_compute() {
        assert_eq!(key(&[""]), 0x811c_9dc5);
        assert_eq!(key(&["a"]), 0xe40c_292c);
        assert_eq!(key(&["foobar"]), 0xbf9c_f968);
        assert_eq!(key(&["foo\nbar"]), key(&["foo", "bar"]));
        assert_eq!(mix(0), 0);
        assert_eq!(mix(1), 0x514e_28b7);
    }

    #[test]
    fn what_a_broker_delivered_goes_back_to_it_while_it_is_well() {
        let (mut brokers, now) = (Brokers::new(URLS), clock::now());
        assert_eq!(brokers.choose(Route::At(2), now), 2);
        brokers.failed(2, now);
        assert_eq!(brokers.choose(Route::At(2), now), 0);
        assert_eq!(brokers.choose(Route::First, now), 0);
        brokers.failed(0, now);
        assert_eq!(brokers.choose(Route::First, now), 1);
    }

    #[test]
    fn a_pause_doubles_up_to_half_a_minute_and_ends_with_the_first_success() {
        let (mut brokers, mut now) = (Brokers::new(["http://a"]), clock::now());
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            brokers.failed(0, now);
            brokers.failed(0, now);
            now += Duration::from_secs(seconds) - Duration::from_millis(1);
            assert!(!brokers.is_any_well(now), "{seconds}");
            now += Duration::from_millis(1);
            assert!(brokers.is_any_well(now), "{seconds}");
        }
        brokers.worked(0);
        brokers.failed(0, now);
        assert!(brokers.is_any_well(now + Duration::from_secs(1)));
    }

    #[test]
    fn without_available_brokers_the_one_whose_pause_ends_first_is_used() {
        let (mut brokers, now) = (Brokers::new(URLS), clock::now());
        for (broker, later) in [(0, 20), (1, 0), (2, 10)] {
            brokers.failed(broker, now + Duration::from_millis(later));
        }
        let now = now + Duration::from_millis(30);
        for route in [Route::First, Route::Key(7), Route::At(0)] {
            assert_eq!(brokers.choose(route, now), 1, "{route:?}");
        }
    }

    proptest! {
        #[test]
        fn the_chosen_broker_is_available_if_any_is(
            failures in prop::collection::vec((0usize..3, 0u64..5_000), 0..20), hash in any::<u32>(), after in 0u64..5_000
        ) {
            let (mut brokers, start) = (Brokers::new(URLS), clock::now());
            let mut now = start;
            for (broker, later) in failures {
                now += Duration::from_millis(later);
                brokers.failed(broker, now);
            }
            now += Duration::from_millis(after);
            for route in [Route::First, Route::Key(hash), Route::At(1)] {
                let chosen = brokers.choose(route, now);
                prop_assert!(brokers.list[chosen].is_well(now) || !brokers.is_any_well(now));
            }
        }
    }
}
