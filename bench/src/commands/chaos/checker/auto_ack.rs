//! Checks auto-ack pops: delivered messages are completed, and those in a lost response are lost.

use std::collections::HashMap;

use super::deliveries::must_precede;
use super::index::{Grant, Index};
use super::{Findings, Rule};
use crate::commands::chaos::history::{AUTO, GROUPS, History, Key};

pub fn check(index: &Index, history: &History, findings: &mut Findings) {
    let queue = GROUPS[AUTO].1;
    let mut came: HashMap<Key, &Grant> = HashMap::new();
    for grant in index.grants.iter().filter(|grant| grant.group == AUTO) {
        let mut last: Option<Key> = None;
        for &key in &grant.keys {
            findings.case(Rule::AtMostOnce);
            if let Some(first) = came.insert(key, grant) {
                let text = format!("{key:?} came at {:?} and again at {:?}", first.ended, grant.ended);
                findings.violation(Rule::AtMostOnce, text);
            }
            if let Some(last) =
                last.filter(|&last| last.lane == key.lane && last > key && is_first(index, key, last))
            {
                findings.violation(Rule::AtMostOnce, format!("{key:?} came behind {last:?} in one answer"));
            }
            last = Some(key);
        }
    }
    later_first(index, &came, findings);
    let accepted = index.messages.iter().filter(|(_, message)| message.accepted.is_some());
    let owed = accepted.filter(|(key, _)| key.lane.queue == queue && !came.contains_key(key)).count() as u64;
    if owed > history.lost_auto_acks {
        let text =
            format!("{owed} messages never came, and lost answers held {} at most", history.lost_auto_acks);
        findings.violation(Rule::AtMostOnce, text);
    }
}

/// A message accepted before its successor was sent is delivered with it or before it, or was in a lost response.
fn later_first(index: &Index, came: &HashMap<Key, &Grant>, findings: &mut Findings) {
    for (&key, grant) in came {
        let Some(before) = key.seq.checked_sub(1).map(|seq| Key { seq, ..key }) else { continue };
        if let Some(other) = came.get(&before)
            && is_first(index, before, key)
            && other.sent > grant.ended
        {
            let text = format!("{before:?} came at {:?}, after {key:?} had come", other.ended);
            findings.violation(Rule::AtMostOnce, text);
        }
    }
}

fn is_first(index: &Index, key: Key, later: Key) -> bool {
    let (Some(first), Some(second)) = (index.messages.get(&key), index.messages.get(&later)) else {
        return false;
    };
    must_precede(first, second)
}
