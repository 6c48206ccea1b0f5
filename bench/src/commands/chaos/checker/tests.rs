//! Every rule, on histories that keep it and on histories that violate it.

use std::time::Duration;

use uuid::Uuid;

use super::{Findings, Rule, check};
use crate::commands::chaos::history::{
    AUTO, FLEETERS, FLEETING, FRAIL, GIVES_UP, History, Key, Lane, MOVERS, Outcome, Pop, Push, REPEATS,
    REWOUND, Receipt, Renewal, SINK, SOURCE, Seek, Settle, Settled, Span, Transaction, Verdict, groups_of,
};

const LEASE: Duration = Duration::from_secs(2);
const ALPHA: usize = 0;
const SLEEPERS: usize = 5;
const AWAY: usize = 6;
const DOZERS: usize = 12;
const DONE: Settled = Settled { success: true, noop: false, deferred: false };
const NOOP: Settled = Settled { success: true, noop: true, deferred: false };
const REFUSED: Settled = Settled { success: false, noop: false, deferred: false };

fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

fn key(seq: u32) -> Key {
    Key { lane: Lane { queue: SOURCE, number: 1 }, seq }
}

fn output(seq: u32) -> Key {
    Key { lane: Lane { queue: SINK, number: 1 }, seq }
}

fn id(key: Key) -> Uuid {
    Uuid::from_u128(u128::from(key.seq) + (u128::from(key.lane.queue) << 64))
}

/// Requests take 10 ms; times are in milliseconds.
#[derive(Default)]
struct Story(History);

impl Story {
    fn push(mut self, at: u64, seqs: &[u32]) -> Story {
        let items: Vec<Key> = seqs.iter().map(|&seq| key(seq)).collect();
        let receipts = items.iter().map(|&key| Receipt::Stored(id(key))).collect();
        self.0.push(Push {
            sent: ms(at),
            ended: ms(at + 10),
            broker: 0,
            items,
            outcome: Outcome::Answered(receipts),
        });
        self
    }

    fn push_to(mut self, at: u64, broker: usize, seq: u32, outcome: Outcome<Receipt>) -> Story {
        let outcome = match outcome {
            Outcome::Answered(receipt) => Outcome::Answered(vec![receipt]),
            Outcome::Unknown => Outcome::Unknown,
        };
        self.0.push(Push { sent: ms(at), ended: ms(at + 10), broker, items: vec![key(seq)], outcome });
        self
    }

    fn pop_as(mut self, at: u64, group: usize, lease: &str, messages: Vec<(Key, Uuid)>) -> Story {
        let (lease, wait) = (lease.to_owned(), Duration::ZERO);
        let (sent, ended) = (ms(at), ms(at + 10));
        self.0.pop(Pop { sent, ended, broker: 0, group, lease, lease_time: LEASE, wait, messages });
        self
    }

    /// A pop that waited for this time.
    fn waited(self, from: u64, at: u64, seq: u32) -> Story {
        self.waited_as(SLEEPERS, from, at, seq)
    }

    fn waited_as(mut self, group: usize, from: u64, at: u64, seq: u32) -> Story {
        let messages = vec![(key(seq), id(key(seq)))];
        let (lease, wait) = (format!("waited-{at}"), Duration::from_secs(180));
        let (sent, ended) = (ms(from), ms(at));
        self.0.pop(Pop { sent, ended, broker: 0, group, lease, lease_time: LEASE, wait, messages });
        self
    }

    fn fault(mut self, from: u64, until: u64) -> Story {
        self.0.faults.push(Span { from: ms(from), until: ms(until) });
        self
    }

    fn clock_jump(mut self, from: u64, until: u64) -> Story {
        self.0.clock_jumps.push(Span { from: ms(from), until: ms(until) });
        self
    }

    fn seek(mut self, at: u64, outcome: Outcome<()>) -> Story {
        self.0.seeks.push(Seek { sent: ms(at), outcome });
        self
    }

    /// To a queue of its own: like `push`, `pop` and `settle`.
    fn push_into(mut self, at: u64, items: &[Key]) -> Story {
        let receipts = items.iter().map(|&key| Receipt::Stored(id(key))).collect();
        let (items, outcome) = (items.to_vec(), Outcome::Answered(receipts));
        self.0.push(Push { sent: ms(at), ended: ms(at + 10), broker: 0, items, outcome });
        self
    }

    fn pop_from(self, at: u64, group: usize, lease: &str, keys: &[Key]) -> Story {
        self.pop_as(at, group, lease, keys.iter().map(|&key| (key, id(key))).collect())
    }

    fn settle_in(mut self, at: u64, lease: &str, key: Key, verdict: Verdict) -> Story {
        let (sent, ended, lease) = (ms(at), ms(at + 10), lease.to_owned());
        let (items, outcome) = (vec![(key, verdict)], Outcome::Answered(vec![DONE]));
        self.0.settles.push(Settle { sent, ended, lease, lane: key.lane, items, outcome });
        self
    }

    fn pop(self, at: u64, lease: &str, seqs: &[u32]) -> Story {
        let messages = seqs.iter().map(|&seq| (key(seq), id(key(seq)))).collect();
        self.pop_as(at, ALPHA, lease, messages)
    }

    /// Completes what was delivered up to this one.
    fn ack(self, at: u64, lease: &str, seq: u32, answer: Settled) -> Story {
        self.settle(at, lease, &[(seq, Verdict::Completed)], Outcome::Answered(answer))
    }

    fn nack(self, at: u64, lease: &str, seq: u32) -> Story {
        self.settle(at, lease, &[(seq, Verdict::Again)], Outcome::Answered(DONE))
    }

    fn settle(mut self, at: u64, lease: &str, items: &[(u32, Verdict)], outcome: Outcome<Settled>) -> Story {
        let outcome = match outcome {
            Outcome::Answered(answer) => Outcome::Answered(vec![answer; items.len()]),
            Outcome::Unknown => Outcome::Unknown,
        };
        let items: Vec<(Key, Verdict)> = items.iter().map(|&(seq, verdict)| (key(seq), verdict)).collect();
        let (lease, lane) = (lease.to_owned(), key(0).lane);
        self.0.settles.push(Settle { sent: ms(at), ended: ms(at + 10), lease, lane, items, outcome });
        self
    }

    fn renew(mut self, at: u64, lease: &str, outcome: Outcome<u32>) -> Story {
        let (sent, ended) = (ms(at), ms(at + 10));
        self.0.renewals.push(Renewal { sent, ended, lease: lease.to_owned(), extension: LEASE, outcome });
        self
    }

    /// Moves these messages into two of the sink.
    fn transaction(
        mut self,
        at: u64,
        number: u32,
        lease: &str,
        seqs: &[u32],
        outcome: Outcome<bool>,
    ) -> Story {
        self.0.transaction(Transaction {
            sent: ms(at),
            ended: ms(at + 10),
            number,
            broker: 0,
            lease: lease.to_owned(),
            sources: seqs.iter().map(|&seq| key(seq)).collect(),
            outputs: vec![output(number * 2), output(number * 2 + 1)],
            outcome,
        });
        self
    }

    /// Delivers these messages of the sink to both its groups.
    fn sink(mut self, at: u64, outputs: &[u32]) -> Story {
        for group in groups_of(SINK) {
            let messages = outputs.iter().map(|&seq| (output(seq), id(output(seq)))).collect();
            self = self.pop_as(at, group, &format!("sink-{at}-{group}"), messages);
        }
        self
    }

    fn check(self) -> Findings {
        check(&self.0)
    }

    /// The number of violations of this rule. The stories are too short to keep all other rules.
    fn breaks(self, rule: Rule) -> usize {
        self.check().violations_of(rule)
    }
}

#[test]
fn a_history_in_which_all_goes_well_has_no_violation() {
    let mut story = Story::default().push(0, &[0, 1]).push(20, &[2]);
    for group in groups_of(SOURCE) {
        let messages = [0, 1, 2].map(|seq| (key(seq), id(key(seq)))).to_vec();
        story = story.pop_as(40, group, &format!("lease-{group}"), messages);
    }
    let story = story
        .ack(60, "lease-0", 2, DONE)
        .ack(60, "lease-1", 2, DONE)
        .transaction(60, 0, &format!("lease-{MOVERS}"), &[0, 1, 2], Outcome::Answered(true))
        .sink(80, &[0, 1])
        .pop_from(90, AUTO, "auto", &[key(0), key(1), key(2)]);
    let findings = story.check();
    assert_eq!(findings.violations, []);
    assert_eq!(findings.cases(Rule::Lost), 6 * 3 + 3 * 2);
    assert_eq!(findings.cases(Rule::Atomic), 1);
}

#[test]
fn what_was_accepted_must_come_to_every_group_and_what_is_unknown_need_not() {
    let accepted = || Story::default().push(0, &[0]).pop(20, "a", &[0]);
    assert_eq!(accepted().breaks(Rule::Lost), 5);
    let spooled = Story::default().push_to(0, 0, 0, Outcome::Answered(Receipt::Buffered(id(key(0)))));
    assert_eq!(spooled.breaks(Rule::Lost), 6);
    assert_eq!(Story::default().push_to(0, 0, 0, Outcome::Unknown).breaks(Rule::Lost), 0);
    assert_eq!(Story::default().push_to(0, 0, 0, Outcome::Answered(Receipt::Failed)).breaks(Rule::Lost), 0);
}

#[test]
fn what_was_pushed_to_a_new_partition_while_a_group_was_away_must_come_to_it() {
    let old = Key { lane: Lane { queue: SOURCE, number: 7 }, seq: 0 };
    let created = Key { lane: Lane { queue: SOURCE, number: 8 }, seq: 0 };
    // The group reads once and is away while the second partition is created. All others complete its messages.
    let away = || {
        let story = Story::default().push_into(0, &[old]).pop_from(20, AWAY, "first", &[old]);
        let story = story.settle_in(40, "first", old, Verdict::Completed).push_into(1_000, &[created]);
        groups_of(SOURCE).filter(|&group| group != AWAY).fold(story, |story, group| {
            let lease = format!("lease-{group}");
            let story = story.pop_from(1_100, group, &lease, &[old, created]);
            let story = story.settle_in(1_200, &lease, old, Verdict::Completed);
            story.settle_in(1_200, &lease, created, Verdict::Completed)
        })
    };
    assert_eq!(away().pop_from(60_000, AWAY, "back", &[created]).breaks(Rule::Lost), 0);
    // Removed, because all groups that had read the partition had completed it.
    assert_eq!(away().pop_from(60_000, AWAY, "back", &[]).breaks(Rule::Lost), 1);
}

#[test]
fn a_message_may_not_come_before_one_that_was_accepted_earlier() {
    let pushed = || Story::default().push(0, &[0]).push(20, &[1]).push(40, &[2]);
    assert_eq!(pushed().pop(60, "a", &[0, 1, 2]).breaks(Rule::Order), 0);
    assert_eq!(pushed().pop(60, "a", &[0, 2]).breaks(Rule::Order), 1);
    assert_eq!(pushed().pop(60, "a", &[0, 2, 1]).breaks(Rule::Order), 1);
    assert_eq!(pushed().pop(60, "a", &[1]).breaks(Rule::Order), 1);
    // It is unknown whether the previous one is stored.
    let unknown = Story::default().push_to(0, 0, 0, Outcome::Unknown).push(20, &[1]);
    assert_eq!(unknown.pop(40, "a", &[1]).breaks(Rule::Order), 0);
}

#[test]
fn what_was_not_completed_may_not_be_skipped() {
    let delivered = || Story::default().push(0, &[0]).push(20, &[1]).pop(40, "a", &[0]);
    assert_eq!(delivered().ack(60, "a", 0, DONE).pop(80, "b", &[1]).breaks(Rule::Order), 0);
    let lost_answer = delivered().settle(60, "a", &[(0, Verdict::Completed)], Outcome::Unknown);
    assert_eq!(lost_answer.pop(80, "b", &[1]).breaks(Rule::Order), 0);
    // Delivered, but given back, refused, forgotten, or completed only later.
    assert_eq!(delivered().nack(60, "a", 0).pop(80, "b", &[1]).breaks(Rule::Order), 1);
    assert_eq!(delivered().ack(60, "a", 0, REFUSED).pop(80, "b", &[1]).breaks(Rule::Order), 1);
    assert_eq!(delivered().pop(3_000, "b", &[1]).breaks(Rule::Order), 1);
    assert_eq!(delivered().pop(80, "b", &[1]).ack(100, "a", 0, DONE).breaks(Rule::Order), 1);
}

#[test]
fn only_a_writer_that_changes_brokers_may_overtake_spooled_messages() {
    let spooled = || Story::default().push_to(0, 0, 0, Outcome::Answered(Receipt::Buffered(id(key(0)))));
    let stored = |broker| spooled().push_to(20, broker, 1, Outcome::Answered(Receipt::Stored(id(key(1)))));
    assert_eq!(stored(1).pop(40, "a", &[1]).breaks(Rule::Order), 0);
    assert_eq!(stored(0).pop(40, "a", &[1]).breaks(Rule::Order), 1);
}

#[test]
fn a_lease_may_not_be_granted_beside_a_live_one() {
    let held = || Story::default().push(0, &[0, 1]).pop(100, "a", &[0]);
    assert_eq!(held().pop(1_000, "b", &[0]).breaks(Rule::TwoLeases), 1);
    assert_eq!(held().pop(2_150, "b", &[0]).breaks(Rule::TwoLeases), 0);
    // Ended by its holder.
    assert_eq!(held().ack(500, "a", 0, DONE).pop(600, "b", &[1]).breaks(Rule::TwoLeases), 0);
    assert_eq!(held().nack(500, "a", 0).pop(600, "b", &[0]).breaks(Rule::TwoLeases), 0);
    // Another group has its own leases.
    let other = held().pop_as(200, ALPHA + 1, "b", vec![(key(0), id(key(0)))]);
    assert_eq!(other.breaks(Rule::TwoLeases), 0);
    // Completed in part: the rest is still held.
    let partly = Story::default().push(0, &[0, 1]).pop(100, "a", &[0, 1]).ack(500, "a", 0, DONE);
    assert_eq!(partly.pop(600, "b", &[1]).breaks(Rule::TwoLeases), 1);
}

#[test]
fn an_extension_counts_if_it_was_granted() {
    let renewed = |outcome| {
        let story = Story::default().push(0, &[0]).pop(100, "a", &[0]).renew(1_500, "a", outcome);
        story.pop(3_000, "b", &[0]).breaks(Rule::TwoLeases)
    };
    assert_eq!(renewed(Outcome::Answered(1)), 1);
    assert_eq!(renewed(Outcome::Answered(0)), 0);
    assert_eq!(renewed(Outcome::Unknown), 0);
}

#[test]
fn nothing_is_accepted_from_a_holder_whose_lease_is_over() {
    let taken = || Story::default().push(0, &[0]).pop(0, "a", &[0]).pop(2_500, "b", &[0]);
    assert_eq!(taken().ack(2_600, "a", 0, DONE).breaks(Rule::StaleHolder), 1);
    assert_eq!(taken().nack(2_600, "a", 0).breaks(Rule::StaleHolder), 1);
    assert_eq!(taken().renew(2_600, "a", Outcome::Answered(1)).breaks(Rule::StaleHolder), 1);
    for answer in [REFUSED, NOOP] {
        let findings = taken().ack(2_600, "a", 0, answer).check();
        assert_eq!((findings.cases(Rule::StaleHolder), findings.violations_of(Rule::StaleHolder)), (1, 0));
    }
    assert_eq!(taken().renew(2_600, "a", Outcome::Answered(0)).breaks(Rule::StaleHolder), 0);
    // No other took it over, but it had expired.
    let expired = || Story::default().push(0, &[0]).pop(0, "a", &[0]);
    assert_eq!(expired().ack(2_600, "a", 0, DONE).breaks(Rule::StaleHolder), 1);
    assert_eq!(expired().ack(1_900, "a", 0, DONE).breaks(Rule::StaleHolder), 0);
    assert_eq!(
        expired().renew(1_500, "a", Outcome::Answered(1)).ack(2_600, "a", 0, DONE).breaks(Rule::StaleHolder),
        0
    );
    assert_eq!(
        expired().renew(1_500, "a", Outcome::Unknown).ack(2_600, "a", 0, DONE).breaks(Rule::StaleHolder),
        0
    );
    // A lost response may have held the lease, but only while there was one to hold.
    let lost = |at, renewed: Option<u64>| {
        let story = expired().settle(at, "a", &[(0, Verdict::Completed)], Outcome::Unknown);
        let story = renewed.into_iter().fold(story, |story, at| story.renew(at, "a", Outcome::Answered(1)));
        story.ack(3_600, "a", 0, DONE).breaks(Rule::StaleHolder)
    };
    assert_eq!(lost(1_500, None), 0);
    assert_eq!(lost(2_600, None), 1);
    assert_eq!(lost(2_600, Some(1_000)), 0);
    let renewed = |at| expired().renew(at, "a", Outcome::Unknown).ack(2_600, "a", 0, DONE);
    assert_eq!(renewed(2_500).breaks(Rule::StaleHolder), 1);
}

#[test]
fn what_was_completed_never_comes_again() {
    let acked = |answer| Story::default().push(0, &[0]).pop(100, "a", &[0]).ack(500, "a", 0, answer);
    assert_eq!(acked(DONE).pop(3_000, "b", &[0]).breaks(Rule::Duplicate), 1);
    assert_eq!(acked(NOOP).pop(3_000, "b", &[0]).breaks(Rule::Duplicate), 1);
    assert_eq!(acked(REFUSED).pop(3_000, "b", &[0]).breaks(Rule::Duplicate), 0);
    let deferred = Settled { deferred: true, ..DONE };
    assert_eq!(acked(deferred).pop(3_000, "b", &[0]).breaks(Rule::Duplicate), 1);
    // Both pops were in progress at once: which lease is older is unknown.
    let beside = Story::default().push(0, &[0]).pop(100, "a", &[0]).ack(500, "a", 0, DONE);
    assert_eq!(beside.pop(105, "b", &[0]).breaks(Rule::Duplicate), 0);
    // Acknowledged with the last of its batch.
    let batch = Story::default().push(0, &[0, 1]).pop(100, "a", &[0, 1]).ack(500, "a", 1, DONE);
    assert_eq!(batch.pop(3_000, "b", &[0]).breaks(Rule::Duplicate), 1);
}

#[test]
fn what_comes_again_needs_a_reason() {
    let held = || Story::default().push(0, &[0, 1]).pop(100, "a", &[0, 1]);
    assert_eq!(held().pop(500, "b", &[0]).breaks(Rule::Duplicate), 1);
    assert_eq!(held().pop(2_200, "b", &[0]).breaks(Rule::Duplicate), 0);
    assert_eq!(held().nack(300, "a", 0).pop(500, "b", &[0]).breaks(Rule::Duplicate), 0);
    // A lost acknowledgement explains nothing: executed, it would not be redelivered, and otherwise the lease is still there.
    let lost = held().settle(300, "a", &[(1, Verdict::Completed)], Outcome::Unknown);
    assert_eq!(lost.pop(500, "b", &[0]).breaks(Rule::Duplicate), 1);
    assert_eq!(Story::default().push(0, &[0]).pop(100, "a", &[0, 0]).breaks(Rule::Duplicate), 1);
}

#[test]
fn a_transaction_is_whole_or_nothing() {
    let of = |outcome, outputs: &[u32]| {
        let taken = Story::default().push(0, &[0]).pop_as(20, MOVERS, "a", vec![(key(0), id(key(0)))]);
        taken.transaction(40, 0, "a", &[0], outcome).sink(60, outputs).check().violations
    };
    let broken = |outcome, outputs: &[u32]| {
        let violations = of(outcome, outputs);
        // The checker also reports that no transaction has moved its source; only violations of
        // this transaction are counted.
        violations.iter().filter(|one| one.rule == Rule::Atomic && one.text.contains("transaction 0")).count()
    };
    for (outputs, violations) in [(&[0, 1][..], 0), (&[0], 1), (&[], 1)] {
        assert_eq!(broken(Outcome::Answered(true), outputs), violations, "committed, {outputs:?}");
    }
    for (outputs, violations) in [(&[0, 1][..], 1), (&[0], 1), (&[], 0)] {
        assert_eq!(broken(Outcome::Answered(false), outputs), violations, "refused, {outputs:?}");
    }
    for (outputs, violations) in [(&[0, 1][..], 0), (&[1], 1), (&[], 0)] {
        assert_eq!(broken(Outcome::Unknown, outputs), violations, "unknown, {outputs:?}");
    }
}

#[test]
fn a_source_message_is_moved_by_exactly_one_transaction() {
    let taken = || Story::default().push(0, &[0]).pop_as(20, MOVERS, "a", vec![(key(0), id(key(0)))]);
    assert_eq!(taken().breaks(Rule::Atomic), 1);
    let once = || taken().transaction(40, 0, "a", &[0], Outcome::Answered(true));
    assert_eq!(once().sink(80, &[0, 1]).breaks(Rule::Atomic), 0);
    let again = once().pop_as(3_000, MOVERS, "b", vec![(key(0), id(key(0)))]).transaction(
        3_020,
        1,
        "b",
        &[0],
        Outcome::Unknown,
    );
    assert_eq!(again.sink(3_040, &[0, 1, 2, 3]).breaks(Rule::Atomic), 1);
    // A second attempt is not a second transaction.
    let tried = taken().transaction(40, 0, "a", &[0], Outcome::Unknown).transaction(
        60,
        0,
        "a",
        &[0],
        Outcome::Answered(false),
    );
    assert_eq!(tried.sink(80, &[0, 1]).breaks(Rule::Atomic), 0);
}

/// The last attempt gets the response.
fn answered_with(receipt: Receipt, tries: u64) -> Story {
    let unknown = |story: Story, at| story.push_to(at, 0, 0, Outcome::Unknown);
    let story = (1..tries).fold(Story::default(), unknown);
    story.push_to(20, 0, 0, Outcome::Answered(receipt))
}

#[test]
fn a_message_has_one_id_which_is_the_returned_one() {
    let sent = |tries: usize| {
        let story =
            (1..tries).fold(Story::default(), |story, at| story.push_to(at as u64, 0, 0, Outcome::Unknown));
        story.push(20, &[0])
    };
    let delivered = |story: Story, ids: &[u128]| {
        let pops = ids.iter().enumerate();
        let pop = |story: Story, (at, &id): (usize, &u128)| {
            let messages = vec![(key(0), Uuid::from_u128(id))];
            story.pop_as(40 + 3_000 * at as u64, ALPHA, &format!("lease-{at}"), messages)
        };
        pops.fold(story, pop).breaks(Rule::StoredTwice)
    };
    let told = id(key(0)).as_u128();
    assert_eq!(delivered(sent(1), &[told]), 0);
    assert_eq!(delivered(sent(1), &[told + 7]), 1);
    assert_eq!(delivered(sent(2), &[told, told]), 0);
    assert_eq!(delivered(sent(2), &[told, told + 7]), 1);
    assert_eq!(delivered(sent(2), &[told + 7]), 1);
    // Spooled or deferred, while another attempt of it was stored.
    for receipt in [Receipt::Buffered, Receipt::Deferred] {
        let answered = |tries| answered_with(receipt(Uuid::from_u128(told)), tries);
        assert_eq!(delivered(answered(2), &[told + 7]), 0);
        assert_eq!(delivered(answered(1), &[told + 7]), 1);
    }
    // It was never sent.
    assert_eq!(delivered(Story::default(), &[told]), 1);
}

fn of(queue: u8, seq: u32) -> Key {
    Key { lane: Lane { queue, number: 1 }, seq }
}

#[test]
fn a_waiting_pop_may_not_sleep_beside_a_message() {
    let pushed = || Story::default().push(1_000, &[0]);
    assert_eq!(pushed().waited(500, 1_500, 0).breaks(Rule::Asleep), 0);
    assert_eq!(pushed().waited(500, 30_000, 0).breaks(Rule::Asleep), 1);
    // It was late itself, or a fault was active.
    assert_eq!(pushed().waited(29_000, 30_000, 0).breaks(Rule::Asleep), 0);
    assert_eq!(pushed().fault(2_000, 15_000).waited(500, 30_000, 0).breaks(Rule::Asleep), 0);
    assert_eq!(pushed().fault(2_000, 5_000).waited(500, 30_000, 0).breaks(Rule::Asleep), 1);
}

#[test]
fn a_waiting_pop_may_not_sleep_once_the_lease_on_its_partition_is_over() {
    // The first is delivered and forgotten; the second comes while the lease lives, which is over at 3,110.
    let leased = || Story::default().push(1_000, &[0]).pop_as(1_100, DOZERS, "a", vec![(key(0), id(key(0)))]);
    let waits = |story: Story, until| story.push(1_500, &[1]).waited_as(DOZERS, 1_600, until, 0);
    assert_eq!(waits(leased(), 3_200).breaks(Rule::Asleep), 0);
    assert_eq!(waits(leased(), 23_000).breaks(Rule::Asleep), 0);
    assert_eq!(waits(leased(), 23_200).breaks(Rule::Asleep), 1);
    assert_eq!(waits(leased().renew(3_000, "a", Outcome::Answered(1)), 24_900).breaks(Rule::Asleep), 0);
    assert_eq!(waits(leased().renew(3_000, "a", Outcome::Answered(1)), 25_100).breaks(Rule::Asleep), 1);
    // Given back, or completed, so that the second one is the next.
    assert_eq!(waits(leased().nack(1_300, "a", 0), 23_200).breaks(Rule::Asleep), 1);
    let done = leased().ack(1_300, "a", 0, DONE).push(1_500, &[1]);
    assert_eq!(done.waited_as(DOZERS, 1_600, 23_200, 1).breaks(Rule::Asleep), 1);
    // It is unknown until when it was held, or when a lease of its length ended.
    let unknown = leased().settle(1_300, "a", &[(0, Verdict::Completed)], Outcome::Unknown);
    assert_eq!(waits(unknown, 23_200).breaks(Rule::Asleep), 0);
    assert_eq!(waits(leased().clock_jump(1_200, 1_300), 23_200).breaks(Rule::Asleep), 0);
}

#[test]
fn a_waiting_pop_may_not_sleep_while_its_broker_serves_others_whatever_faults_come() {
    let slept = |broker: usize, queue: u8, pops: u64| {
        let mut story = Story::default().push(1_000, &[0]).fault(2_000, 28_000).waited(500, 29_000, 0);
        for at in 0..pops {
            let other = Key { lane: Lane { queue, number: 2 }, seq: at as u32 };
            let (sent, ended) = (ms(5_000 + 1_000 * at), ms(5_010 + 1_000 * at));
            let (lease, messages) = (format!("other-{at}"), vec![(other, id(other))]);
            let wait = Duration::ZERO;
            story.0.pop(Pop { sent, ended, broker, group: ALPHA, lease, lease_time: LEASE, wait, messages });
        }
        story.breaks(Rule::Asleep)
    };
    assert_eq!(slept(0, SOURCE, 10), 1);
    assert_eq!(slept(0, SOURCE, 9), 0);
    // Another broker or queue does not matter for this one.
    assert_eq!(slept(1, SOURCE, 10), 0);
    assert_eq!(slept(0, SINK, 10), 0);
}

#[test]
fn messages_of_one_request_come_in_its_order_and_all_of_them() {
    let pushed = || Story::default().push(0, &[0, 1, 2]);
    assert_eq!(pushed().pop(60, "a", &[0, 1, 2]).breaks(Rule::Order), 0);
    assert_eq!(pushed().pop(60, "a", &[0, 2]).breaks(Rule::Order), 1);
    assert_eq!(pushed().pop(60, "a", &[1, 0, 2]).breaks(Rule::Order), 1);
}

#[test]
fn a_dead_letter_is_sent_back_once() {
    let letter = of(FRAIL, 0);
    let stored = |given_up: u64, ids: u128| {
        let story = (0..2 * given_up).fold(Story::default().push_into(0, &[letter]), |story, round| {
            let (at, lease) = (100 + 100 * round, format!("try-{round}"));
            let messages = vec![(letter, Uuid::from_u128(id(letter).as_u128() + u128::from(round / 2)))];
            story.pop_as(at, GIVES_UP, &lease, messages).settle_in(at + 20, &lease, letter, Verdict::Again)
        });
        let last = |story: Story, at: u128| {
            let messages = vec![(letter, Uuid::from_u128(id(letter).as_u128() + at))];
            story.pop_as(2_000 + 10 * at as u64, GIVES_UP, &format!("last-{at}"), messages)
        };
        (u128::from(given_up)..ids).fold(story, last).breaks(Rule::StoredTwice)
    };
    assert_eq!(stored(0, 1), 0);
    assert_eq!(stored(0, 2), 1);
    assert_eq!(stored(1, 2), 0);
    assert_eq!(stored(1, 3), 1);
    assert_eq!(stored(2, 3), 0);
}

#[test]
fn a_group_that_was_sent_back_must_read_everything_again() {
    let read = || Story::default().push_into(0, &[of(SINK, 0)]).pop_from(50, REWOUND, "a", &[of(SINK, 0)]);
    assert_eq!(read().seek(100, Outcome::Answered(())).breaks(Rule::Replayed), 1);
    assert_eq!(read().seek(100, Outcome::Unknown).breaks(Rule::Replayed), 0);
    let again = read().seek(100, Outcome::Answered(())).pop_from(150, REWOUND, "b", &[of(SINK, 0)]);
    assert_eq!(again.breaks(Rule::Replayed), 0);
    let later = read().seek(100, Outcome::Answered(())).push_into(200, &[of(SINK, 1)]);
    assert_eq!(later.breaks(Rule::Replayed), 1);
}

#[test]
fn what_was_sent_after_the_last_delete_of_its_queue_must_come() {
    let deleted = |mut story: Story| {
        story.0.deletes.push(Span { from: ms(500), until: ms(600) });
        story.breaks(Rule::Lost)
    };
    assert_eq!(deleted(Story::default().push_into(400, &[of(FLEETING, 0)])), 0);
    assert_eq!(deleted(Story::default().push_into(900, &[of(FLEETING, 0)])), 1);
    let came = Story::default().push_into(900, &[of(FLEETING, 0)]);
    assert_eq!(deleted(came.pop_from(950, FLEETERS, "a", &[of(FLEETING, 0)])), 0);
}

#[test]
fn what_was_sent_before_a_delete_of_its_queue_may_be_stored_again_behind_it() {
    let fleeting = of(FLEETING, 0);
    let stored_again = |deleted: Option<(u64, u64)>| {
        let mut story =
            Story::default().push_into(400, &[fleeting]).pop_from(450, FLEETERS, "a", &[fleeting]);
        story = story.pop_as(900, FLEETERS, "b", vec![(fleeting, Uuid::from_u128(77))]);
        story.0.deletes.extend(deleted.map(|(from, until)| Span { from: ms(from), until: ms(until) }));
        story.breaks(Rule::StoredTwice)
    };
    assert_eq!(stored_again(Some((500, 600))), 0);
    assert_eq!(stored_again(None), 1);
    // Before it was sent, or after it had been delivered as both.
    assert_eq!(stored_again(Some((100, 300))), 1);
    assert_eq!(stored_again(Some((2_000, 2_100))), 1);
    // Its sender only knows the first of the two ids.
    let told = |deleted| {
        let mut story = Story::default().push_into(400, &[fleeting]);
        story = story.pop_as(900, FLEETERS, "b", vec![(fleeting, Uuid::from_u128(77))]);
        story.0.deletes.push(deleted);
        story.breaks(Rule::StoredTwice)
    };
    assert_eq!(told(Span { from: ms(500), until: ms(600) }), 0);
    assert_eq!(told(Span { from: ms(100), until: ms(300) }), 1);
}

#[test]
fn a_message_is_given_up_after_all_its_retries_and_otherwise_completed() {
    let letter = of(FRAIL, 0);
    let tried = |fails: u64| {
        (0..fails).fold(Story::default().push_into(0, &[letter]), |story, round| {
            let (at, lease) = (100 + 100 * round, format!("try-{round}"));
            story.pop_from(at, GIVES_UP, &lease, &[letter]).settle_in(at + 20, &lease, letter, Verdict::Again)
        })
    };
    let dead = |mut story: Story| {
        story.0.dead.push((letter, id(letter)));
        story
    };
    assert_eq!(tried(2).breaks(Rule::GivenUp), 1);
    assert_eq!(dead(tried(2)).breaks(Rule::GivenUp), 0);
    assert_eq!(dead(tried(1)).breaks(Rule::GivenUp), 1);
    // A message that has failed this often is not delivered again.
    assert_eq!(dead(tried(2)).pop_from(900, GIVES_UP, "late", &[letter]).breaks(Rule::GivenUp), 1);
    // After a redrive it is delivered under another id, with all retries.
    let back = || dead(tried(2)).pop_as(900, GIVES_UP, "back", vec![(letter, Uuid::from_u128(77))]);
    assert_eq!(back().breaks(Rule::GivenUp), 0);
    let mut again = back();
    again.0.dead.push((letter, Uuid::from_u128(77)));
    assert_eq!(again.breaks(Rule::GivenUp), 1);
    let done = tried(1).pop_from(900, GIVES_UP, "last", &[letter]).settle_in(
        920,
        "last",
        letter,
        Verdict::Completed,
    );
    assert_eq!(done.breaks(Rule::GivenUp), 0);
    // Delivered twice behind another message that failed: not its own failures.
    let (first, behind) = (of(FRAIL, 1), of(FRAIL, 2));
    let mut along = Story::default().push_into(0, &[first, behind]);
    for (at, lease) in [(100, "x"), (200, "y")] {
        along = along.pop_from(at, GIVES_UP, lease, &[first, behind]).settle_in(
            at + 20,
            lease,
            first,
            Verdict::Again,
        );
    }
    along.0.dead.extend([first, behind].map(|key| (key, id(key))));
    assert_eq!(along.breaks(Rule::GivenUp), 1);
}

#[test]
fn what_is_acknowledged_by_its_pop_comes_at_most_once_and_in_order() {
    let pushed = || Story::default().push(0, &[0]).push(20, &[1]);
    let pop = |story: Story, at, seqs: &[u32]| {
        let keys: Vec<Key> = seqs.iter().map(|&seq| key(seq)).collect();
        story.pop_from(at, AUTO, &format!("auto-{at}"), &keys)
    };
    assert_eq!(pop(pushed(), 50, &[0, 1]).breaks(Rule::AtMostOnce), 0);
    assert_eq!(pop(pop(pushed(), 50, &[0, 1]), 80, &[1]).breaks(Rule::AtMostOnce), 1);
    assert_eq!(pop(pushed(), 50, &[1, 0]).breaks(Rule::AtMostOnce), 1);
    assert_eq!(pop(pop(pushed(), 50, &[1]), 80, &[0]).breaks(Rule::AtMostOnce), 1);
    // One was never delivered: only a lost response explains that.
    assert_eq!(pop(pushed(), 50, &[1]).breaks(Rule::AtMostOnce), 1);
    let mut lost = pop(pushed(), 50, &[1]);
    lost.0.lost_auto_acks = 10;
    assert_eq!(lost.breaks(Rule::AtMostOnce), 0);
}

#[test]
fn a_message_without_deduplication_is_stored_once_as_well() {
    let once = of(REPEATS, 0);
    let twice = |second: Uuid| {
        let story = Story::default().push_into(0, &[once]).pop_from(50, 9, "a", &[once]);
        story.pop_as(5_000, 9, "b", vec![(once, second)]).breaks(Rule::StoredTwice)
    };
    assert_eq!(twice(id(once)), 0);
    assert_eq!(twice(Uuid::from_u128(77)), 1);
}

#[test]
fn times_are_not_compared_while_the_clock_of_leases_is_wrong() {
    let held = || Story::default().push(0, &[0, 1]).pop(20_000, "a", &[0]);
    assert_eq!(held().pop(21_000, "b", &[0]).breaks(Rule::TwoLeases), 1);
    assert_eq!(held().clock_jump(20_500, 20_700).pop(21_000, "b", &[0]).breaks(Rule::TwoLeases), 0);
    assert_eq!(held().clock_jump(1_000, 2_000).pop(21_000, "b", &[0]).breaks(Rule::TwoLeases), 1);
    // A completed message stays completed, whatever the time.
    let acked = held().ack(20_100, "a", 0, DONE).clock_jump(20_500, 20_700).pop(21_000, "b", &[0]);
    assert_eq!(acked.breaks(Rule::Duplicate), 1);
}
