//! Checks groups that were moved back, and a queue that was deleted: what must be delivered nevertheless.

use std::collections::{HashMap, HashSet};

use super::index::Index;
use super::{Findings, MARGIN, Rule};
use crate::commands::chaos::history::{FLEETERS, FLEETING, GROUPS, History, Key, Outcome, REWOUND, Time};

pub fn check(index: &Index, history: &History, findings: &mut Findings) {
    rewound(index, history, findings);
    fleeting(index, history, findings);
}

/// Everything accepted before the group was moved back is delivered after that.
fn rewound(index: &Index, history: &History, findings: &mut Findings) {
    let queue = GROUPS[REWOUND].1;
    let mut last: HashMap<Key, Time> = HashMap::new();
    for grant in index.grants.iter().filter(|grant| grant.group == REWOUND) {
        for &key in &grant.keys {
            let time = last.entry(key).or_default();
            *time = grant.ended.max(*time);
        }
    }
    // The last one is the hardest to satisfy.
    let done = |seek: &&crate::commands::chaos::history::Seek| seek.outcome == Outcome::Answered(());
    let Some(sent) = history.seeks.iter().filter(done).map(|seek| seek.sent).max() else { return };
    for (key, message) in index.messages.iter().filter(|(key, _)| key.lane.queue == queue) {
        if message.accepted.is_none_or(|accepted| accepted.at > sent) {
            continue;
        }
        findings.case(Rule::Replayed);
        if last.get(key).is_none_or(|&came| came < sent) {
            let text =
                format!("{key:?} did not come again after {} was sent back at {sent:?}", GROUPS[REWOUND].0);
            findings.violation(Rule::Replayed, text);
        }
    }
}

/// Messages first sent after the last delete of their queue.
fn fleeting(index: &Index, history: &History, findings: &mut Findings) {
    let deleted = history.deletes.iter().map(|span| span.until).max().unwrap_or_default();
    let grants = index.grants.iter().filter(|grant| grant.group == FLEETERS);
    let came: HashSet<Key> = grants.flat_map(|grant| grant.keys.iter().copied()).collect();
    for (key, message) in index.messages.iter().filter(|(key, _)| key.lane.queue == FLEETING) {
        if message.accepted.is_none() || message.first_sent < deleted + MARGIN {
            continue;
        }
        findings.case(Rule::Lost);
        if !came.contains(key) {
            let text = format!(
                "{key:?}, sent at {:?} to the queue deleted last at {deleted:?}, never came",
                message.first_sent
            );
            findings.violation(Rule::Lost, text);
        }
    }
}
