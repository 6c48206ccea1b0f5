//! Checks deliveries: no message is lost, overtaken or stored twice.

use std::collections::{BTreeMap, HashMap, HashSet};

use uuid::Uuid;

use super::dead_letters::{Failures, failures};
use super::index::{Grant, Index, Message};
use super::{Findings, Rule};
use crate::commands::chaos::history::{
    FLEETING, FRAIL, GROUPS, Group, History, Key, REPEATS, Time, groups_of,
};

pub fn check(index: &Index, history: &History, findings: &mut Findings) {
    lost(index, findings);
    stored_twice(index, history, findings);
    for (&(group, _), grants) in &index.by_lane {
        if !GROUPS[group].2.is_in_order() {
            continue;
        }
        let grants: Vec<&Grant> = grants.iter().map(|&at| &index.grants[at]).collect();
        order(index, group, &grants, findings);
    }
}

fn lost(index: &Index, findings: &mut Findings) {
    let delivered: HashSet<(Group, Key)> =
        index.grants.iter().flat_map(|grant| grant.keys.iter().map(|&key| (grant.group, key))).collect();
    for (&key, message) in &index.messages {
        let Some(accepted) = message.accepted else { continue };
        for group in groups_of(key.lane.queue) {
            findings.case(Rule::Lost);
            if !delivered.contains(&(group, key)) {
                let group = GROUPS[group].0;
                let how = if accepted.buffered { "into a spool " } else { "" };
                let text = format!(
                    "{key:?}, accepted {how}by broker {}, was never delivered to {group}",
                    accepted.broker
                );
                findings.violation(Rule::Lost, text);
            }
        }
    }
}

/// Every delivery of a message has the same id, which is the one returned to its sender.
fn stored_twice(index: &Index, history: &History, findings: &mut Findings) {
    sent_back(index, findings);
    // The id of the first delivery, and its time.
    let mut ids: BTreeMap<Key, (Uuid, Time)> = BTreeMap::new();
    for grant in &index.grants {
        for (&key, &id) in grant.keys.iter().zip(&grant.ids) {
            let (first, _) = *ids.entry(key).or_insert((id, grant.ended));
            if first != id && key.lane.queue != FRAIL && !may_be_stored_anew(index, history, key, grant.ended)
            {
                findings.violation(Rule::StoredTwice, format!("{key:?} is stored as {first} and as {id}"));
            }
            if !index.messages.contains_key(&key) {
                findings.violation(Rule::StoredTwice, format!("{key:?} was delivered and never sent"));
            }
        }
    }
    for (&key, message) in &index.messages {
        if message.tries > 1 {
            findings.case(Rule::StoredTwice);
            // The promised id of a deferred or spooled message only counts if no other attempt of it was stored before.
            if message.accepted.is_none_or(|accepted| accepted.provisional) {
                continue;
            }
        }
        if key.lane.queue == REPEATS {
            // Sent once, without deduplication.
            findings.case(Rule::StoredTwice);
        }
        let Some((accepted, &(id, came))) = message.accepted.zip(ids.get(&key)) else { continue };
        if let Some(told) = accepted.id
            && told != id
            && key.lane.queue != FRAIL
            && !may_be_stored_anew(index, history, key, came.max(accepted.at))
        {
            let text = format!("{key:?} was accepted as {told} and delivered as {id}");
            findings.violation(Rule::StoredTwice, text);
        }
    }
}

/// A redriven dead letter is stored again, once, with a new id: a message that was dead-lettered n times may have n + 1 ids.
fn sent_back(index: &Index, findings: &mut Findings) {
    let mut ids: BTreeMap<Key, HashSet<Uuid>> = BTreeMap::new();
    for grant in index.grants.iter().filter(|grant| grant.lane.queue == FRAIL) {
        for (&key, &id) in grant.keys.iter().zip(&grant.ids) {
            ids.entry(key).or_default().insert(id);
        }
    }
    for (key, ids) in &mut ids {
        let told = index.messages.get(key).and_then(|message| Some((message.tries, message.accepted?)));
        ids.extend(told.and_then(|(tries, accepted)| {
            let counts = tries == 1 || !accepted.provisional;
            accepted.id.filter(|_| counts)
        }));
    }
    let failures = failures(index);
    for (key, ids) in ids {
        let given_up =
            ids.iter().filter(|id| failures.get(id).is_some_and(Failures::may_be_given_up)).count();
        if ids.len() > given_up + 1 {
            let text =
                format!("{key:?} is stored {} times and was dead-lettered {given_up} times", ids.len());
            findings.violation(Rule::StoredTwice, text);
        }
    }
}

/// Whether a message may have been stored again by then, with a new id, because its queue was deleted in between, and with it the
/// known transaction ids.
fn may_be_stored_anew(index: &Index, history: &History, key: Key, by: Time) -> bool {
    key.lane.queue == FLEETING
        && index.messages.get(&key).is_some_and(|message| {
            history.deletes.iter().any(|span| message.first_sent <= span.until && span.from <= by)
        })
}

/// Every message whose result the writer knew when it sent this message is delivered to each group before this one: in the same
/// response, or completed by an earlier one.
fn order(index: &Index, group: Group, grants: &[&Grant], findings: &mut Findings) {
    let completed = completed(grants);
    for grant in grants {
        let mut before: HashSet<Key> = HashSet::new();
        let mut looked_at: Option<Key> = None;
        for &key in &grant.keys {
            if !before.insert(key) {
                let text = format!("{key:?} came twice in one answer to {}", GROUPS[group].0);
                findings.violation(Rule::Duplicate, text);
            }
            let Some(message) = index.messages.get(&key) else { continue };
            // Earlier ones were checked with the previous message.
            let from = looked_at.unwrap_or(Key { seq: 0, ..key });
            for (&other, predecessor) in index.messages.range(from..key.max(from)) {
                if !must_precede(predecessor, message) || before.contains(&other) {
                    continue;
                }
                findings.case(Rule::Order);
                if completed.get(&other).is_none_or(|&sent| sent > grant.ended) {
                    let group = GROUPS[group].0;
                    findings.violation(
                        Rule::Order,
                        format!("{key:?} came to {group} at {:?} before {other:?} was done", grant.ended),
                    );
                }
            }
            looked_at = looked_at.max(Some(key));
        }
    }
}

pub fn must_precede(predecessor: &Message, message: &Message) -> bool {
    let Some(accepted) = predecessor.accepted else { return false };
    // A broker does not know another's spool. A writer that changes brokers may overtake itself.
    !accepted.buffered || message.brokers == 1 << accepted.broker
}

/// The earliest time at which each message may have been completed.
fn completed(grants: &[&Grant]) -> HashMap<Key, Time> {
    let mut completed = HashMap::new();
    for grant in grants {
        for act in grant.acts.iter().filter(|act| !act.is_refused()) {
            for &key in &grant.keys[..act.completes] {
                let earliest = completed.entry(key).or_insert(act.sent);
                *earliest = act.sent.min(*earliest);
            }
        }
    }
    completed
}
