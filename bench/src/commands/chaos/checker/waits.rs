//! Checks waiting pops: none keeps waiting while there is a message for it.

use std::collections::BTreeSet;
use std::time::Duration;

use super::index::{Grant, Index};
use super::{Findings, Rule};
use crate::commands::chaos::history::{GROUPS, History, Manner, Time};

/// After the last fault. A lost response may have left a lease on the partition, and the machine may be slow. Much less than such a
/// pop waits.
const SOON: Duration = Duration::from_secs(20);

/// Between faults: seconds in which the same broker delivered messages of the same queue. Faults do not excuse a pop that keeps waiting
/// through so many of them.
const SERVED_SECONDS: usize = 10;

/// For groups whose consumers only wait. A case is a delivery that would have been a violation if it had not arrived.
pub fn check(index: &Index, history: &History, findings: &mut Findings) {
    for (&(group, _), grants) in &index.by_lane {
        if !matches!(GROUPS[group].2, Manner::Waits | Manner::Dozes) {
            continue;
        }
        let mut before = None;
        for grant in grants.iter().map(|&at| &index.grants[at]) {
            let free = free_by(before.replace(grant));
            if let Some(free) = free.filter(|_| grant.wait > SOON) {
                judge(index, history, grant, free, findings);
            }
        }
    }
}

/// The latest time at which the previous lease ended; `None`: unknown.
fn free_by(before: Option<&Grant>) -> Option<Time> {
    match before {
        None => Some(Time::ZERO),
        Some(before) => before.over_by.filter(|_| before.is_timed),
    }
}

/// `free`: from when on no lease was in the way.
fn judge(index: &Index, history: &History, grant: &Grant, free: Time, findings: &mut Findings) {
    // A message behind another one has to wait for that.
    let Some(&key) = grant.keys.first() else { return };
    let Some(accepted) = index.messages.get(&key).and_then(|message| message.accepted) else { return };
    if accepted.provisional {
        return;
    }
    let ready = accepted.at.max(grant.sent).max(free);
    let served = |until: Time| served_seconds(index, grant, ready, until);
    let calm = history.faults.iter().filter(|fault| fault.from < grant.ended).map(|fault| fault.until);
    let since: Time = calm.fold(ready, Time::max);
    let is_last = history.faults.iter().all(|fault| fault.from < grant.ended);
    if is_last || served(Time::MAX) >= SERVED_SECONDS {
        findings.case(Rule::Asleep);
    }
    if grant.ended > since + SOON || served(grant.ended) >= SERVED_SECONDS {
        let text = format!(
            "{key:?} was there from {:?} on, its partition free from {free:?} on, the last fault was over at {since:?}, broker {} served {} s of others, and a pop of {} that waited since {:?} got it at {:?}",
            accepted.at,
            grant.broker,
            served(grant.ended),
            GROUPS[grant.group].0,
            grant.sent,
            grant.ended
        );
        findings.violation(Rule::Asleep, text);
    }
}

/// The number of seconds in which the pop's broker responded to pops of other groups, sent in that time, from the same queue.
fn served_seconds(index: &Index, sleeper: &Grant, from: Time, until: Time) -> usize {
    let others = index.grants.iter().filter(|grant| {
        grant.group != sleeper.group
            && grant.broker == sleeper.broker
            && grant.lane.queue == sleeper.lane.queue
            && grant.sent > from
            && grant.ended < until
    });
    others.map(|grant| grant.ended.as_secs()).collect::<BTreeSet<u64>>().len()
}
