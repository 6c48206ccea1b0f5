//! The shadow detects violations: each guarantee is violated once, next to a similar history that is allowed.

use queen_protocol::AckStatus::{self, Completed, Dlq, Failed};

use super::*;
use crate::plan::Proof;

const SECOND: Micros = 1_000_000;
const GROUP: Group = Group::Billing;

/// The message at an offset of p0.
fn id(offset: u64) -> Uuid {
    Uuid::from_u128(u128::from(offset) << 80 | 0x7 << 76 | 0b10 << 62 | u128::from(offset) << 32 | 1)
}

fn message(offset: u64) -> Message {
    let transaction = format!("t{offset}");
    Message { id: id(offset), transaction, serial: offset, created_at: offset as Micros, retries: 0 }
}

fn row(offset: u64) -> Row {
    let Message { id, transaction, serial, created_at, .. } = message(offset);
    Row { id, offset: offset as i64, transaction, serial, created_at }
}

fn sent(offset: u64) -> Sent {
    Sent { partition: 0, serial: offset, transaction: Some(format!("t{offset}")), unique: true }
}

fn placed(offset: u64) -> Placed {
    Placed { id: id(offset), transaction: format!("t{offset}"), duplicate: false }
}

/// A shadow that knows messages 0, 1, … in p0.
fn shadow(messages: u64) -> Shadow {
    let mut shadow = Shadow::default();
    for offset in 0..messages {
        let op = shadow.next_op();
        let ticket = shadow.push_began(op, Via::Healthy, vec![sent(offset)]);
        shadow.push_answered(&ticket, 0, &[placed(offset)]).unwrap();
    }
    shadow
}

/// A pop with a lease of one second, which takes a millisecond.
fn deliver(shadow: &mut Shadow, at: Micros, lease: &str, messages: Vec<Message>) -> Checked {
    let ticket = shadow.pop_began(at, Via::Healthy, GROUP, 1);
    shadow.pop_answered(&ticket, at + 1000, lease, &[(0, messages)])
}

fn pop(shadow: &mut Shadow, at: Micros, lease: &str, offsets: std::ops::Range<u64>) -> Checked {
    deliver(shadow, at, lease, offsets.map(message).collect())
}

fn set(lease: Option<&str>, items: &[(u64, AckStatus)]) -> AckSet {
    let items = items.iter().map(|(offset, status)| (id(*offset), *status)).collect();
    AckSet { partition: 0, group: GROUP, lease: lease.map(str::to_owned), items }
}

fn done() -> ItemAnswer {
    ItemAnswer { success: true, released: Some(true), ..ItemAnswer::default() }
}

fn ack(
    shadow: &mut Shadow,
    at: Micros,
    lease: &str,
    items: &[(u64, AckStatus)],
    answer: ItemAnswer,
) -> Checked<Op> {
    let op = shadow.next_op();
    let ticket = shadow.ack_began(op, at, Via::Healthy, vec![set(Some(lease), items)]);
    shadow.ack_answered(&ticket, at + 1000, &[vec![answer; items.len()]])?;
    Ok(op)
}

#[track_caller]
fn refused<T>(checked: Checked<T>, why: &str) {
    let violation = checked.err().expect("it is noticed");
    assert!(violation.what.contains(why), "{violation:?}");
}

#[test]
fn a_run_that_keeps_every_guarantee_is_let_pass() {
    let mut shadow = shadow(4);
    pop(&mut shadow, 0, "a", 0..2).unwrap();
    ack(&mut shadow, SECOND / 2, "a", &[(0, Completed), (1, Completed)], done()).unwrap();
    pop(&mut shadow, SECOND, "b", 2..4).unwrap();
    // The lease expired, and they are delivered again.
    pop(&mut shadow, 3 * SECOND, "c", 2..4).unwrap();
    ack(&mut shadow, 3 * SECOND + 5000, "c", &[(3, Completed)], done()).unwrap();
    shadow.truth(0, 0, &[row(0), row(1), row(2), row(3)]).unwrap();
    shadow.transactions_are_whole().unwrap();
    shadow.nothing_is_left(GROUP).unwrap();
    shadow.all_was_delivered(GROUP).unwrap();
    shadow.dead_letters_match(&[]).unwrap();
}

#[test]
fn a_message_that_is_gone_from_the_log_is_noticed() {
    refused(shadow(3).truth(0, 0, &[row(0), row(1)]), "is not in the log");
}

#[test]
fn a_message_that_a_group_never_got_is_noticed() {
    let mut shadow = shadow(3);
    pop(&mut shadow, 0, "a", 0..2).unwrap();
    refused(shadow.nothing_is_left(GROUP), "#0 waits");
    refused(shadow.all_was_delivered(GROUP), "#2 was never delivered");
}

#[test]
fn a_message_that_is_jumped_over_is_noticed() {
    refused(deliver(&mut shadow(3), 0, "a", vec![message(0), message(2)]), "skipped #1");
    refused(pop(&mut shadow(3), 0, "a", 1..3), "skipped #0");
    // Also if the message in between becomes known only later.
    let mut late = Shadow::default();
    let op = late.next_op();
    late.push_began(op, Via::Broken, (0..3).map(sent).collect());
    deliver(&mut late, 0, "a", vec![message(0), message(2)]).unwrap();
    late.truth(0, 0, &[row(0), row(1), row(2)]).unwrap();
    refused(late.all_was_delivered(GROUP), "skipped #1");
}

#[test]
fn messages_in_the_wrong_order_are_noticed() {
    refused(deliver(&mut shadow(2), 0, "a", vec![message(1), message(0)]), "behind #1");
    let mut shadow = Shadow::default();
    let op = shadow.next_op();
    shadow.push_began(op, Via::Broken, (0..3).map(sent).collect());
    deliver(&mut shadow, 0, "a", vec![message(2)]).unwrap();
    refused(deliver(&mut shadow, 2 * SECOND, "b", vec![message(1)]), "for the first time after");
}

#[test]
fn ids_and_times_that_run_backwards_are_noticed() {
    let mut late = shadow(3);
    let op = late.next_op();
    let ticket = late.push_began(op, Via::Healthy, vec![Sent { serial: 9, transaction: None, ..sent(9) }]);
    let earlier = Placed { transaction: "minted".to_owned(), ..placed(1) };
    refused(late.push_answered(&ticket, 0, &[earlier]), "stored before");
    let young = Message { created_at: 9, ..message(0) };
    refused(deliver(&mut shadow(2), 0, "a", vec![young, message(1)]), "runs backwards");
}

#[test]
fn two_leases_that_live_at_once_are_noticed() {
    let mut both = shadow(2);
    pop(&mut both, 0, "a", 0..2).unwrap();
    refused(pop(&mut both, SECOND / 2, "b", 0..2), "two leases live at once");

    let mut overlapping = shadow(2);
    let first = overlapping.pop_began(0, Via::Healthy, GROUP, 1);
    let second = overlapping.pop_began(10, Via::Broken, GROUP, 1);
    let messages = [(0, vec![message(0)])];
    overlapping.pop_answered(&second, 1000, "b", &messages).unwrap();
    refused(overlapping.pop_answered(&first, 1000, "a", &messages), "two leases live at once");

    let mut renewed = shadow(2);
    pop(&mut renewed, 0, "a", 0..2).unwrap();
    let ticket = renewed.renew_began(SECOND / 2, Via::Healthy, GROUP, "a", 2);
    renewed.renew_answered(&ticket, SECOND / 2 + 1, 1, Some(5 * SECOND / 2)).unwrap();
    refused(pop(&mut renewed, 2 * SECOND, "b", 0..2), "two leases live at once");
}

#[test]
fn a_lease_after_one_that_expired_or_may_have_been_released_is_allowed() {
    let mut expired = shadow(2);
    pop(&mut expired, 0, "a", 0..2).unwrap();
    pop(&mut expired, SECOND, "b", 0..2).unwrap();

    let mut released = shadow(2);
    pop(&mut released, 0, "a", 0..2).unwrap();
    let op = released.next_op();
    released.ack_began(op, 2000, Via::Broken, vec![set(Some("a"), &[(0, Failed)])]);
    pop(&mut released, 3000, "b", 0..2).unwrap();
}

#[test]
fn one_transaction_id_under_two_message_ids_is_noticed() {
    let mut twice = shadow(2);
    let op = twice.next_op();
    let ticket = twice.push_began(op, Via::Healthy, vec![Sent { serial: 7, unique: false, ..sent(1) }]);
    let again = Placed { transaction: "t1".to_owned(), ..placed(2) };
    refused(twice.push_answered(&ticket, 0, &[again]), "t1 is stored twice");

    let mut unheard = shadow(2);
    let op = unheard.next_op();
    unheard.push_began(op, Via::Broken, vec![Sent { transaction: None, ..sent(2) }]);
    let minted = |offset| Row { serial: 2, transaction: format!("minted {offset}"), ..row(offset) };
    refused(unheard.truth(0, 0, &[row(0), row(1), minted(2), minted(3)]), "2 is stored twice");
}

#[test]
fn a_message_that_was_never_pushed_is_noticed() {
    refused(pop(&mut shadow(1), 0, "a", 0..2), "nobody pushed");
    let stranger = Message { transaction: "else".to_owned(), ..message(0) };
    refused(deliver(&mut shadow(1), 0, "a", vec![stranger]), "was pushed as");
}

#[test]
fn what_was_finished_is_not_delivered_again_unless_a_group_seeks() {
    let mut again = shadow(2);
    pop(&mut again, 0, "a", 0..2).unwrap();
    ack(&mut again, 2000, "a", &[(1, Completed)], done()).unwrap();
    refused(pop(&mut again, 2 * SECOND, "b", 0..2), "after it was finished");

    let mut sought = shadow(2);
    pop(&mut sought, 0, "a", 0..2).unwrap();
    ack(&mut sought, 2000, "a", &[(1, Completed)], done()).unwrap();
    let ticket = sought.seek_began(SECOND, GROUP);
    sought.seek_answered(&ticket, SECOND + 1, false);
    pop(&mut sought, 2 * SECOND, "b", 0..2).unwrap();
}

#[test]
fn a_lease_that_is_over_moves_nothing_and_one_that_lives_is_not_refused() {
    let mut stale = shadow(2);
    pop(&mut stale, 0, "a", 0..2).unwrap();
    refused(ack(&mut stale, 2 * SECOND, "a", &[(0, Completed)], done()), "lease that was over");

    let mut live = shadow(2);
    pop(&mut live, 0, "a", 0..2).unwrap();
    let expired = ItemAnswer { error: Some("Invalid or expired lease".to_owned()), ..ItemAnswer::default() };
    refused(ack(&mut live, 2000, "a", &[(0, Completed)], expired), "under a live lease was refused");
}

#[test]
fn dead_letters_that_are_missing_invented_or_early_are_noticed() {
    let dead = ItemAnswer { dlq: true, ..done() };
    let mut shadow = shadow(2);
    pop(&mut shadow, 0, "a", 0..2).unwrap();
    let op = ack(&mut shadow, 2000, "a", &[(0, Dlq)], dead.clone()).unwrap();
    let letter = DeadLetter { partition: 0, group: GROUP, id: id(0), op, attempts: 0 };
    shadow.dead_letters_match(std::slice::from_ref(&letter)).unwrap();
    refused(shadow.dead_letters_match(&[]), "is not there");
    refused(shadow.dead_letters_match(&[letter.clone(), letter.clone()]), "twice");
    let other = DeadLetter { id: id(1), ..letter };
    refused(shadow.dead_letters_match(&[other]), "did not give up");

    let mut early = self::shadow(2);
    pop(&mut early, 0, "a", 0..2).unwrap();
    refused(ack(&mut early, 2000, "a", &[(0, Failed)], dead), "failed after 0 retries");
}

/// Acknowledges #0 and pushes #1 and #2.
fn transaction(shadow: &mut Shadow) -> transactions::TransactionTicket {
    pop(shadow, 0, "a", 0..1).unwrap();
    let op = shadow.next_op();
    let sets = vec![set(None, &[(0, Completed)])];
    let proof = (Proof::Nothing, "a");
    shadow.transaction_began(op, 2000, Via::Broken, vec![sent(1), sent(2)], sets, proof, false)
}

#[test]
fn half_a_transaction_is_noticed() {
    let mut half = shadow(1);
    transaction(&mut half);
    half.truth(0, 0, &[row(0), row(1)]).unwrap();
    refused(half.transactions_are_whole(), "1 of 2 messages");

    let mut undone = shadow(1);
    let ticket = transaction(&mut undone);
    undone.transaction_rolled_back(&ticket, 3000, "why not").unwrap();
    refused(pop(&mut undone, 2 * SECOND, "b", 0..2), "which was rolled back");
}

#[test]
fn a_transaction_whose_push_is_seen_has_acknowledged_and_one_that_is_not_has_not() {
    let mut seen = shadow(1);
    transaction(&mut seen);
    deliver(&mut seen, 2 * SECOND, "b", vec![message(1), message(2)]).unwrap();
    refused(pop(&mut seen, 4 * SECOND, "c", 0..3), "after it was finished");

    let mut unseen = shadow(1);
    transaction(&mut unseen);
    unseen.truth(0, 0, &[row(0)]).unwrap();
    unseen.transactions_are_whole().unwrap();
    refused(unseen.nothing_is_left(GROUP), "#0 waits");
}
