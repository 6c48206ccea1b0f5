//! Messages that may be given up: each is completed in the end, or a dead letter; and that only after all its retries.

use std::collections::{HashMap, HashSet};

use super::index::Index;
use super::{Findings, Rule};
use crate::commands::chaos::admin::RETRY_LIMIT;
use crate::commands::chaos::history::{FRAIL, GIVES_UP, History, Key};

pub fn check(index: &Index, history: &History, findings: &mut Findings) {
    let dead: HashSet<Key> = history.dead.iter().copied().collect();
    let mut completed: HashSet<Key> = HashSet::new();
    // Leases under which a message was the first that was not completed.
    let mut failures: HashMap<Key, u32> = HashMap::new();
    for grant in index.grants.iter().filter(|grant| grant.group == GIVES_UP) {
        let acts = || grant.acts.iter().filter(|act| !act.is_refused());
        let done = acts().map(|act| act.completes).max().unwrap_or(0);
        completed.extend(&grant.keys[..done]);
        // An answer that was lost may have done nothing, and then the lease ran out at an earlier one.
        let sure = grant.acts.iter().filter(|act| act.is_done()).map(|act| act.completes).max().unwrap_or(0);
        for key in grant.keys.iter().skip(sure).take(done - sure + 1) {
            *failures.entry(*key).or_default() += 1;
        }
    }
    let mut early: Vec<String> = Vec::new();
    for (key, message) in index.messages.iter().filter(|(key, _)| key.lane.queue == FRAIL) {
        if message.accepted.is_none() {
            continue;
        }
        findings.case(Rule::GivenUp);
        let failures = failures.get(key).copied().unwrap_or(0);
        if !completed.contains(key) && !dead.contains(key) {
            findings.violation(Rule::GivenUp, format!("{key:?} was neither completed nor given up"));
        } else if dead.contains(key) {
            let missing = (RETRY_LIMIT + 1).saturating_sub(failures);
            early.extend((0..missing).map(|_| format!("{key:?} after {failures} of {}", RETRY_LIMIT + 1)));
        }
    }
    // A lease of which no consumer knows may have run out, and that is a failure as well.
    if early.len() as u64 > history.lost_leases_of_frail {
        let text = format!(
            "given up with failures missing, and lost answers explain {} at most: {}",
            history.lost_leases_of_frail,
            early.join(", ")
        );
        findings.violation(Rule::GivenUp, text);
    }
}
