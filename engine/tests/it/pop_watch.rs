//! Ready lists come and go; no pop may wait on one that is no longer updated.

use std::time::Duration;

use queen_engine::{Config, Engine};
use queen_protocol::PopRequest;
use queen_testkit::{Proxy, cluster, database};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::{
    Ask, any, at_once, complete, config, configure, engine, engine_with, named, pop, push, push_wide, within,
};

const LONG: Duration = Duration::from_secs(40);
const SOON: Duration = Duration::from_secs(8);

/// Pops in the background; `parked` waits until all of them are parked.
struct Waiting(JoinSet<bool>);

impl Waiting {
    fn start(broker: &Engine, requests: impl IntoIterator<Item = PopRequest>) -> Self {
        let mut pops = JoinSet::new();
        for request in requests {
            let broker = broker.clone();
            pops.spawn(async move { pop(&broker, request.wait(LONG)).await.is_some() });
        }
        Self(pops)
    }

    async fn parked(&self, broker: &Engine) {
        let all = self.0.len();
        within(SOON, "all pops are parked", async || (broker.stats().parked == all).then_some(())).await;
    }

    async fn served(mut self) {
        let began = Instant::now();
        while let Some(served) = self.0.join_next().await {
            assert!(served.unwrap(), "a pop slept beside ready messages");
        }
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn pops_that_look_while_their_queue_is_configured_or_deleted_are_served_by_the_next_push() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let broker = engine(proxy.url()).await;
    proxy.delay(Duration::from_millis(20));
    for queue in ["a", "b", "c"] {
        let requests = (0..4).map(|group| {
            let request = if group == 0 { named(queue, "p") } else { any(queue) };
            request.group(&group.to_string())
        });
        let waiting = Waiting::start(&broker, requests);
        let changes = (0..3).map(|n| {
            let broker = broker.clone();
            async move {
                for _ in 0..5 {
                    configure(&broker, queue, json!({"priority": n})).await;
                    if n == 2 {
                        broker.delete_queue(queue).await.unwrap();
                    }
                }
            }
        });
        at_once(changes).await;
        waiting.parked(&broker).await;
        push(&broker, queue, "p", 0..1).await;
        waiting.served().await;
    }
}

#[tokio::test]
async fn pops_that_wait_through_a_crash_of_postgresql_are_served_by_the_next_push() {
    let mut cluster = cluster().await;
    let proxy = Proxy::to_postgres(&cluster.url()).await;
    let broker = engine_with(Config { retry_for: Duration::from_secs(20), ..config(proxy.url()) }).await;
    for delay_ms in [10, 40, 70, 100] {
        proxy.delay(Duration::ZERO);
        let waiting = Waiting::start(&broker, (0..30).map(|_| any("q")));
        waiting.parked(&broker).await;
        proxy.delay(Duration::from_millis(delay_ms));
        cluster.restart_immediate().await;
        // By now every pop has looked at the new server, and the broker has examined its log.
        let writer = engine(&cluster.url()).await;
        push_wide(&writer, "other", 0..1).await;
        within(SOON, "the broker finds its log again", async || {
            broker.pop(any("other")).await.ok().flatten()
        })
        .await;
        waiting.parked(&broker).await;
        push_wide(&broker, "q", 0..30).await;
        waiting.served().await;
        writer.delete_queue("q").await.unwrap();
        writer.delete_queue("other").await.unwrap();
        writer.stop().await;
    }
}

#[tokio::test]
async fn groups_that_popped_once_cost_neither_memory_nor_the_time_of_pushes() {
    const GROUPS: usize = 50;
    const PARTITIONS: usize = 400;
    let db = database().await;
    let broker = engine(db.url()).await;
    push_wide(&broker, "q", 0..1).await;
    let pops = (0..GROUPS).map(|group| {
        let broker = broker.clone();
        async move { pop(&broker, any("q").group(&group.to_string())).await.expect("a message") }
    });
    at_once(pops).await;
    push_wide(&broker, "q", 0..PARTITIONS).await;
    let listed = broker.stats().listed;
    assert!(listed <= GROUPS, "a push fills no list without a pop: {listed}");
    within(SOON, "idle lists are dropped", async || (broker.stats().listed == 0).then_some(())).await;
    // What a dropped list contained is read from the database.
    for _ in 1..PARTITIONS {
        let popped = pop(&broker, any("q").group("0")).await.expect("of every partition that is not leased");
        complete(&broker, &popped).await;
    }
    assert!(pop(&broker, any("q").group("0")).await.is_none());
}
