//! Waiting pops: none sleeps beside a message.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use super::index::{Grant, Index};
use super::{Findings, Rule};
use crate::commands::chaos::history::{GROUPS, History, Key, SLEEPERS, Time};

/// After the last fault. A partition may be under a lease that the last answer left behind, and a machine may be slow.
/// Much less than such a pop waits.
const SOON: Duration = Duration::from_secs(20);

/// Between faults: seconds in which the same broker handed out messages of the same queue. Faults cannot excuse a pop that
/// sleeps through so many of them.
const SERVED_SECONDS: usize = 10;

/// Of the one group whose only consumer does nothing but wait. A case is a delivery that would have been a violation, had
/// it not come.
pub fn check(index: &Index, history: &History, findings: &mut Findings) {
    let mut seen: HashSet<Key> = HashSet::new();
    let mut grants: Vec<&Grant> = index.grants.iter().filter(|grant| grant.group == SLEEPERS).collect();
    grants.sort_by_key(|grant| grant.ended);
    for grant in grants.into_iter().filter(|grant| grant.wait > SOON) {
        // What was behind another message had to wait for that one.
        let Some(key) = grant.keys.first().copied().filter(|&key| seen.insert(key)) else { continue };
        seen.extend(&grant.keys);
        let Some(accepted) = index.messages.get(&key).and_then(|message| message.accepted) else { continue };
        if accepted.provisional {
            continue;
        }
        let ready = accepted.at.max(grant.sent);
        let served = |until: Time| served_seconds(index, grant, ready, until);
        let calm = history.faults.iter().filter(|fault| fault.from < grant.ended).map(|fault| fault.until);
        let since: Time = calm.fold(ready, Time::max);
        let is_last = history.faults.iter().all(|fault| fault.from < grant.ended);
        if is_last || served(Time::MAX) >= SERVED_SECONDS {
            findings.case(Rule::Asleep);
        }
        if grant.ended > since + SOON || served(grant.ended) >= SERVED_SECONDS {
            let text = format!(
                "{key:?} was there from {:?} on, the last fault was over at {since:?}, broker {} served {} s of others, and a pop of {} that waited since {:?} got it at {:?}",
                accepted.at,
                grant.broker,
                served(grant.ended),
                GROUPS[SLEEPERS].0,
                grant.sent,
                grant.ended
            );
            findings.violation(Rule::Asleep, text);
        }
    }
}

/// In how many seconds of a time the broker of a pop answered pops of other groups that were sent in it, from the same queue.
fn served_seconds(index: &Index, sleeper: &Grant, from: Time, until: Time) -> usize {
    let others = index.grants.iter().filter(|grant| {
        grant.group != SLEEPERS
            && grant.broker == sleeper.broker
            && grant.lane.queue == sleeper.lane.queue
            && grant.sent > from
            && grant.ended < until
    });
    others.map(|grant| grant.ended.as_secs()).collect::<BTreeSet<u64>>().len()
}
