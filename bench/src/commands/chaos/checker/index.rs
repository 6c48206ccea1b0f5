//! A history indexed by message and by lease.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use uuid::Uuid;

use super::MARGIN;
use crate::commands::chaos::history::{
    Group, History, Key, Lane, MOVERS, Outcome, Receipt, Renewal, Settled, Time, Verdict,
};

/// How close to a jump of the database's clock the duration of a lease may be wrong: two lease times, and the jump itself.
const CLOCK_REACH: Duration = Duration::from_secs(9);

/// A message as its writer knows it.
#[derive(Debug)]
pub struct Message {
    pub first_sent: Time,
    pub tries: u32,
    /// Where it was sent, one bit per broker.
    pub brokers: u32,
    pub accepted: Option<Accepted>,
}

#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    /// When its writer learned the result.
    pub at: Time,
    pub broker: usize,
    pub buffered: bool,
    /// Known before the log was compared.
    pub provisional: bool,
    /// Confirmed by a push; not derived from transactions.
    pub id: Option<Uuid>,
}

/// A lease on one lane: the part of a pop that concerns it.
#[derive(Debug)]
pub struct Grant {
    pub group: Group,
    pub lane: Lane,
    pub lease: String,
    pub sent: Time,
    pub ended: Time,
    pub broker: usize,
    pub keys: Vec<Key>,
    pub ids: Vec<Uuid>,
    /// The lease is live at least until then, unless its holder ends it.
    pub live_until: Time,
    /// The lease has certainly expired by then. `None` if unknown.
    pub over_by: Option<Time>,
    /// The holder sent something that ends it.
    pub end_sent: Option<Time>,
    /// The holder sent a nack.
    pub nack_sent: Option<Time>,
    pub acts: Vec<Act>,
    /// The longest time that its pop may have waited.
    pub wait: Duration,
    /// Whether the clock that leases use was right all the time.
    pub is_timed: bool,
}

/// An acknowledgement of one lane, by itself or in a transaction.
#[derive(Debug)]
pub struct Act {
    pub sent: Time,
    pub ended: Time,
    /// How many messages of the grant, from its first, are completed if it is executed.
    pub completes: usize,
    pub nack: Option<Nack>,
    pub result: Outcome<Settled>,
}

/// The message that an acknowledgement fails, as its index in the grant, and the result.
#[derive(Clone, Copy, Debug)]
pub struct Nack {
    pub place: usize,
    pub result: Outcome<Settled>,
}

impl Act {
    pub fn is_refused(&self) -> bool {
        matches!(self.result, Outcome::Answered(Settled { success: false, .. }))
    }

    /// Whether it was executed, and because of this very request.
    pub fn is_done(&self) -> bool {
        matches!(self.result, Outcome::Answered(Settled { success: true, noop: false, .. }))
    }
}

#[derive(Debug, Default)]
pub struct Index {
    pub messages: BTreeMap<Key, Message>,
    pub grants: Vec<Grant>,
    /// In the order of their responses.
    pub by_lane: BTreeMap<(Group, Lane), Vec<usize>>,
    by_lease: HashMap<(Lane, String), usize>,
    /// How many lanes the lease covers.
    pub lanes_of: HashMap<String, u32>,
}

impl Index {
    pub fn of(history: &History) -> Index {
        let mut index = Index::default();
        index.add_pushes(history);
        index.add_grants(history);
        // Renewals come first, because the duration of a lease decides whether an act could hold it.
        index.add_renewals(history);
        index.add_acts(history);
        index
    }

    fn add_pushes(&mut self, history: &History) {
        for push in &history.pushes {
            for (at, &key) in push.items.iter().enumerate() {
                let message = self.message(key, push.sent, push.broker);
                let Outcome::Answered(receipts) = &push.outcome else { continue };
                let (id, buffered, provisional) = match receipts[at] {
                    Receipt::Stored(id) => (id, false, false),
                    Receipt::Deferred(id) => (id, false, true),
                    Receipt::Buffered(id) => (id, true, true),
                    Receipt::Failed => continue,
                };
                message.accepted = Some(Accepted {
                    at: push.ended,
                    broker: push.broker,
                    buffered,
                    provisional,
                    id: Some(id),
                });
            }
        }
        for transaction in &history.transactions {
            for &key in &transaction.outputs {
                let message = self.message(key, transaction.sent, transaction.broker);
                if transaction.outcome == Outcome::Answered(true) {
                    message.accepted = Some(Accepted {
                        at: transaction.ended,
                        broker: transaction.broker,
                        buffered: false,
                        provisional: false,
                        id: None,
                    });
                }
            }
        }
    }

    fn message(&mut self, key: Key, sent: Time, broker: usize) -> &mut Message {
        let new = Message { first_sent: sent, tries: 0, brokers: 0, accepted: None };
        let message = self.messages.entry(key).or_insert(new);
        message.first_sent = message.first_sent.min(sent);
        message.tries += 1;
        message.brokers |= 1 << broker;
        message
    }

    fn add_grants(&mut self, history: &History) {
        for pop in &history.pops {
            let mut lanes: BTreeMap<Lane, (Vec<Key>, Vec<Uuid>)> = BTreeMap::new();
            for &(key, id) in &pop.messages {
                let (keys, ids) = lanes.entry(key.lane).or_default();
                keys.push(key);
                ids.push(id);
            }
            self.lanes_of.insert(pop.lease.clone(), lanes.len() as u32);
            for (lane, (keys, ids)) in lanes {
                let at = self.grants.len();
                self.by_lease.insert((lane, pop.lease.clone()), at);
                self.by_lane.entry((pop.group, lane)).or_default().push(at);
                self.grants.push(Grant {
                    group: pop.group,
                    lane,
                    lease: pop.lease.clone(),
                    sent: pop.sent,
                    ended: pop.ended,
                    broker: pop.broker,
                    keys,
                    ids,
                    live_until: pop.sent + pop.lease_time,
                    over_by: Some(pop.ended + pop.lease_time),
                    end_sent: None,
                    nack_sent: None,
                    acts: Vec::new(),
                    wait: pop.wait,
                    is_timed: history.clock_jumps.iter().all(|jump| {
                        pop.ended + CLOCK_REACH < jump.from || jump.until + CLOCK_REACH < pop.sent
                    }),
                });
            }
        }
        let grants = &self.grants;
        for lane in self.by_lane.values_mut() {
            lane.sort_by_key(|&at| grants[at].ended);
        }
    }

    fn add_acts(&mut self, history: &History) {
        for settle in &history.settles {
            let Some(&at) = self.by_lease.get(&(settle.lane, settle.lease.clone())) else { continue };
            let grant = &mut self.grants[at];
            let place = |key: Key| grant.keys.iter().position(|&other| other == key);
            let completed = settle.items.iter().enumerate().filter(|(_, item)| item.1 == Verdict::Completed);
            // The effective one: it completes everything before it.
            let last = completed.filter_map(|(item, &(key, _))| Some((place(key)?, item))).max();
            let deciding = last.map_or(0, |(_, item)| item);
            let result_of = |item: usize| match &settle.outcome {
                Outcome::Answered(answers) => Outcome::Answered(answers[item]),
                Outcome::Unknown => Outcome::Unknown,
            };
            let result = result_of(deciding);
            let failed = settle.items.iter().position(|item| item.1 == Verdict::Again);
            let nack = failed
                .and_then(|item| Some(Nack { place: place(settle.items[item].0)?, result: result_of(item) }));
            let completes = last.map_or(0, |(place, _)| place + 1);
            grant.add(Act { sent: settle.sent, ended: settle.ended, completes, nack, result });
        }
        for transaction in &history.transactions {
            let Some(lane) = transaction.sources.first().map(|key| key.lane) else { continue };
            let Some(&at) = self.by_lease.get(&(lane, transaction.lease.clone())) else { continue };
            let result = match transaction.outcome {
                Outcome::Answered(success) => {
                    Outcome::Answered(Settled { success, noop: false, deferred: false })
                }
                Outcome::Unknown => Outcome::Unknown,
            };
            let (sent, ended) = (transaction.sent, transaction.ended);
            let completes = transaction.sources.len();
            debug_assert_eq!(self.grants[at].group, MOVERS);
            self.grants[at].add(Act { sent, ended, completes, nack: None, result });
        }
        for grant in &mut self.grants {
            grant.acts.sort_by_key(|act| act.sent);
            grant.hold();
        }
    }

    fn add_renewals(&mut self, history: &History) {
        let mut renewals: Vec<&Renewal> = history.renewals.iter().collect();
        renewals.sort_by_key(|renewal| renewal.sent);
        for renewal in renewals {
            let lanes = self.lanes_of.get(&renewal.lease).copied();
            for grant in self.grants.iter_mut().filter(|grant| grant.lease == renewal.lease) {
                match renewal.outcome {
                    Outcome::Answered(0) => {}
                    Outcome::Answered(renewed) => {
                        // Fewer than all: this may be the one whose lease had ended.
                        if Some(renewed) == lanes {
                            grant.live_until = grant.live_until.max(renewal.sent + renewal.extension);
                        }
                        let over_by = renewal.ended + renewal.extension;
                        grant.over_by = grant.over_by.map(|time: Duration| time.max(over_by));
                    }
                    Outcome::Unknown => grant.held_from(renewal.sent),
                }
            }
        }
    }
}

impl Grant {
    fn add(&mut self, act: Act) {
        if act.nack.is_some() || act.completes == self.keys.len() {
            self.end_sent = Some(self.end_sent.map_or(act.sent, |sent| sent.min(act.sent)));
        }
        if act.nack.is_some() {
            self.nack_sent = Some(self.nack_sent.map_or(act.sent, |sent| sent.min(act.sent)));
        }
        self.acts.push(act);
    }

    /// A deferred act holds the lease until it is executed, and then for its usual time.
    fn hold(&mut self) {
        let holds = |act: &&Act| match act.result {
            Outcome::Answered(settled) => settled.deferred,
            Outcome::Unknown => true,
        };
        // If the first one was sent too late, so were later ones.
        if let Some(first) = self.acts.iter().find(holds).map(|act| act.sent) {
            self.held_from(first);
        }
    }

    /// The lease may be held for an unknown time from then on. A lease that has ended cannot be held anymore.
    fn held_from(&mut self, sent: Time) {
        self.over_by = self.over_by.filter(|&over_by| over_by + MARGIN < sent);
    }

    /// Until then the lease is live in any case, and its holder knows it.
    pub fn surely_live_until(&self) -> Time {
        self.end_sent.map_or(self.live_until, |sent| sent.min(self.live_until))
    }
}
