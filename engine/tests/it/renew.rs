//! Renewing leases: through any broker, all partitions of one at once, and only while they are held.

use std::time::Duration;

use queen_protocol::AckStatus::Completed;
use queen_protocol::PopRequest;
use queen_testkit::{Proxy, database};
use tokio::time::timeout;
use uuid::Uuid;

use crate::support::{Ask, ack, any, complete, engine, named, number, pop, push, travel, twins};

const LEFT: &str =
    "select round(extract(epoch from min(lease_until) - queen.now()))::bigint from queen.leases";

#[tokio::test]
async fn a_lease_is_renewed_through_any_broker_and_never_shortened() {
    let db = database().await;
    let (a, b) = (engine(db.url()).await, engine(db.url()).await);
    let sql = db.client().await;
    push(&a, "q", "p", 0..1).await;
    let popped = pop(&a, PopRequest { lease_seconds: 60, ..any("q") }).await.unwrap();
    let renewed = b.renew(&popped.lease_id, 600).await.unwrap();
    assert!(renewed.success && renewed.renewed == 1 && renewed.error.is_none(), "{renewed:?}");
    assert_eq!(renewed.lease_id, popped.lease_id);
    assert!(renewed.new_expires_at.is_some() && renewed.new_expires_at == renewed.lease_expires_at);
    assert!((595..=600).contains(&number(&sql, LEFT).await));
    let shorter = a.renew(&popped.lease_id, 10).await.unwrap();
    assert!(shorter.success);
    assert_eq!(shorter.new_expires_at, renewed.new_expires_at);
    assert!((590..=600).contains(&number(&sql, LEFT).await));
    travel(&sql, "500 seconds").await;
    assert!(ack(&a, &popped.messages[0], Completed).await.success, "long after the lease it was given");
}

#[tokio::test]
async fn one_renewal_covers_every_partition_of_a_lease() {
    let db = database().await;
    let (a, b) = (engine(db.url()).await, engine(db.url()).await);
    let sql = db.client().await;
    for partition in ["a", "b", "c"] {
        push(&a, "q", partition, 0..2).await;
    }
    let wide = PopRequest { partitions: 3, lease_seconds: 60, ..any("q").group("g").batch(6) };
    let popped = pop(&a, wide).await.unwrap();
    assert_eq!(popped.partitions_claimed, 3);
    assert_eq!(b.renew(&popped.lease_id, 600).await.unwrap().renewed, 3);
    assert!(number(&sql, LEFT).await > 590, "the earliest of the three");
    // Partitions that are completed are not renewed, the others are.
    let done: Vec<_> = popped.messages.iter().filter(|message| message.partition == "a").collect();
    assert!(ack(&b, done[1], Completed).await.lease_released);
    assert_eq!(a.renew(&popped.lease_id, 900).await.unwrap().renewed, 2);
}

#[tokio::test]
async fn what_has_run_out_been_finished_or_never_been_is_not_renewed() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    push(&broker, "q", "p", 0..2).await;
    let finished = pop(&broker, any("q").group("g")).await.unwrap();
    complete(&broker, &finished).await;
    let expired = pop(&broker, any("q")).await.unwrap();
    travel(&sql, "301 seconds").await;
    let made_up = Uuid::new_v4().to_string();
    let numbered = format!("{made_up}.1");
    for lease in [&finished.lease_id, &expired.lease_id, "not-a-lease", "", &made_up, &numbered] {
        let answer = timeout(Duration::from_secs(5), broker.renew(lease, 60)).await;
        let answer = answer.unwrap_or_else(|_| panic!("no answer for {lease:?}")).unwrap();
        assert!(!answer.success && answer.renewed == 0 && answer.error.is_some(), "{lease}: {answer:?}");
        assert!(answer.new_expires_at.is_none() && answer.lease_expires_at.is_none());
    }
    assert!(pop(&broker, named("q", "p")).await.is_some(), "it can be taken by others");
}

#[tokio::test]
async fn no_other_pop_is_served_before_a_renewed_lease_ends() {
    let db = database().await;
    let sql = db.client().await;
    let (a, b) = twins(db.url(), &sql).await;
    push(&a, "q", "p", 0..1).await;
    let popped = pop(&a, PopRequest { lease_seconds: 1, ..any("q") }).await.unwrap();
    assert!(b.renew(&popped.lease_id, 60).await.unwrap().success);
    let wait = Duration::from_millis(1_600);
    let (at_a, at_b) = tokio::join!(pop(&a, any("q").wait(wait)), pop(&b, any("q").wait(wait)));
    assert!(at_a.is_none() && at_b.is_none());
    assert!(ack(&a, &popped.messages[0], Completed).await.success);
}

#[tokio::test]
async fn a_renewal_with_a_lost_answer_is_reported_as_success() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let broker = engine(proxy.url()).await;
    push(&broker, "q", "p", 0..1).await;
    let popped = pop(&broker, any("q")).await.unwrap();
    // A renewal is the only request that carries this lease as its first parameter: the bytes of its id.
    let id = Uuid::try_parse(&popped.lease_id[..36]).unwrap();
    proxy.cut_before_reply(Some(id.as_bytes()));
    assert!(broker.renew(&popped.lease_id, 600).await.unwrap().success);
    assert_eq!(proxy.replies_withheld(), 1);
}
