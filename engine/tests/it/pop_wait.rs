//! Waiting pops: what wakes them, how fast, and what they leave behind when their client hangs up.

use std::time::Duration;

use queen_engine::{Engine, SeekTo};
use queen_protocol::AckStatus::{Completed, Retry};
use queen_protocol::{PopFilter, PopRequest};
use queen_testkit::{Proxy, database};
use serde_json::json;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::support::{
    Ask, Popped, ack, any, complete, configure, engine, eventually, named, number, parked, pop, push, send,
    transact, travel, twins, within, write_unnoticed,
};

const LONG: Duration = Duration::from_secs(12);

#[tokio::test]
async fn a_push_wakes_a_parked_pop_at_once_and_a_pop_by_name_before_any_other() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "p", 0..1).await;
    complete(&broker, &pop(&broker, any("q")).await.unwrap()).await;
    let wildcard = parked(&broker, any("q").wait(LONG)).await;
    let by_name = parked(&broker, named("q", "p").wait(LONG)).await;
    let elsewhere = parked(&broker, named("q", "not yet there").wait(LONG)).await;
    let began = Instant::now();
    push(&broker, "q", "p", 1..2).await;
    assert_eq!(by_name.answer().await.unwrap().data(), [1]);
    push(&broker, "q", "not yet there", 2..3).await;
    assert_eq!(elsewhere.answer().await.unwrap().data(), [2]);
    push(&broker, "q", "r", 3..4).await;
    assert_eq!(wildcard.answer().await.unwrap().data(), [3]);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_push_through_one_broker_wakes_a_pop_parked_at_another_within_a_moment() {
    let db = database().await;
    let sql = db.client().await;
    let (a, b) = twins(db.url(), &sql).await;
    let mut waits = Vec::new();
    for n in 0..8 {
        let waiting = parked(&b, any("q").wait(LONG)).await;
        let began = Instant::now();
        push(&a, "q", &format!("p{n}"), n..n + 1).await;
        assert_eq!(waiting.answer().await.unwrap().data(), [n]);
        waits.push(began.elapsed());
    }
    assert!(waits.iter().all(|wait| *wait < Duration::from_secs(1)), "{waits:?}");
    // Without notifications it would take half a second on average.
    let quick = waits.iter().filter(|wait| **wait < Duration::from_millis(300)).count();
    assert!(quick >= 6, "{waits:?}");
}

#[tokio::test]
async fn a_parked_pop_finds_messages_without_a_hint_within_about_a_second() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    push(&broker, "q", "p", 0..1).await;
    complete(&broker, &pop(&broker, any("q")).await.unwrap()).await;
    for request in [any("q"), named("q", "p")] {
        let waiting = parked(&broker, request.wait(LONG)).await;
        write_unnoticed(&sql, "q", "p", "x").await;
        let began = Instant::now();
        let popped = waiting.answer().await.expect("the message");
        assert!(began.elapsed() < Duration::from_millis(2_500), "{:?}", began.elapsed());
        complete(&broker, &popped).await;
        travel(&sql, "2 hours").await; // So that the same id can be written again.
    }
}

#[tokio::test]
async fn a_lease_that_runs_out_wakes_a_parked_pop_at_its_own_broker_and_at_others() {
    let db = database().await;
    let sql = db.client().await;
    let (a, b) = twins(db.url(), &sql).await;
    for (queue, waits_at) in [("own", &a), ("other", &b)] {
        push(&a, queue, "p", 0..1).await;
        let began = Instant::now();
        pop(&a, PopRequest { lease_seconds: 1, ..any(queue) }).await.expect("the message");
        let waiting = parked(waits_at, any(queue).wait(LONG)).await;
        let popped = waiting.answer().await.expect("the message again");
        assert_eq!(popped.messages[0].retry_count, 0, "running out costs nothing");
        let waited = began.elapsed();
        assert!(waited >= Duration::from_millis(990), "while it was leased: {waited:?}");
        assert!(waited < Duration::from_millis(3_500), "{waited:?}");
    }
}

#[tokio::test]
async fn an_ack_that_leaves_a_backlog_wakes_the_next_pop_wherever_it_waits() {
    let db = database().await;
    let sql = db.client().await;
    let (a, b) = twins(db.url(), &sql).await;
    // All are popped at A. In the last case B is not notified, and has to look for itself.
    let cases = [("aa", &a, &a, 1_000), ("ba", &b, &a, 1_000), ("bb", &b, &b, 1_000), ("ab", &a, &b, 2_500)];
    for (queue, acked_at, waits_at, patience_ms) in cases {
        for group in ["by wildcard", "by name"] {
            push(&a, queue, "p", 0..1).await;
            push(&a, queue, "p", 1..2).await;
            let request = if group == "by name" { named(queue, "p") } else { any(queue) };
            let held = pop(&a, request.clone().group(group)).await.unwrap();
            let waiting = parked(waits_at, request.group(group).wait(LONG)).await;
            let began = Instant::now();
            assert!(ack(acked_at, &held.messages[0], Completed).await.lease_released);
            assert!(waiting.answer().await.is_some(), "{queue} {group}");
            let waited = began.elapsed();
            assert!(waited < Duration::from_millis(patience_ms), "{queue} {group}: {waited:?}");
        }
    }
}

#[tokio::test]
async fn a_push_wakes_a_pop_parked_where_the_last_lease_was_finished_through_another_broker() {
    let db = database().await;
    let sql = db.client().await;
    let (a, b) = twins(db.url(), &sql).await;
    push(&a, "q", "p", 0..1).await;
    let popped = pop(&a, any("q")).await.unwrap();
    complete(&b, &popped).await;
    let waiting = parked(&a, any("q").wait(Duration::from_secs(4))).await;
    push(&b, "q", "p", 1..2).await;
    assert_eq!(waiting.answer().await.expect("long before the 300 s of the old lease").data(), [1]);
}

/// A lease through `first` that has expired, and another one through `second`, for 300 s, with one
/// more message in the partition.
async fn leased_again(first: &Engine, second: &Engine, queue: &str) -> Popped {
    push(first, queue, "p", 0..1).await;
    push(first, queue, "p", 1..2).await;
    pop(first, PopRequest { lease_seconds: 1, ..any(queue) }).await.expect("the message");
    let again = any(queue).wait(LONG);
    pop(second, again).await.expect("the message again")
}

#[tokio::test]
async fn a_broker_that_served_the_lease_before_learns_that_another_brokers_lease_is_over() {
    let db = database().await;
    let sql = db.client().await;
    let (a, b) = twins(db.url(), &sql).await;
    let held = leased_again(&a, &b, "q").await;
    let waiting = parked(&a, any("q").wait(LONG)).await;
    let began = Instant::now();
    complete(&b, &held).await;
    assert_eq!(waiting.answer().await.expect("long before that lease would have run out").data(), [1]);
    assert!(began.elapsed() < Duration::from_millis(3_500), "{:?}", began.elapsed());
}

#[tokio::test]
async fn an_ack_through_a_broker_that_served_the_lease_before_notifies_other_brokers() {
    let db = database().await;
    let sql = db.client().await;
    let (a, b) = twins(db.url(), &sql).await;
    let held = leased_again(&a, &b, "q").await;
    let waiting = parked(&b, any("q").wait(LONG)).await;
    let began = Instant::now();
    complete(&a, &held).await;
    assert_eq!(waiting.answer().await.expect("long before the lease would have run out").data(), [1]);
    assert!(began.elapsed() < Duration::from_millis(3_500), "{:?}", began.elapsed());
}

#[tokio::test]
async fn what_is_pushed_under_a_lease_is_delivered_when_it_ends_whatever_happened_to_the_list() {
    let db = database().await;
    let broker = engine(db.url()).await;
    for queue in ["configured", "renewed", "idle"] {
        push(&broker, queue, "p", 0..1).await;
        let leased = any(queue).batch(10);
        let held = pop(&broker, PopRequest { lease_seconds: 1, ..leased }).await.unwrap();
        assert!(broker.renew(&held.lease_id, 300).await.unwrap().success);
        if queue == "renewed" {
            // The first end of the lease passes, and a pop looks.
            assert!(pop(&broker, any(queue).wait(Duration::from_secs(2))).await.is_none());
        }
        push(&broker, queue, "p", 1..2).await;
        match queue {
            "configured" => configure(&broker, queue, json!({"priority": 1})).await,
            "renewed" => assert!(pop(&broker, any(queue).wait(Duration::from_secs(2))).await.is_none()),
            _ => {
                let dropped = async || (broker.stats().listed == 0).then_some(());
                within(LONG, "lists of queues without a pop are dropped", dropped).await;
            }
        }
        let waiting = parked(&broker, any(queue).wait(LONG)).await;
        complete(&broker, &held).await;
        assert_eq!(waiting.answer().await.expect(queue).data(), [1]);
    }
}

#[tokio::test]
async fn what_is_pushed_while_pops_are_switched_off_is_delivered_when_they_are_on_again() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "p", 0..1).await;
    complete(&broker, &pop(&broker, any("q")).await.unwrap()).await;
    let first = parked(&broker, any("q").wait(LONG)).await;
    let second = parked(&broker, any("q").wait(LONG)).await;
    broker.set_pop_maintenance(true).await.unwrap();
    push(&broker, "q", "p", 1..2).await;
    assert!(first.answer().await.is_none(), "it was woken, and is to find nothing");
    broker.set_pop_maintenance(false).await.unwrap();
    let began = Instant::now();
    assert_eq!(second.answer().await.expect("the message").data(), [1]);
    assert!(began.elapsed() < LONG / 2, "not only at the end of its time: {:?}", began.elapsed());
}

#[tokio::test]
async fn a_transaction_wakes_pops_by_what_it_pushes_and_by_what_it_frees() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push(&broker, "source", "p", 0..2).await;
    let held = pop(&broker, any("source")).await.unwrap();
    let next = parked(&broker, any("source").wait(LONG)).await;
    let target = parked(&broker, any("target").wait(LONG)).await;
    let began = Instant::now();
    let body = json!({"operations": [
        crate::support::push_operation("target", "p", &json!("moved")),
        crate::support::ack_operation(&held.messages[0], "completed"),
    ]});
    assert!(transact(&broker, &body).await.success);
    assert_eq!(target.answer().await.unwrap().data(), ["moved"]);
    assert_eq!(next.answer().await.unwrap().data(), [1]);
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn a_delayed_message_wakes_a_parked_pop_when_it_matures() {
    let db = database().await;
    let broker = engine(db.url()).await;
    configure(&broker, "q", json!({"delayedProcessing": 1})).await;
    let began = Instant::now();
    let waiting = parked(&broker, any("q").wait(LONG)).await;
    push(&broker, "q", "p", 0..1).await;
    assert_eq!(waiting.answer().await.unwrap().data(), [0]);
    let waited = began.elapsed();
    assert!(waited >= Duration::from_secs(1) && waited < Duration::from_secs(3), "{waited:?}");
}

#[tokio::test]
async fn a_window_wakes_a_parked_pop_when_it_closes() {
    let db = database().await;
    let broker = engine(db.url()).await;
    configure(&broker, "q", json!({"windowBuffer": 1})).await;
    push(&broker, "q", "p", 0..2).await;
    let began = Instant::now();
    let waiting = parked(&broker, any("q").batch(10).wait(LONG)).await;
    push(&broker, "q", "p", 2..3).await;
    assert_eq!(waiting.answer().await.unwrap().messages.len(), 3);
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(800) && waited < Duration::from_secs(3), "{waited:?}");
}

#[tokio::test]
async fn a_batch_that_fills_up_wakes_a_parked_pop_before_its_window_closes() {
    let db = database().await;
    let broker = engine(db.url()).await;
    configure(&broker, "q", json!({"windowBuffer": 60})).await;
    push(&broker, "q", "p", 0..2).await;
    let waiting = parked(&broker, any("q").batch(5).wait(Duration::from_secs(4))).await;
    push(&broker, "q", "p", 2..5).await;
    assert_eq!(waiting.answer().await.expect("a full batch").messages.len(), 5);
}

#[tokio::test]
async fn a_seek_and_a_queue_that_appears_wake_parked_pops() {
    let db = database().await;
    let sql = db.client().await;
    let (a, b) = twins(db.url(), &sql).await;
    push(&a, "q", "p", 0..1).await;
    complete(&b, &pop(&b, any("q").group("g")).await.unwrap()).await;
    let sought = parked(&b, any("q").group("g").wait(LONG)).await;
    configure(&b, "shop.empty", json!({})).await;
    let labels = PopFilter::Labels { namespace: Some("shop".into()), task: None };
    let discovering = parked(&b, PopRequest { filter: labels, ..any("") }.wait(LONG)).await;
    a.seek("g", "q", SeekTo::Time(0)).await.unwrap();
    assert_eq!(sought.answer().await.unwrap().data(), [0]);
    push(&a, "shop.orders", "p", 7..8).await;
    assert_eq!(discovering.answer().await.unwrap().data(), [7]);
}

#[tokio::test]
async fn a_pop_that_waited_in_vain_answers_empty_on_time() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "p", 0..1).await;
    pop(&broker, any("q")).await.unwrap();
    for request in [any("q"), named("q", "p"), any("nowhere")] {
        let began = Instant::now();
        assert!(pop(&broker, request.wait(Duration::from_millis(300))).await.is_none());
        let waited = began.elapsed();
        assert!(waited >= Duration::from_millis(300) && waited < Duration::from_millis(1_300), "{waited:?}");
    }
}

#[tokio::test]
async fn stopping_answers_parked_pops_at_once() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let waiting = parked(&broker, any("q").wait(LONG)).await;
    let began = Instant::now();
    let ((), answer) = tokio::join!(broker.stop(), waiting.answer());
    assert!(answer.is_none());
    assert!(began.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn a_client_that_hangs_up_while_parked_takes_no_lease() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    for request in [any("q"), named("q", "p")] {
        let left = parked(&broker, request.clone().wait(LONG)).await;
        let stays = parked(&broker, request.wait(LONG)).await;
        drop(left);
        eventually("it has left", async || (broker.stats().parked == 1).then_some(())).await;
        push(&broker, "q", "p", 0..1).await;
        let popped = stays.answer().await.expect("the one that stayed gets it");
        assert_eq!(number(&sql, "select count(*) from queen.leases").await, 1);
        complete(&broker, &popped).await;
    }
    assert_eq!(number(&sql, "select count(*) from queen.leases").await, 0);
}

#[tokio::test]
async fn a_client_that_hangs_up_while_its_claim_is_in_flight_leaves_no_lease_behind() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let broker = engine(proxy.url()).await;
    push(&broker, "q", "p", 0..1).await;
    // Makes the queue known to the engine, so that the claim is the next statement that it sends.
    let warm = pop(&broker, any("q")).await.unwrap();
    ack(&broker, &warm.messages[0], Retry).await;
    for auto_ack in [false, true] {
        proxy.black_hole(true);
        {
            let request = PopRequest { auto_ack, ..any("q") };
            let mut popping = Box::pin(broker.pop(request));
            let sent = async {
                let busy = async || (broker.stats().connections_busy > 0).then_some(());
                eventually("the claim is sent", busy).await;
            };
            tokio::select! {
                answer = &mut popping => panic!("nothing gets through: {answer:?}"),
                () = sent => {}
            }
        }
        proxy.black_hole(false);
        let began = Instant::now();
        let popped =
            within(Duration::from_secs(3), "the lease comes back", async || pop(&broker, any("q")).await);
        ack(&broker, &popped.await.messages[0], Retry).await;
        assert!(began.elapsed() < Duration::from_secs(3), "long before its 300 s are over");
    }
}

#[tokio::test]
async fn however_early_or_late_clients_hang_up_no_lease_stays_behind() {
    let db = database().await;
    let broker = engine(db.url()).await;
    send(&broker, &json!([{"queue": "q", "partition": "p", "payload": "x".repeat(10_000)}])).await.unwrap();
    for step in 0..60 {
        let request = if step % 2 == 0 { any("q") } else { named("q", "p") };
        let patience = Duration::from_micros(100 * step);
        if let Ok(Ok(Some(body))) = timeout(patience, broker.pop(request)).await {
            ack(&broker, &crate::support::read(&body).messages[0], Retry).await;
        }
    }
    let popped =
        within(Duration::from_secs(3), "the lease comes back", async || pop(&broker, any("q")).await);
    assert_eq!(popped.await.messages[0].retry_count, 0);
}

#[tokio::test]
async fn a_wait_that_is_ended_answers_at_once_and_takes_nothing() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    push(&broker, "q", "p", 0..1).await;
    complete(&broker, &pop(&broker, any("q")).await.unwrap()).await;
    let labels = PopFilter::Labels { namespace: Some("q".into()), task: None };
    for request in [any("q"), named("q", "p"), PopRequest { filter: labels, ..any("") }] {
        let ended = CancellationToken::new();
        let waiting = broker.pop_until(request.clone().wait(LONG), Some(&ended));
        let end = async {
            eventually("it parks", async || (broker.stats().parked == 1).then_some(())).await;
            ended.cancel();
            Instant::now()
        };
        let (answer, began) = tokio::join!(waiting, end);
        assert!(answer.unwrap().is_none() && began.elapsed() < LONG / 2, "{request:?}");
        assert_eq!(broker.stats().parked, 0);
        // Ended before it started, it does not even look.
        push(&broker, "q", "p", 1..2).await;
        assert!(broker.pop_until(request.clone().wait(LONG), Some(&ended)).await.unwrap().is_none());
        assert_eq!(number(&sql, "select count(*) from queen.leases").await, 0);
        complete(&broker, &pop(&broker, request).await.unwrap()).await;
    }
}

#[tokio::test]
async fn no_message_is_lost_however_early_or_late_a_wait_is_ended() {
    let db = database().await;
    let broker = engine(db.url()).await;
    for step in 0..40 {
        let ended = CancellationToken::new();
        // It is the first in line, so the push is meant for it while it leaves.
        let leaving = broker.pop_until(any("q").wait(LONG), Some(&ended));
        let others = async {
            eventually("it parks", async || (broker.stats().parked == 1).then_some(())).await;
            let stays = parked(&broker, any("q").wait(LONG)).await;
            let end = async {
                tokio::time::sleep(Duration::from_micros(100 * step)).await;
                ended.cancel();
            };
            let partition = format!("p{step}");
            tokio::join!(push(&broker, "q", &partition, 0..1), end);
            stays
        };
        let (left, stays) = tokio::join!(leaving, others);
        let popped = match left.unwrap() {
            Some(answer) => crate::support::read(&answer),
            None => {
                let answer = timeout(Duration::from_secs(2), stays.answer()).await;
                answer.expect("it is woken in its place").expect("with the message")
            }
        };
        complete(&broker, &popped).await;
    }
}
