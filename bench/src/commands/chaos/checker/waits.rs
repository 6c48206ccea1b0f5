//! Waiting pops: none sleeps beside a message.

use std::collections::HashSet;
use std::time::Duration;

use super::index::Index;
use super::{Findings, Rule};
use crate::commands::chaos::history::{GROUPS, History, Key, SLEEPERS, Time};

/// A partition may be under a lease that the last answer left behind, and a machine may be slow. Much less than such a
/// pop waits.
const SOON: Duration = Duration::from_secs(20);

/// Of the one group whose only consumer does nothing but wait.
pub fn check(index: &Index, history: &History, findings: &mut Findings) {
    let mut seen: HashSet<Key> = HashSet::new();
    let mut grants: Vec<_> = index.grants.iter().filter(|grant| grant.group == SLEEPERS).collect();
    grants.sort_by_key(|grant| grant.ended);
    for grant in grants.into_iter().filter(|grant| grant.wait > SOON) {
        // What was behind another message had to wait for that one.
        let Some(key) = grant.keys.first().copied().filter(|&key| seen.insert(key)) else { continue };
        seen.extend(&grant.keys);
        let Some(accepted) = index.messages.get(&key).and_then(|message| message.accepted) else { continue };
        if accepted.provisional {
            continue;
        }
        findings.case(Rule::Asleep);
        let ready = accepted.at.max(grant.sent);
        let calm = history.faults.iter().filter(|fault| fault.from < grant.ended).map(|fault| fault.until);
        let since: Time = calm.fold(ready, Time::max);
        if grant.ended > since + SOON {
            let text = format!(
                "{key:?} was there from {:?} on, the last fault was over at {since:?}, and a pop of {} that waited since {:?} got it at {:?}",
                accepted.at, GROUPS[SLEEPERS].0, grant.sent, grant.ended
            );
            findings.violation(Rule::Asleep, text);
        }
    }
}
