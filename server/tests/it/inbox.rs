//! Pushes from SQL with real brokers: one is killed while it moves them, and another continues.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use queen_testkit::Broker;
use serde_json::json;

use crate::support::{Server, drained, eventually, numbers};
use crate::waiting::{answer, parked};

const QUEEN: &str = env!("CARGO_BIN_EXE_queen");

#[tokio::test]
async fn a_commit_in_sql_wakes_a_long_poll_of_any_broker() {
    let here = Server::start().await;
    let there = here.twin().await;
    let sql = here.database.client().await;
    for (server, queue) in [(&here, "a"), (&there, "b"), (&here, "c")] {
        let poll = parked(&server.url, &format!("/api/v1/pop/queue/{queue}?wait=true&timeout=30000")).await;
        let began = Instant::now();
        sql.execute("select queen.push($1, 'p', '\"from sql\"')", &[&queue]).await.unwrap();
        assert!(answer(poll).await.contains("from sql"));
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn brokers_are_killed_and_every_committed_row_arrives_once_and_in_order() {
    let database = queen_testkit::database().await;
    let start =
        async || Broker::start(Path::new(QUEEN), &["--database-url", database.url()], &[]).await.unwrap();
    let mut brokers = vec![start().await, start().await];
    let stop = Arc::new(AtomicBool::new(false));
    let (pusher, stopped) = (database.client().await, stop.clone());
    let pushing = async move {
        let mut n: i32 = 0;
        while !stopped.load(SeqCst) {
            let text = "select queen.push('q', 'p', to_jsonb(n)) from generate_series($1::int, $1 + 4) n";
            pusher.execute(text, &[&n]).await.unwrap();
            n += 5;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        usize::try_from(n).unwrap()
    };
    let sql = database.client().await;
    let number = async |text: &str| sql.query_one(text, &[]).await.unwrap().get::<_, i64>(0);
    let killing = async {
        for _ in 0..3 {
            let moved = "select coalesce(sum(head), 0)::bigint from queen.heads";
            let before = number(moved).await;
            eventually("rows are moved", async || (number(moved).await > before).then_some(())).await;
            // The first broker has run longest, so it is the one that moves the rows.
            brokers[0].kill9().await;
            brokers.remove(0);
            brokers.push(start().await);
        }
        stop.store(true, SeqCst);
    };
    let (pushed, ()) = tokio::join!(pushing, killing);
    eventually("the inbox is empty", async || {
        (number("select count(*) from queen.inbox").await == 0).then_some(())
    })
    .await;
    let found = drained(brokers[0].url(), "p").await;
    assert!(found == numbers(0..pushed), "{} of {pushed}, the first {:?}", found.len(), found.first());
    assert_eq!(json!(found.len()), json!(pushed));
}
