//! The leases this broker has served: what an ack's transaction ids mean. Bounded; what is forgotten is looked
//! up in the log instead. Pure.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use queen_protocol::Holder;
use uuid::Uuid;

use crate::life::Traced;
use crate::log::Partition;
use crate::log::ids::{BuildAsIs, Reference, TransactionHash, offset_of};

/// What was known when a partition was leased.
#[derive(Debug, Clone)]
pub struct Service {
    pub partition: Arc<Partition>,
    pub head: i64,
    pub holder: Option<Holder>,
}

/// The messages of a lease.
pub struct Messages<H> {
    /// The first offset.
    pub first: i64,
    /// One per message.
    pub hashes: H,
    /// Offsets of messages whose ids were promised before they had a place in the log. All others are computed.
    pub promised: HashMap<Uuid, i64>,
}

#[derive(Debug)]
struct Served {
    lease: Uuid,
    service: Service,
    cursor: i64,
    first: i64,
    /// One per message from `first` on, without the flag.
    hashes: Vec<u128>,
    promised: HashMap<Uuid, i64>,
    /// `None`: none of these messages is traced.
    traced: Option<Arc<Traced>>,
}

/// The weight of a traced message, in hashes.
const TRACED_WEIGHT: usize = 10;

/// The weight of a promised id, in hashes.
const PROMISED_WEIGHT: usize = 2;

/// Up to this many messages are searched for one by one. For more, a table is faster.
const FEW: usize = 32;

impl Served {
    fn weight(&self) -> usize {
        let promised = PROMISED_WEIGHT * self.promised.len();
        self.hashes.len()
            + promised
            + self.traced.as_ref().map_or(0, |traced| TRACED_WEIGHT * traced.messages.len())
    }

    /// Places in `hashes`; `None` unless all are found. If a transaction id is asked for without a message id and
    /// repeats, the first of its messages is meant, even if that is settled: the same ack may have come before.
    fn find(&self, asked: &[Reference]) -> Option<Vec<usize>> {
        let table = (asked.len() > FEW).then(|| self.firsts(asked));
        let first = |hash: u128| match &table {
            Some(table) => table.get(&hash).copied(),
            None => self.hashes.iter().position(|served| *served == hash),
        };
        let place = |reference: &Reference| match reference.id {
            None => first(reference.hash.without_flag()),
            Some(id) => {
                let computed = || offset_of(id, self.service.partition.number);
                let offset = self.promised.get(&id).copied().or_else(computed)?;
                let place = usize::try_from(offset - self.first).ok()?;
                (*self.hashes.get(place)? == reference.hash.without_flag()).then_some(place)
            }
        };
        asked.iter().map(place).collect()
    }

    /// The first place of each transaction that is asked for without a message id.
    fn firsts(&self, asked: &[Reference]) -> HashMap<u128, usize, BuildAsIs> {
        let unnamed = asked.iter().filter(|reference| reference.id.is_none());
        let mut missing: HashSet<u128, BuildAsIs> =
            unnamed.map(|reference| reference.hash.without_flag()).collect();
        let mut firsts = HashMap::with_capacity_and_hasher(missing.len(), BuildAsIs::default());
        for (place, hash) in self.hashes.iter().enumerate() {
            if missing.is_empty() {
                break;
            }
            if missing.remove(hash) {
                firsts.insert(*hash, place);
            }
        }
        firsts
    }
}

type Key = (Uuid, Arc<str>);

/// # Invariants
/// - At most one lease per (partition, group), the newest.
/// - The hashes of all leases add up to at most the budget, except for one oversized lease. A traced message counts
///   for ten.
pub struct LeaseBook {
    served: HashMap<Key, Served>,
    arrivals: VecDeque<(Key, Uuid)>,
    hashes: usize,
    budget: usize,
}

/// Where the messages of an ack are.
#[derive(Debug)]
pub struct Resolved {
    pub service: Service,
    pub cursor: i64,
    pub offsets: Vec<i64>,
}

impl LeaseBook {
    pub fn new(budget: usize) -> Self {
        Self { served: HashMap::new(), arrivals: VecDeque::new(), hashes: 0, budget }
    }

    pub fn serve(
        &mut self,
        service: Service,
        group: Arc<str>,
        lease: Uuid,
        messages: Messages<impl Iterator<Item = TransactionHash>>,
        traced: Option<Arc<Traced>>,
    ) {
        let key = (service.partition.id, group);
        self.forget(&key);
        let Messages { first, hashes, promised } = messages;
        let hashes: Vec<u128> = hashes.map(TransactionHash::without_flag).collect();
        let served = Served { lease, service, cursor: first, first, hashes, promised, traced };
        self.hashes += served.weight();
        self.arrivals.push_back((key.clone(), lease));
        self.served.insert(key, served);
        while self.arrivals.len() > 1
            && (self.hashes > self.budget || self.arrivals.len() > 2 * self.served.len() + 16)
        {
            let Some((key, lease)) = self.arrivals.pop_front() else { break };
            if self.served.get(&key).is_some_and(|served| served.lease == lease) {
                // Still in use: forgotten only when the budget asks for it.
                if self.hashes > self.budget {
                    self.forget(&key);
                } else {
                    self.arrivals.push_back((key, lease));
                }
            }
        }
    }

    /// `None` unless every message is found in the lease that was served here, and `lease`, if given, is that lease.
    pub fn resolve(&self, key: &Key, lease: Option<Uuid>, asked: &[Reference]) -> Option<Resolved> {
        let served = self.served.get(key)?;
        if lease.is_some_and(|lease| lease != served.lease) {
            return None;
        }
        let places = served.find(asked)?;
        let offsets = places.into_iter().map(|place| served.first + place as i64).collect();
        Some(Resolved { service: served.service.clone(), cursor: served.cursor, offsets })
    }

    /// Whether the newest lease that is known was granted through this broker. It may be over.
    pub fn knows(&self, key: &Key) -> bool {
        self.served.contains_key(key)
    }

    /// Whether this lease was granted through this broker.
    pub fn is_of(&self, key: &Key, lease: Uuid) -> bool {
        self.served.get(key).is_some_and(|served| served.lease == lease)
    }

    /// The consumer that got this lease. `None` if it was not served here, or is forgotten.
    pub fn holder(&self, key: &Key, lease: Uuid) -> Option<Holder> {
        self.served.get(key).filter(|served| served.lease == lease)?.service.holder.clone()
    }

    /// The traced messages among those that were served.
    pub fn traced(&self, key: &Key) -> Option<Arc<Traced>> {
        self.served.get(key)?.traced.clone()
    }

    /// Returns what was traced in the lease.
    pub fn acked(&mut self, key: &Key, cursor: i64, released: bool) -> Option<Arc<Traced>> {
        if released {
            return self.forget(key)?.traced;
        }
        let served = self.served.get_mut(key)?;
        served.cursor = cursor;
        served.traced.clone()
    }

    pub fn forget_partitions(&mut self, partitions: &HashSet<Uuid>) {
        let keys: Vec<Key> = self.served.keys().filter(|key| partitions.contains(&key.0)).cloned().collect();
        keys.iter().for_each(|key| drop(self.forget(key)));
    }

    fn forget(&mut self, key: &Key) -> Option<Served> {
        let served = self.served.remove(key)?;
        self.hashes -= served.weight();
        Some(served)
    }

    pub fn len(&self) -> usize {
        self.served.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::life::TracedMessage;
    use crate::log::ids::message_id;
    use proptest::prelude::*;

    fn hash(id: usize) -> TransactionHash {
        TransactionHash::new(&id.to_string(), id.is_multiple_of(2))
    }

    fn key(n: u128) -> Key {
        (Uuid::from_u128(n), "g".into())
    }

    fn service(n: u128) -> Service {
        let partition = Partition { id: Uuid::from_u128(n), number: 1, queue: "q".into(), name: "p".into() };
        Service { partition: Arc::new(partition), head: 100, holder: None }
    }

    fn messages(
        first: i64,
        ids: impl IntoIterator<Item = usize>,
    ) -> Messages<impl Iterator<Item = TransactionHash>> {
        Messages { first, hashes: ids.into_iter().map(hash), promised: HashMap::new() }
    }

    fn unnamed(id: usize) -> Reference {
        Reference { hash: TransactionHash::new(&id.to_string(), true), id: None }
    }

    #[test]
    fn an_ack_is_resolved_in_any_order_whoever_chose_the_id() {
        let mut book = LeaseBook::new(100);
        book.serve(service(1), key(1).1, Uuid::nil(), messages(10, 0..5), None);
        let resolved = book.resolve(&key(1), None, &[4, 0, 3].map(unnamed)).unwrap();
        assert_eq!((resolved.cursor, resolved.offsets), (10, vec![14, 10, 13]));
        assert!(book.resolve(&key(1), None, &[unnamed(77)]).is_none());
        book.acked(&key(1), 12, false);
        assert_eq!(book.resolve(&key(1), None, &[unnamed(1)]).unwrap().cursor, 12);
        book.acked(&key(1), 15, true);
        assert!(book.resolve(&key(1), None, &[unnamed(1)]).is_none());
    }

    #[test]
    fn another_lease_of_the_same_cursor_is_not_resolved() {
        let (mut book, lease) = (LeaseBook::new(100), Uuid::from_u128(7));
        book.serve(service(1), key(1).1, lease, messages(0, 0..5), None);
        assert!(book.resolve(&key(1), Some(lease), &[unnamed(1)]).is_some());
        assert!(book.resolve(&key(1), Some(Uuid::from_u128(8)), &[unnamed(1)]).is_none());
    }

    #[test]
    fn of_messages_with_one_transaction_id_the_first_is_meant_unless_a_message_id_decides() {
        let mut book = LeaseBook::new(100);
        let promised = Uuid::from_u128(77);
        let messages = Messages { promised: HashMap::from([(promised, 13)]), ..messages(10, [1, 2, 1, 1]) };
        book.serve(service(1), key(1).1, Uuid::nil(), messages, None);
        let resolve = |asked: &[Reference]| book.resolve(&key(1), None, asked).map(|found| found.offsets);
        assert_eq!(resolve(&[unnamed(1)]).unwrap(), [10]);
        assert_eq!(resolve(&[unnamed(2), unnamed(1), unnamed(1)]).unwrap(), [11, 10, 10]);
        let named = |transaction, id| Reference { id: Some(id), ..unnamed(transaction) };
        let third = message_id(123_456_789, 12, 1);
        assert_eq!(resolve(&[named(1, third), unnamed(1), named(1, promised)]).unwrap(), [12, 10, 13]);
        for strange in [named(2, third), named(2, promised), named(1, Uuid::from_u128(78))] {
            assert_eq!(resolve(&[strange]), None);
        }
        for outside in [9, 14] {
            assert_eq!(resolve(&[named(1, message_id(0, outside, 1))]), None);
        }
    }

    #[test]
    fn the_holder_is_that_of_the_lease_that_is_asked_for() {
        let (mut book, first, second) = (LeaseBook::new(100), Uuid::from_u128(1), Uuid::from_u128(2));
        let holder = |name: &str| Some(Holder { name: Some(name.into()), address: [127, 0, 0, 1].into() });
        let serve = |book: &mut LeaseBook, lease, name| {
            let service = Service { holder: holder(name), ..service(1) };
            book.serve(service, key(1).1, lease, messages(0, 0..5), None);
        };
        serve(&mut book, first, "a");
        assert_eq!(book.holder(&key(1), first), holder("a"));
        serve(&mut book, second, "b");
        assert_eq!((book.holder(&key(1), first), book.holder(&key(1), second)), (None, holder("b")));
        book.acked(&key(1), 5, true);
        assert_eq!(book.holder(&key(1), second), None);
    }

    fn traced(count: usize) -> Option<Arc<Traced>> {
        let message = |offset| TracedMessage {
            offset: offset as i64,
            message_id: Uuid::nil(),
            transaction_id: "t".into(),
            parent: None,
        };
        let messages: Vec<TracedMessage> = (0..count).map(message).collect();
        (count > 0).then(|| Arc::new(Traced { first: Some((0, 1)), messages }))
    }

    #[test]
    fn traced_messages_are_remembered_with_their_lease() {
        let mut book = LeaseBook::new(100);
        book.serve(service(1), key(1).1, Uuid::nil(), messages(0, 0..5), traced(2));
        book.serve(service(2), key(2).1, Uuid::nil(), messages(0, 0..5), traced(0));
        assert_eq!(book.traced(&key(1)).unwrap().messages.len(), 2);
        assert!(book.traced(&key(2)).is_none());
        assert!(book.acked(&key(1), 2, false).is_some());
        assert!(book.acked(&key(1), 5, true).is_some());
        assert!(book.traced(&key(1)).is_none() && book.acked(&key(2), 5, true).is_none());
    }

    proptest! {
        #[test]
        fn memory_is_bounded_and_the_newest_lease_is_kept(
            leases in prop::collection::vec((0u128..20, 1usize..10, any::<bool>(), 0usize..3), 1..200)
        ) {
            let mut book = LeaseBook::new(50);
            for (index, (partition, count, ack, trace)) in leases.into_iter().enumerate() {
                let lease = Uuid::from_u128(index as u128);
                let promised = (0..trace as u128).map(|id| (Uuid::from_u128(id), 0)).collect();
                let messages = Messages { promised, ..messages(0, 0..count) };
                book.serve(service(partition), key(partition).1, lease, messages, traced(trace));
                prop_assert!(book.hashes <= 50);
                prop_assert_eq!(book.hashes, book.served.values().map(Served::weight).sum::<usize>());
                prop_assert!(book.arrivals.len() <= 2 * book.served.len() + 16);
                prop_assert!(book.knows(&key(partition)));
                if ack {
                    book.acked(&key(partition), count as i64, true);
                }
            }
        }
    }
}
