//! What a pop returns: the worked examples of the state machine, several partitions, turns, and
//! messages that it must never miss.

use std::collections::HashSet;

use queen_engine::{Config, SeekTo};
use queen_protocol::AckStatus::{Completed, Retry};
use queen_protocol::{Configure, PopFilter, PopRequest};
use queen_testkit::database;
use serde_json::{Value, json};

use crate::support::{
    Ask, Popped, ack, any, at_once, complete, config, configure, data, engine, engine_with, lane, named,
    number, numbers, pop, pop_soon, push, send,
};

#[tokio::test]
async fn two_pops_of_two_partitions_each_get_all_of_theirs() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push(&broker, "orders", "customer-123", 0..5).await;
    push(&broker, "orders", "customer-456", 10..13).await;
    let (first, second) = tokio::join!(
        pop(&broker, named("orders", "customer-123").group("processor").batch(10)),
        pop(&broker, named("orders", "customer-456").group("processor").batch(10)),
    );
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!((first.data(), second.data()), (numbers(0..5), numbers(10..13)));
    assert_ne!(first.lease_id, second.lease_id);
    assert!(first.messages.iter().all(|message| message.lease_id == first.lease_id));
}

#[tokio::test]
async fn a_named_and_two_wildcard_pops_at_once_get_three_different_partitions() {
    let db = database().await;
    let broker = engine(db.url()).await;
    // Queue, partitions and group are known already, so that all three pops find the same state.
    for partition in ["job-1", "job-2", "job-3"] {
        push(&broker, "tasks", partition, 0..1).await;
        complete(&broker, &pop(&broker, named("tasks", partition).group("worker")).await.unwrap()).await;
    }
    assert!(pop(&broker, any("tasks").group("worker")).await.is_none());
    for partition in ["job-1", "job-2", "job-3"] {
        push(&broker, "tasks", partition, 0..5).await;
    }
    let wildcard = || pop(&broker, any("tasks").group("worker").batch(5));
    let (job_1, one, other) =
        tokio::join!(pop(&broker, named("tasks", "job-1").group("worker").batch(5)), wildcard(), wildcard());
    let (job_1, one, other) = (job_1.unwrap(), one.unwrap(), other.unwrap());
    assert_eq!(job_1.partition, "job-1");
    let resolved: HashSet<&str> = [one.partition.as_str(), other.partition.as_str()].into();
    assert_eq!(resolved, ["job-2", "job-3"].into());
    assert!([&job_1, &one, &other].iter().all(|popped| popped.messages.len() == 5));
}

#[tokio::test]
async fn five_hundred_pops_of_five_hundred_partitions_share_a_handful_of_flights() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let items: Vec<Value> = (0..1_500)
        .map(|n| json!({"queue": "benchmark", "partition": format!("part-{}", n % 500), "payload": n}))
        .collect();
    send(&broker, &Value::Array(items)).await.unwrap();
    let before = lane(&broker, "pop");
    let pops = (0..500).map(|n| {
        let broker = broker.clone();
        async move { pop(&broker, named("benchmark", &format!("part-{n}")).group("bench").batch(10)).await }
    });
    let popped = at_once(pops).await;
    for (n, popped) in popped.iter().enumerate() {
        let popped = popped.as_ref().expect("every pop completes");
        assert_eq!(popped.partition, format!("part-{n}"));
        assert_eq!(popped.data(), [n, n + 500, n + 1_000]);
    }
    let leases: HashSet<&str> = popped.iter().flatten().map(|popped| popped.lease_id.as_str()).collect();
    assert_eq!(leases.len(), 500);
    let after = lane(&broker, "pop");
    assert_eq!(after.entries - before.entries, 500);

    // The same again, now that the group is known everywhere: only claims are sent.
    at_once(popped.into_iter().flatten().map(|popped: Popped| {
        let broker = broker.clone();
        async move { complete(&broker, &popped).await }
    }))
    .await;
    push_wide_as(&broker, 500).await;
    let before = lane(&broker, "pop");
    let wildcards = (0..500).map(|_| {
        let broker = broker.clone();
        async move { pop(&broker, any("benchmark").group("bench")).await.expect("one each").partition }
    });
    let partitions: HashSet<String> = at_once(wildcards).await.into_iter().collect();
    assert_eq!(partitions.len(), 500, "no partition twice");
    let flights = lane(&broker, "pop").flights - before.flights;
    assert!(flights <= 50, "{flights} flights for 500 pops");
}

async fn push_wide_as(broker: &queen_engine::Engine, partitions: usize) {
    let item = |n| json!({"queue": "benchmark", "partition": format!("part-{n}"), "payload": n});
    send(broker, &(0..partitions).map(item).collect()).await.unwrap();
}

#[tokio::test]
async fn a_pop_that_spans_partitions_has_one_lease_and_takes_no_more_than_it_asked_for() {
    let db = database().await;
    let broker = engine(db.url()).await;
    for partition in ["a", "b", "c", "d", "e"] {
        push(&broker, "q", partition, 0..4).await;
    }
    let wide = |partitions, batch| PopRequest { partitions, ..any("q").group("g").batch(batch) };
    let popped = pop(&broker, wide(3, 100)).await.unwrap();
    assert_eq!((popped.partitions_claimed, popped.messages.len()), (3, 12));
    assert!(popped.messages.iter().all(|message| message.lease_id == popped.lease_id));
    let partitions: HashSet<&str> = popped.messages.iter().map(|m| m.partition.as_str()).collect();
    assert_eq!(partitions.len(), 3);
    for partition in partitions {
        let own = popped.messages.iter().filter(|message| message.partition == partition);
        assert!(own.map(|message| message.json()).eq(numbers(0..4)), "grouped, and in order");
    }
    complete(&broker, &popped).await;

    // Five of eight: the rest stays unleased.
    let popped = pop(&broker, wide(5, 5)).await.unwrap();
    assert_eq!((popped.partitions_claimed, popped.messages.len()), (2, 5));
    complete(&broker, &popped).await;
    let rest = pop(&broker, wide(5, 100)).await.unwrap();
    assert_eq!(rest.data(), numbers(1..4));
    assert!(pop(&broker, wide(5, 100)).await.is_none());
}

#[tokio::test]
async fn partitions_beyond_a_full_batch_stay_free_for_others() {
    let db = database().await;
    let broker = engine(db.url()).await;
    for partition in ["a", "b", "c"] {
        push(&broker, "q", partition, 0..10).await;
    }
    let popped = pop(&broker, PopRequest { partitions: 3, ..any("q").batch(10) }).await.unwrap();
    assert_eq!((popped.partitions_claimed, popped.messages.len()), (1, 10));
    assert_eq!(pop(&broker, any("q").batch(10)).await.unwrap().messages.len(), 10);
    assert_eq!(pop(&broker, any("q").batch(10)).await.unwrap().messages.len(), 10);
}

#[tokio::test]
async fn the_least_recently_served_partition_is_next_and_one_never_served_before_all() {
    let db = database().await;
    let broker = engine(db.url()).await;
    for partition in ["a", "b", "c"] {
        push(&broker, "q", partition, 0..10).await;
    }
    let next = async |broker: &queen_engine::Engine| {
        let popped = pop(broker, any("q").group("g")).await.unwrap();
        complete(broker, &popped).await;
        popped.partition
    };
    let mut turns = Vec::new();
    for _ in 0..6 {
        turns.push(next(&broker).await);
    }
    assert_eq!(turns, ["a", "b", "c", "a", "b", "c"]);
    push(&broker, "q", "late", 0..10).await;
    assert_eq!(next(&broker).await, "late");
    assert_eq!(next(&broker).await, "a");

    // A broker that has just started reads the same turns from the database.
    push(&broker, "q", "later", 0..10).await;
    let young = engine(db.url()).await;
    let mut turns = Vec::new();
    for _ in 0..5 {
        turns.push(next(&young).await);
    }
    assert_eq!(turns, ["later", "b", "c", "late", "a"]);
}

#[tokio::test]
async fn seek_to_the_end_skips_and_seek_to_a_time_resumes_behind_it() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    push(&broker, "q", "p", 0..2).await;
    let between = number(&sql, "select (extract(epoch from clock_timestamp()) * 1e6)::bigint").await;
    push(&broker, "q", "p", 2..4).await;
    pop(&broker, any("q").group("g")).await.unwrap();
    assert_eq!(broker.seek("g", "q", SeekTo::End).await.unwrap(), 1);
    assert!(pop(&broker, any("q").group("g")).await.is_none());
    broker.seek("g", "q", SeekTo::Time(0)).await.unwrap();
    let held = pop(&broker, any("q").group("g")).await.unwrap();
    assert_eq!(held.data(), [0]);
    broker.seek("g", "q", SeekTo::Time(0)).await.unwrap();
    assert!(!ack(&broker, &held.messages[0], Completed).await.success, "a seek ends leases");
    broker.seek("g", "q", SeekTo::Time(between)).await.unwrap();
    assert_eq!(data(&broker, any("q").group("g").batch(10)).await, numbers(2..4));
}

#[tokio::test]
async fn an_automatic_ack_commits_at_delivery_and_leaves_no_lease() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    push(&broker, "q", "p", 0..5).await;
    let auto = |batch| PopRequest { auto_ack: true, ..any("q").batch(batch) };
    let popped = pop(&broker, auto(2)).await.unwrap();
    assert_eq!((popped.data(), popped.lease_id.as_str()), (numbers(0..2), ""));
    assert!(popped.messages.iter().all(|message| message.lease_id.is_empty()));
    assert_eq!(number(&sql, "select count(*) from queen.leases").await, 0);
    assert_eq!(data(&broker, auto(2)).await, numbers(2..4));
    // A consumer with leases continues after it.
    assert_eq!(data(&broker, any("q").batch(10)).await, numbers(4..5));
    assert!(pop(&broker, auto(2)).await.is_none(), "leased");
}

#[tokio::test]
async fn a_pop_by_labels_takes_from_every_matching_queue_the_important_ones_first() {
    let db = database().await;
    let broker = engine(db.url()).await;
    for (queue, task, priority) in [("one", "mail", 0), ("two", "mail", 5), ("three", "print", 9)] {
        let body =
            json!({"queue": queue, "namespace": "shop", "task": task, "options": {"priority": priority}});
        broker.configure(&Configure::parse(body.to_string().as_bytes()).unwrap()).await.unwrap();
        push(&broker, queue, "p", 0..1).await;
    }
    push(&broker, "elsewhere.mail", "p", 0..1).await;
    let labels = |namespace: Option<&str>, task: Option<&str>| PopRequest {
        filter: PopFilter::Labels { namespace: namespace.map(Into::into), task: task.map(Into::into) },
        ..any("")
    };
    let mut taken = Vec::new();
    while let Some(popped) = pop(&broker, labels(Some("shop"), Some("mail"))).await {
        taken.push(popped.messages[0].queue.clone());
    }
    assert_eq!(taken, ["two", "one"]);
    let popped = pop(&broker, PopRequest { partitions: 9, ..labels(None, Some("mail")).batch(9) }).await;
    assert_eq!(popped.unwrap().messages[0].queue, "elsewhere.mail", "labels come from the name");
}

#[tokio::test]
async fn an_answer_is_cut_short_at_the_bytes_a_pop_may_have() {
    let db = database().await;
    let broker = engine_with(Config { pop_bytes_max: 100_000, ..config(db.url()) }).await;
    let payload = "x".repeat(30_000);
    for _ in 0..7 {
        send(&broker, &json!([{"queue": "q", "partition": "p", "payload": payload}])).await.unwrap();
    }
    let mut sizes = Vec::new();
    while let Some(popped) = pop(&broker, any("q").batch(100)).await {
        sizes.push(popped.messages.len());
        complete(&broker, &popped).await;
    }
    assert_eq!(sizes.iter().sum::<usize>(), 7, "nothing is lost by it");
    assert!(sizes.iter().all(|size| (1..=3).contains(size)), "{sizes:?}");
}

#[tokio::test]
async fn one_message_larger_than_an_answer_is_delivered_alone() {
    let db = database().await;
    let broker = engine_with(Config { pop_bytes_max: 1_000, ..config(db.url()) }).await;
    let payload = "x".repeat(5_000);
    for _ in 0..2 {
        send(&broker, &json!([{"queue": "q", "partition": "p", "payload": payload}])).await.unwrap();
    }
    assert_eq!(pop(&broker, any("q").batch(100)).await.unwrap().messages.len(), 1);
}

#[tokio::test]
async fn an_unknown_queue_or_partition_is_empty() {
    let db = database().await;
    let broker = engine(db.url()).await;
    assert!(pop(&broker, any("nowhere")).await.is_none());
    assert!(pop(&broker, named("nowhere", "p")).await.is_none());
    push(&broker, "q", "p", 0..1).await;
    assert!(pop(&broker, named("q", "elsewhere")).await.is_none());
    let nothing = PopFilter::Labels { namespace: Some("nobody".into()), task: None };
    assert!(pop(&broker, PopRequest { filter: nothing, ..any("") }).await.is_none());
}

#[tokio::test]
async fn a_lease_lasts_as_long_as_the_request_the_queue_or_the_contract_says() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    let cases = [("asked", 300, 7, 7), ("queues", 45, 0, 45), ("neither", 0, 0, 60)];
    for (queue, lease_time, asked, expected) in cases {
        configure(&broker, queue, json!({"leaseTime": lease_time})).await;
        push(&broker, queue, "p", 0..1).await;
        pop(&broker, PopRequest { lease_seconds: asked, ..any(queue) }).await.unwrap();
        let text = format!(
            "select round(extract(epoch from lease_until - queen.now()))::bigint from queen.leases
             where queue = '{queue}'"
        );
        let left = number(&sql, &text).await;
        assert!((expected - 3..=expected).contains(&left), "{queue}: {left}");
    }
}

#[tokio::test]
async fn a_nacked_partition_is_found_again_by_the_next_pop() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "p", 0..1).await;
    for _ in 0..5 {
        let popped = pop_soon(&broker, &any("q")).await;
        assert!(ack(&broker, &popped.messages[0], Retry).await.lease_released);
        let again = pop(&broker, any("q")).await.expect("it is free at once");
        ack(&broker, &again.messages[0], Retry).await;
    }
}

#[tokio::test]
async fn an_answer_tells_how_long_its_shortest_lease_lasts() {
    let db = database().await;
    let broker = engine(db.url()).await;
    configure(&broker, "shop.slow", json!({"leaseTime": 120})).await;
    configure(&broker, "shop.quick", json!({"leaseTime": 20})).await;
    configure(&broker, "shop.unset", json!({"leaseTime": 0})).await;
    for queue in ["shop.slow", "shop.quick", "shop.unset"] {
        push(&broker, queue, "p", 0..1).await;
    }
    let seconds = async |request: PopRequest| pop(&broker, request).await.unwrap().lease_seconds;
    assert_eq!(seconds(any("shop.slow").group("a")).await, 120);
    assert_eq!(seconds(named("shop.quick", "p").group("a")).await, 20);
    assert_eq!(seconds(any("shop.unset").group("a")).await, 60);
    assert_eq!(seconds(PopRequest { lease_seconds: 7, ..any("shop.slow").group("b") }).await, 7);
    assert_eq!(seconds(PopRequest { auto_ack: true, ..any("shop.slow").group("c") }).await, 0);
    let filter = PopFilter::Labels { namespace: Some("shop".into()), task: None };
    let all = PopRequest { filter, partitions: 3, ..any("").group("d").batch(10) };
    let popped = pop(&broker, all).await.unwrap();
    assert_eq!((popped.partitions_claimed, popped.lease_seconds), (3, 20));
}
