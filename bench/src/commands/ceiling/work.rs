//! The contents of one PostgreSQL call for a scenario, at the broker's best batching. Pure.

use crate::options::Options;
use crate::scenarios::{Claim, Scenario, Shape};

/// The maximum of a broker's flight (MAX_ITEMS_PER_TX).
const FLIGHT_MESSAGES_MAX: u32 = 500;

#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// One segment per partition, with these message counts.
    Push(Vec<u32>),
    /// A batch from each of this many partitions, and the acknowledgement of all.
    Pop { rows: u32, batch: u32, auto: bool },
}

impl Work {
    /// With the requests of all clients in one call, up to the limit of a flight. None for scenarios that do not repeat one statement,
    /// and for spread pops, which need partitions that one batch empties.
    pub fn of(scenario: Scenario, options: &Options) -> Option<Work> {
        match scenario {
            Scenario::Push(Shape { batch, spread, connections }) => {
                let fit = (FLIGHT_MESSAGES_MAX / batch).max(1);
                let requests = connections.unwrap_or(options.connections).min(fit);
                Some(Work::Push(split(requests * batch, (requests * spread).min(options.partitions))))
            }
            Scenario::Pop { claim: Claim::Spread(_), .. } => None,
            Scenario::Pop { claim, batch } => Some(Work::Pop {
                rows: options.connections.min(options.partitions),
                batch,
                auto: claim == Claim::SpecificAutoAck,
            }),
            _ => None,
        }
    }

    /// Partitions per call.
    pub fn rows(&self) -> usize {
        match self {
            Work::Push(counts) => counts.len(),
            Work::Pop { rows, .. } => *rows as usize,
        }
    }
}

/// `messages` divided as evenly as possible into `parts`.
fn split(messages: u32, parts: u32) -> Vec<u32> {
    (0..parts).map(|part| messages / parts + u32::from(part < messages % parts)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios;

    fn work(name: &str) -> Option<Work> {
        let selected = scenarios::select(&[name.to_owned()]).unwrap();
        Work::of(selected[0], &Options::standard())
    }

    #[test]
    fn a_push_carries_every_clients_request_up_to_a_flight() {
        assert_eq!(work("push-1"), Some(Work::Push(vec![1; 16])));
        assert_eq!(work("push-1-c64"), Some(Work::Push(vec![1; 64])));
        assert_eq!(work("push-10"), Some(Work::Push(vec![10; 16])));
        assert_eq!(work("push-100"), Some(Work::Push(vec![100; 5])));
    }

    #[test]
    fn requests_to_the_same_partitions_share_segments() {
        let Some(Work::Push(counts)) = work("push-10x10") else { panic!("no push") };
        assert_eq!((counts.len(), counts.iter().sum::<u32>()), (64, 160));
        assert_eq!((counts[0], counts[63]), (3, 2));
    }

    #[test]
    fn pops_of_all_kinds_are_the_same_call_but_for_the_ack() {
        let pop = Work::Pop { rows: 16, batch: 10, auto: false };
        assert_eq!(work("pop-specific-10"), Some(pop.clone()));
        assert_eq!(work("pop-wildcard-10"), Some(pop));
        assert_eq!(work("pop-specific-autoack-1"), Some(Work::Pop { rows: 16, batch: 1, auto: true }));
        assert_eq!(work("pop-wildcard-100x10"), None);
        assert_eq!(work("end-to-end"), None);
    }
}
