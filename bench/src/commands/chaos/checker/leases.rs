//! Checks leases: at most one at a time, and only its holder's acts are accepted.

use std::collections::HashMap;

use super::index::{Grant, Index};
use super::{Findings, MARGIN, Rule};
use crate::commands::chaos::history::{GROUPS, Group, History, Key, Lane, Outcome};

pub fn check(index: &Index, history: &History, findings: &mut Findings) {
    for (&(group, lane), grants) in &index.by_lane {
        if !GROUPS[group].2.has_plain_leases() {
            continue;
        }
        let grants: Vec<&Grant> = grants.iter().map(|&at| &index.grants[at]).collect();
        two_leases(group, lane, &grants, findings);
        stale_acts(group, lane, &grants, findings);
        duplicates(group, &grants, findings);
    }
    stale_renewals(index, history, findings);
}

/// Whether it was certainly granted later.
fn is_after(later: &Grant, earlier: &Grant) -> bool {
    later.sent >= earlier.ended
}

fn two_leases(group: Group, lane: Lane, grants: &[&Grant], findings: &mut Findings) {
    for (at, first) in grants.iter().enumerate() {
        for second in grants[at + 1..].iter().take_while(|second| second.ended <= first.live_until) {
            findings.case(Rule::TwoLeases);
            let end = first.surely_live_until().saturating_sub(MARGIN);
            // The second is live when its response arrives, or was granted while the first was.
            let second_counts = second.ended < second.live_until || is_after(second, first);
            if second.ended < end && second_counts && first.is_timed {
                let text = format!(
                    "{} holds {lane:?} as {} until {end:?} at least, and as {} from {:?}",
                    GROUPS[group].0, first.lease, second.lease, second.ended
                );
                findings.violation(Rule::TwoLeases, text);
            }
        }
    }
}

fn stale_acts(group: Group, lane: Lane, grants: &[&Grant], findings: &mut Findings) {
    for grant in grants {
        let next = grants.iter().filter(|other| is_after(other, grant)).map(|other| other.ended).min();
        for act in &grant.acts {
            let taken = next.is_some_and(|next| next <= act.sent);
            let expired = grant.is_timed && grant.over_by.is_some_and(|over_by| over_by + MARGIN < act.sent);
            if !taken && !expired {
                continue;
            }
            findings.case(Rule::StaleHolder);
            if act.is_done() {
                let text = format!(
                    "{} on {lane:?}: sent at {:?} under {} and accepted, which {}",
                    GROUPS[group].0,
                    act.sent,
                    grant.lease,
                    if taken { "had been granted to another since" } else { "had run out" }
                );
                findings.violation(Rule::StaleHolder, text);
            }
        }
    }
}

/// Only for leases on one lane: the response does not say which lanes were extended.
fn stale_renewals(index: &Index, history: &History, findings: &mut Findings) {
    let alone: HashMap<&str, &Grant> = index
        .grants
        .iter()
        .filter(|grant| {
            GROUPS[grant.group].2.has_plain_leases() && index.lanes_of.get(&grant.lease) == Some(&1)
        })
        .map(|grant| (&*grant.lease, grant))
        .collect();
    for renewal in &history.renewals {
        let Some(grant) = alone.get(&*renewal.lease) else { continue };
        let others = index.by_lane[&(grant.group, grant.lane)].iter().map(|&at| &index.grants[at]);
        let taken = others.filter(|other| is_after(other, grant)).any(|other| other.ended <= renewal.sent);
        if !taken {
            continue;
        }
        findings.case(Rule::StaleHolder);
        if matches!(renewal.outcome, Outcome::Answered(renewed) if renewed > 0) {
            let text = format!(
                "{} was extended at {:?}, after {:?} had been granted to another",
                renewal.lease, renewal.sent, grant.lane
            );
            findings.violation(Rule::StaleHolder, text);
        }
    }
}

fn duplicates(group: Group, grants: &[&Grant], findings: &mut Findings) {
    let mut deliveries: HashMap<Key, Vec<(&Grant, usize)>> = HashMap::new();
    for grant in grants {
        for (place, &key) in grant.keys.iter().enumerate() {
            deliveries.entry(key).or_default().push((grant, place));
        }
    }
    let group = GROUPS[group].0;
    for (key, deliveries) in deliveries {
        for (at, &(first, place)) in deliveries.iter().enumerate() {
            for &(second, _) in &deliveries[at + 1..] {
                findings.case(Rule::Duplicate);
                if let Some(text) = again_after_ack(first, place, second) {
                    findings.violation(Rule::Duplicate, format!("{key:?} came to {group} again {text}"));
                } else if is_after(second, first) && !is_explained(first, second) {
                    let text = format!(
                        "{key:?} came to {group} again at {:?}, under {}, while {} was live",
                        second.ended, second.lease, first.lease
                    );
                    findings.violation(Rule::Duplicate, text);
                }
            }
        }
    }
}

/// Whether the first lease had expired, or its holder had given it back.
fn is_explained(first: &Grant, second: &Grant) -> bool {
    !first.is_timed
        || second.ended + MARGIN >= first.live_until
        || first.nack_sent.is_some_and(|sent| sent <= second.ended)
}

fn again_after_ack(first: &Grant, place: usize, second: &Grant) -> Option<String> {
    let act = first.acts.iter().filter(|act| act.completes > place).find(|act| {
        let accepted = matches!(act.result, Outcome::Answered(settled) if settled.success);
        // Executed under the first lease, so before any later lease was granted. A no-op only shows that it was completed by the time of its
        // response.
        accepted && (act.is_done() && is_after(second, first) || second.sent >= act.ended)
    })?;
    let Grant { ended, lease, .. } = second;
    Some(format!(
        "at {ended:?}, under {lease}, although its ack at {:?} under {} was accepted",
        act.sent, first.lease
    ))
}
