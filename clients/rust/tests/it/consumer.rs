//! Consumers that are stopped, dropped, or killed in the middle of a batch.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use queen_client::{Context, ErrorKind, Message, Queen};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::stub::Nobody;
use crate::support::{PATIENCE, Site};

const URL: &str = "QUEEN_CONSUMER_URL";

/// The process of the next test. Prints what it handled, and never ends.
#[tokio::test]
#[ignore = "it is the consumer that gets killed"]
async fn consumer_process() {
    let Some(url) = std::env::var_os(URL) else { return };
    let queen = Queen::connect(url.to_str().unwrap()).unwrap();
    let consume = queen.queue("q").group("g").consume().batch(10).lease(Duration::from_secs(2));
    let consuming = consume.each(|message: Message<u32>, _| async move {
        println!("handled {}", message.data);
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok::<_, String>(())
    });
    consuming.await.unwrap();
}

#[tokio::test]
async fn a_consumer_killed_in_the_middle_of_a_batch_loses_nothing() {
    let site = Site::start().await;
    site.queen.queue("q").partition("p").push_all(&(0..30).collect::<Vec<u32>>()).await.unwrap();

    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "consumer::consumer_process", "--ignored", "--nocapture"])
        .env(URL, site.broker.url())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut before = Vec::new();
    while before.len() < 7 {
        let line = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().expect("it handles more");
        before.extend(line.strip_prefix("handled ").map(|n| n.parse::<u32>().unwrap()));
    }
    // It has acknowledged some of the batch after a second, and is handling the rest.
    child.kill().await.unwrap();
    assert_eq!(before, (0..7).collect::<Vec<_>>());

    let (sender, mut after) = tokio::sync::mpsc::channel(100);
    let consume = site.queen.queue("q").group("g").consume().batch(10);
    let consuming = consume.each(move |message: Message<u32>, context: Context| {
        let sender = sender.clone();
        async move {
            // The last message.
            if message.data == 29 {
                context.stop();
            }
            sender.send(message.data).await.map_err(|error| error.to_string())
        }
    });
    let summary = timeout(PATIENCE, consuming.into_future()).await.unwrap().unwrap();
    let mut seen = Vec::new();
    after.recv_many(&mut seen, 100).await;
    assert_eq!(summary.handled, seen.len() as u64);
    let all: BTreeSet<u32> = before.iter().chain(&seen).copied().collect();
    assert_eq!(all, (0..30).collect(), "before {before:?}, after {seen:?}");
    assert!(seen.is_sorted() && seen[0] > 0, "what was acknowledged does not come again: {seen:?}");
    assert_eq!(site.depth("q", "g").await, 0);
}

/// A consumer whose handler takes a permit for every message, and blocks at the third until there are more.
async fn held_up(queen: &Queen) -> (queen_client::Consume, Arc<Semaphore>, Arc<Semaphore>) {
    queen.queue("q").partition("a").push_all(&[1, 2, 3, 4]).await.expect("a push");
    queen.queue("q").partition("b").push_all(&[5, 6]).await.expect("a push");
    let consume = queen.queue("q").group("g").consume().batch(10).partitions(2);
    (consume, Arc::new(Semaphore::new(2)), Arc::new(Semaphore::new(0)))
}

#[tokio::test]
async fn what_a_stopped_consumer_has_not_handled_is_free_at_once() {
    let site = Site::start().await;
    let (consume, allowed, reached) = held_up(&site.queen).await;
    let (may, at) = (allowed.clone(), reached.clone());
    let consumer = consume
        .each(move |_: Message<u32>, _| {
            let (may, at) = (may.clone(), at.clone());
            async move {
                at.add_permits(1);
                may.acquire().await.unwrap().forget();
                Ok::<_, String>(())
            }
        })
        .start()
        .unwrap();
    // Two are done, and the third is in progress.
    timeout(PATIENCE, reached.acquire_many(3)).await.unwrap().unwrap().forget();
    let stopping = consumer.stopper();
    stopping.stop();
    allowed.add_permits(1);
    let summary = timeout(PATIENCE, consumer.stop()).await.unwrap().unwrap();
    assert_eq!((summary.handled, summary.failed, summary.batches), (3, 0, 1));
    assert_eq!(consumer.stop().await.unwrap(), summary, "twice is fine");
    // Immediately: the leases would last for minutes.
    let rest = site.queen.queue("q").group("g").pop::<u32>().batch(10).partitions(2).await.unwrap();
    assert_eq!(rest.iter().map(|message| message.data).collect::<BTreeSet<_>>(), BTreeSet::from([4, 5, 6]));
    assert!(rest.iter().all(|message| message.retry_count() == 0));
}

#[tokio::test]
async fn a_stop_that_has_waited_long_enough_gives_back_what_the_handler_has() {
    let site = Site::start().await;
    let (consume, _, reached) = held_up(&site.queen).await;
    let at = reached.clone();
    let consumer = consume
        .stop_timeout(Duration::from_millis(50))
        .each(move |_: Message<u32>, context: Context| {
            at.add_permits(1);
            async move {
                context.stopping().await;
                std::future::pending::<Result<(), String>>().await
            }
        })
        .start()
        .unwrap();
    timeout(PATIENCE, reached.acquire()).await.unwrap().unwrap().forget();
    let summary = timeout(PATIENCE, consumer.stop()).await.unwrap().unwrap();
    assert_eq!((summary.handled, summary.failed), (0, 0));
    let all = site.queen.queue("q").group("g").pop::<u32>().batch(10).partitions(2).await.unwrap();
    assert_eq!(all.len(), 6);
}

#[tokio::test]
async fn dropping_a_consumer_gives_back_what_it_has() {
    let site = Site::start().await;
    let (consume, _, reached) = held_up(&site.queen).await;
    let at = reached.clone();
    let consuming = consume.stop_timeout(Duration::from_millis(50)).each(move |_: Message<u32>, _| {
        at.add_permits(1);
        std::future::pending::<Result<(), String>>()
    });
    tokio::select! {
        _ = consuming.into_future() => panic!("it has no end"),
        permit = reached.acquire() => permit.unwrap().forget(),
    }
    let group = site.queen.queue("q").group("g");
    let mut all = BTreeSet::new();
    while all.len() < 6 {
        let some = group.pop::<u32>().batch(10).partitions(2).wait(PATIENCE).await.unwrap();
        assert!(!some.is_empty(), "got {all:?} only");
        all.extend(some.iter().map(|message| message.data));
    }
}

#[tokio::test]
async fn a_consumer_that_waits_is_stopped_at_once_and_takes_nothing_afterwards() {
    let site = Site::start().await;
    let consume = site.queen.queue("q").group("g").consume().wait(Duration::from_secs(60)).concurrency(4);
    let consumer = consume.each(|_: Message<u32>, _| async { Ok::<_, String>(()) }).start().unwrap();
    site.parked(4).await;
    let summary = timeout(PATIENCE, consumer.stop()).await.unwrap().unwrap();
    assert_eq!(summary.batches, 0);
    site.queen.queue("q").push(&1).await.unwrap();
    assert_eq!(site.queen.queue("q").group("g").pop::<u32>().await.unwrap().len(), 1);
}

#[tokio::test]
async fn an_idle_consumer_whose_broker_is_away_ends_with_the_error() {
    let nobody = Nobody::new();
    let queen = Queen::builder().url(&nobody.url).max_retry_delay(Duration::from_millis(20)).build().unwrap();
    let consume = queen.queue("q").consume().idle_timeout(Duration::from_millis(100));
    let consuming = consume.each(|_: Message<u32>, _| async { Ok::<_, String>(()) });
    let error = timeout(PATIENCE, consuming.into_future()).await.unwrap().unwrap_err();
    assert!(error.kind() == ErrorKind::Network && error.attempts() > 1, "{error}");
}

#[tokio::test]
async fn a_stopped_consumer_of_batches_gives_back_what_its_handler_does_not_finish() {
    let site = Site::start().await;
    let (consume, _, reached) = held_up(&site.queen).await;
    let at = reached.clone();
    let consumer = consume
        .stop_timeout(Duration::from_millis(50))
        .batches(move |_: Vec<Message<u32>>, _| {
            at.add_permits(1);
            std::future::pending::<Result<(), String>>()
        })
        .start()
        .unwrap();
    timeout(PATIENCE, reached.acquire()).await.unwrap().unwrap().forget();
    let summary = timeout(PATIENCE, consumer.stop()).await.unwrap().unwrap();
    assert_eq!((summary.handled, summary.failed, summary.batches), (0, 0, 1));
    let all = site.queen.queue("q").group("g").pop::<u32>().batch(10).partitions(2).await.unwrap();
    assert_eq!(all.len(), 6);
}

#[tokio::test]
async fn a_handler_that_panics_has_failed_and_the_consumer_goes_on() {
    let site = Site::start().await;
    site.queen.queue("q").partition("p").push_all(&[1, 2]).await.unwrap();
    let summary = site
        .queen
        .queue("q")
        .group("g")
        .consume()
        .batch(2)
        .limit(3)
        .each(|message: Message<u32>, _| async move {
            assert!(message.retry_count() > 0 || message.data != 1, "the first time");
            Ok::<_, String>(())
        })
        .await
        .unwrap();
    assert_eq!((summary.handled, summary.failed), (2, 1));
    assert_eq!(site.depth("q", "g").await, 0);
}

#[tokio::test]
async fn what_stands_behind_a_dead_letter_of_its_batch_comes_at_once() {
    let site = Site::start().await;
    let options = queen_client::admin::QueueOptions { retry_limit: Some(0), ..Default::default() };
    site.queen.admin().configure("q", &options).await.unwrap();
    site.queen.queue("q").partition("p").push_all(&[1, 2, 3]).await.unwrap();
    let consume = site.queen.queue("q").group("g").consume().batch(3).limit(3);
    let consuming = consume
        .each(|message: Message<u32>, _| async move { if message.data == 1 { Err("no") } else { Ok(()) } });
    // The lease would last for minutes.
    let summary = timeout(PATIENCE, consuming.into_future()).await.unwrap().unwrap();
    assert_eq!((summary.handled, summary.failed), (2, 1));
}
