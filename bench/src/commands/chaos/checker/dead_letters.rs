//! Checks messages that may be dead-lettered: each is completed eventually, or becomes a dead letter. A dead letter has failed as
//! often as its queue allows, and a message that has failed that often is not delivered again.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use super::index::Index;
use super::{Findings, Rule};
use crate::commands::chaos::admin::RETRY_LIMIT;
use crate::commands::chaos::history::{FRAIL, GIVES_UP, History, Key, Outcome, Settled, Time};

/// The failures that make a dead letter.
pub const FAILURES: usize = RETRY_LIMIT as usize + 1;

/// How often a message failed under one id. A redriven dead letter starts over under another id.
#[derive(Clone, Debug, Default)]
pub struct Failures {
    /// Number of leases under which it was failed, without those whose failure was refused.
    pub at_most: usize,
    /// When failures were confirmed.
    confirmed: Vec<Time>,
}

impl Failures {
    pub fn may_be_given_up(&self) -> bool {
        self.at_most >= FAILURES
    }

    /// From this time on it has failed too often to be delivered again.
    fn given_up_at(&self) -> Option<Time> {
        self.confirmed.get(FAILURES - 1).copied()
    }
}

/// The expiry of a lease is not a failure.
pub fn failures(index: &Index) -> HashMap<Uuid, Failures> {
    let mut failures: HashMap<Uuid, Failures> = HashMap::new();
    for grant in index.grants.iter().filter(|grant| grant.group == GIVES_UP) {
        let nacks = || grant.acts.iter().filter_map(|act| Some((act, act.nack?)));
        let counts = |result| !matches!(result, Outcome::Answered(Settled { success: false, .. }));
        // A nack ends its lease, so attempts of the same one count once.
        let Some((_, nack)) = nacks().find(|(_, nack)| counts(nack.result)) else { continue };
        let one = failures.entry(grant.ids[nack.place]).or_default();
        one.at_most += 1;
        let done = Settled { success: true, noop: false, deferred: false };
        one.confirmed.extend(
            nacks().find(|(_, nack)| nack.result == Outcome::Answered(done)).map(|(act, _)| act.ended),
        );
    }
    failures.values_mut().for_each(|one| one.confirmed.sort());
    failures
}

pub fn check(index: &Index, history: &History, findings: &mut Findings) {
    let failures = failures(index);
    let dead: HashSet<Key> = history.dead.iter().map(|&(key, _)| key).collect();
    let mut completed: HashSet<Key> = HashSet::new();
    for grant in index.grants.iter().filter(|grant| grant.group == GIVES_UP) {
        let acts = grant.acts.iter().filter(|act| !act.is_refused());
        let done = acts.map(|act| act.completes).max().unwrap_or(0);
        completed.extend(&grant.keys[..done]);
        for (key, id) in grant.keys.iter().zip(&grant.ids) {
            if let Some(at) = failures.get(id).and_then(Failures::given_up_at)
                && grant.sent > at
            {
                let text =
                    format!("{key:?} was delivered again after it had failed {FAILURES} times by {at:?}");
                findings.violation(Rule::GivenUp, text);
            }
        }
    }
    for (key, message) in index.messages.iter().filter(|(key, _)| key.lane.queue == FRAIL) {
        if message.accepted.is_none() {
            continue;
        }
        findings.case(Rule::GivenUp);
        if !completed.contains(key) && !dead.contains(key) {
            findings.violation(Rule::GivenUp, format!("{key:?} was neither completed nor dead-lettered"));
        }
    }
    for (key, id) in &history.dead {
        let failed = failures.get(id).map_or(0, |one| one.at_most);
        if failed < FAILURES {
            let text = format!("{key:?} was dead-lettered after {failed} of {FAILURES} failures");
            findings.violation(Rule::GivenUp, text);
        }
    }
}
