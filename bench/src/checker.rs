//! Checks that every pushed message was received once and in order. Pure: it sees stamps, no broker.

use std::collections::HashMap;

use crate::wire::{Stamp, partition_name};

/// A higher sequence number is garbage: no run sends as many messages to one partition.
const SEQ_MAX: u32 = 50_000_000;

/// # Invariants
/// - A violation is reported for each message that was answered as queued and never received, received twice, received after a
///   later one of its (producer, partition), or never sent.
/// - A message whose push failed may or may not be received: the sender does not know.
#[derive(Debug, Default)]
pub struct Checker {
    producers_left: usize,
    streams: HashMap<(u32, u32), Stream>,
    queued: u64,
    /// Queued messages that were received at least once.
    matched: u64,
    received: u64,
    duplicates: Finding,
    reordered: Finding,
    unknown: Finding,
}

/// The messages of one producer in one partition, by sequence number.
#[derive(Debug, Default)]
struct Stream {
    messages: Vec<Fate>,
    last: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Fate {
    sent: bool,
    queued: bool,
    received: bool,
}

#[derive(Debug, Default)]
struct Finding {
    count: u64,
    first: Option<String>,
}

impl Checker {
    pub fn new(producers: usize) -> Checker {
        Checker { producers_left: producers, ..Checker::default() }
    }

    /// `queued`: the broker responded that it stored the message.
    pub fn sent(&mut self, producer: u32, partition: u32, seq: u32, queued: bool) {
        let fate = self.streams.entry((producer, partition)).or_default().at(seq);
        fate.sent = true;
        fate.queued = queued;
        if queued {
            self.queued += 1;
            // A consumer may be faster than the response to the producer.
            self.matched += u64::from(fate.received);
        }
    }

    pub fn producer_done(&mut self) {
        self.producers_left = self.producers_left.saturating_sub(1);
    }

    /// Call in the order of receipt, before the acknowledgement allows the partition's next batch.
    pub fn receive(&mut self, partition: &str, stamp: Option<Stamp>) {
        self.received += 1;
        let Some(stamp) = stamp.filter(|stamp| stamp.seq < SEQ_MAX) else {
            return self.unknown.add(|| format!("a foreign payload in partition {partition}"));
        };
        if partition != partition_name(stamp.partition) {
            return self.unknown.add(|| format!("{stamp:?} arrived in partition {partition}"));
        }
        let stream = self.streams.entry((stamp.producer, stamp.partition)).or_default();
        let last = stream.last;
        let fate = stream.at(stamp.seq);
        if fate.received {
            return self.duplicates.add(|| format!("{stamp:?}"));
        }
        fate.received = true;
        self.matched += u64::from(fate.queued);
        match last {
            Some(last) if stamp.seq < last => self.reordered.add(|| format!("{stamp:?} after seq {last}")),
            _ => stream.last = Some(stamp.seq),
        }
    }

    pub fn producers_done(&self) -> bool {
        self.producers_left == 0
    }

    /// Consumers have received everything.
    pub fn complete(&self) -> bool {
        self.producers_done() && self.matched == self.queued
    }

    pub fn queued(&self) -> u64 {
        self.queued
    }

    pub fn received(&self) -> u64 {
        self.received
    }

    /// One line per kind of violation; empty if there is none.
    pub fn violations(&self) -> Vec<String> {
        let mut lost = Finding::default();
        let mut unknown = Finding { count: self.unknown.count, first: self.unknown.first.clone() };
        for ((producer, partition), stream) in &self.streams {
            for (seq, fate) in stream.messages.iter().enumerate() {
                let describe = || format!("producer {producer}, partition {partition}, seq {seq}");
                match fate {
                    Fate { queued: true, received: false, .. } => lost.add(describe),
                    Fate { sent: false, received: true, .. } => unknown.add(describe),
                    _ => {}
                }
            }
        }
        let kinds = [
            ("lost", &lost),
            ("received more than once", &self.duplicates),
            ("received out of order", &self.reordered),
            ("received but never sent", &unknown),
        ];
        let describe = |(kind, finding): (&str, &Finding)| {
            let first = finding.first.as_ref()?;
            Some(format!("{} of {} messages {kind}, first: {first}", finding.count, self.queued))
        };
        kinds.into_iter().filter_map(describe).collect()
    }
}

impl Stream {
    fn at(&mut self, seq: u32) -> &mut Fate {
        let index = seq as usize;
        if index >= self.messages.len() {
            self.messages.resize(index + 1, Fate::default());
        }
        &mut self.messages[index]
    }
}

impl Finding {
    fn add(&mut self, describe: impl FnOnce() -> String) {
        self.count += 1;
        self.first.get_or_insert_with(describe);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(seq: u32) -> Option<Stamp> {
        Some(Stamp { producer: 1, partition: 2, seq, sent: 0 })
    }

    /// A producer that sent 0, 1 and 2, and a consumer that received `seqs`.
    fn after(seqs: &[u32]) -> Checker {
        let mut checker = Checker::new(1);
        for seq in 0..3 {
            checker.sent(1, 2, seq, true);
        }
        checker.producer_done();
        for &seq in seqs {
            checker.receive("p2", stamp(seq));
        }
        checker
    }

    fn only_violation(checker: &Checker) -> String {
        let violations = checker.violations();
        assert_eq!(violations.len(), 1, "{violations:?}");
        violations.into_iter().next().unwrap()
    }

    #[test]
    fn everything_once_and_in_order_is_fine() {
        let checker = after(&[0, 1, 2]);
        assert!(checker.complete());
        assert_eq!(checker.violations(), Vec::<String>::new());
    }

    #[test]
    fn a_missing_message_is_lost_and_keeps_the_run_open() {
        let checker = after(&[0, 2]);
        assert!(!checker.complete());
        let violation = only_violation(&checker);
        assert_eq!(violation, "1 of 3 messages lost, first: producer 1, partition 2, seq 1");
    }

    #[test]
    fn a_repeated_message_is_found_and_does_not_make_up_for_a_lost_one() {
        assert!(only_violation(&after(&[0, 1, 1, 2])).contains("more than once"));
        let checker = after(&[0, 1, 1]);
        assert!(!checker.complete());
        assert_eq!(checker.violations().len(), 2);
    }

    #[test]
    fn a_swapped_pair_is_out_of_order() {
        let violation = only_violation(&after(&[0, 2, 1]));
        assert!(violation.contains("1 of 3 messages received out of order"), "{violation}");
    }

    #[test]
    fn a_message_that_was_never_sent_is_unknown() {
        assert!(only_violation(&after(&[0, 1, 2, 7])).contains("never sent"));
        let mut foreign = after(&[0, 1, 2]);
        foreign.receive("p2", None);
        assert!(only_violation(&foreign).contains("foreign payload"));
        let mut misrouted = after(&[0, 1]);
        misrouted.receive("p9", stamp(2));
        assert_eq!(misrouted.violations().len(), 2, "lost where it belongs, unknown where it came out");
    }

    #[test]
    fn a_push_that_failed_may_arrive_or_not() {
        for arrives in [true, false] {
            let mut checker = after(&[0, 1, 2]);
            checker.sent(1, 2, 3, false);
            if arrives {
                checker.receive("p2", stamp(3));
            }
            assert!(checker.complete());
            assert!(checker.violations().is_empty());
        }
    }

    #[test]
    fn a_receipt_before_the_answer_counts() {
        let mut checker = Checker::new(1);
        checker.receive("p2", stamp(0));
        assert!(!checker.complete());
        checker.sent(1, 2, 0, true);
        checker.producer_done();
        assert!(checker.complete());
        assert!(checker.violations().is_empty());
    }
}
