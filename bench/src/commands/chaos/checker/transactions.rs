//! Checks transactions: all or nothing, and once per source message.

use std::collections::{BTreeMap, HashSet};

use super::index::Index;
use super::{Findings, Rule};
use crate::commands::chaos::history::{
    GROUPS, Group, History, Key, MOVERS, Outcome, SOURCE, Transaction, groups_of,
};

pub fn check(index: &Index, history: &History, findings: &mut Findings) {
    let delivered: HashSet<(Group, Key)> =
        index.grants.iter().flat_map(|grant| grant.keys.iter().map(|&key| (grant.group, key))).collect();
    let mut tries: BTreeMap<u32, Vec<&Transaction>> = BTreeMap::new();
    for transaction in &history.transactions {
        tries.entry(transaction.number).or_default().push(transaction);
    }
    // The transactions that moved a source message, according to their outputs.
    let mut moved: BTreeMap<Key, Vec<u32>> = BTreeMap::new();
    for (number, tries) in tries {
        findings.case(Rule::Atomic);
        let transaction = tries[0];
        let came = |&&key: &&Key| groups_of(key.lane.queue).any(|group| delivered.contains(&(group, key)));
        let outputs_seen = transaction.outputs.iter().filter(came).count();
        let of = transaction.outputs.len();
        let committed = tries.iter().any(|one| one.outcome == Outcome::Answered(true));
        let refused = tries.iter().all(|one| one.outcome == Outcome::Answered(false));
        if committed && outputs_seen < of {
            let text =
                format!("transaction {number} was committed, and {outputs_seen} of its {of} messages came");
            findings.violation(Rule::Atomic, text);
        } else if refused && outputs_seen > 0 {
            let text =
                format!("transaction {number} was refused, and {outputs_seen} of its {of} messages came");
            findings.violation(Rule::Atomic, text);
        } else if outputs_seen != 0 && outputs_seen != of {
            let text = format!("{outputs_seen} of the {of} messages of transaction {number} came");
            findings.violation(Rule::Atomic, text);
        }
        if committed || outputs_seen > 0 {
            for &source in &transaction.sources {
                moved.entry(source).or_default().push(number);
            }
        }
    }
    exactly_once(index, &moved, &delivered, findings);
}

/// An acknowledgement in a transaction is its commit: a message that was moved twice was completed twice, and one that was never moved
/// was never completed.
fn exactly_once(
    index: &Index,
    moved: &BTreeMap<Key, Vec<u32>>,
    delivered: &HashSet<(Group, Key)>,
    findings: &mut Findings,
) {
    for (key, numbers) in moved {
        if numbers.len() > 1 {
            findings.violation(Rule::Atomic, format!("{key:?} was moved by the transactions {numbers:?}"));
        }
    }
    let accepted = index.messages.iter().filter(|(_, message)| message.accepted.is_some());
    for (key, _) in accepted.filter(|(key, _)| key.lane.queue == SOURCE) {
        // A message that was never delivered to the movers is lost, and reported as such.
        if !moved.contains_key(key) && delivered.contains(&(MOVERS, *key)) {
            let group = GROUPS[MOVERS].0;
            findings
                .violation(Rule::Atomic, format!("{key:?} came to {group} and was moved by no transaction"));
        }
    }
}
