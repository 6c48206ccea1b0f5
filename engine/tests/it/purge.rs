//! Purging dead letters: all that match, however many, and never one that a replay is about to push.

use std::time::Duration;

use queen_engine::{DeadLetterFilter, Engine, RedriveAsk};
use queen_protocol::AckStatus;
use queen_testkit::database;
use tokio::time::timeout;

use crate::support::{
    Ask, ack_all, dead_letters, drain, engine, eventually, named, number, pop, push, travel,
};

/// Makes `count` messages of a partition dead letters of this group.
async fn dead(engine: &Engine, queue: &str, partition: &str, group: &str, count: usize) {
    push(engine, queue, partition, 0..count).await;
    let popped = pop(engine, named(queue, partition).group(group).batch(count as u32)).await.unwrap();
    assert_eq!(popped.messages.len(), count);
    ack_all(engine, &popped.messages, &vec![AckStatus::Dlq; count]).await;
}

async fn purge(engine: &Engine, filter: DeadLetterFilter) -> Option<i64> {
    engine.purge_dead_letters("q", &filter).await.unwrap()
}

#[tokio::test]
async fn a_purge_removes_matching_letters_only_and_updates_the_count() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    assert_eq!(purge(&broker, DeadLetterFilter::default()).await, None);
    dead(&broker, "q", "p", "g", 3).await;
    dead(&broker, "q", "r", "g", 4).await;
    dead(&broker, "q", "s", "h", 5).await;
    dead(&broker, "other", "p", "g", 1).await;
    let named = |text: &str| Some(text.to_owned());
    let left = async || broker.queue("q").await.unwrap().unwrap().dead_letters;
    assert_eq!(left().await, 12);
    for (filter, gone) in [
        (DeadLetterFilter { group: named("nobody"), ..Default::default() }, 0),
        (DeadLetterFilter { partition: named("nowhere"), ..Default::default() }, 0),
        (DeadLetterFilter { error: named("timeout"), ..Default::default() }, 0),
        (DeadLetterFilter { to: Some(0), ..Default::default() }, 0),
        (DeadLetterFilter { from: Some(4_000_000_000_000_000), ..Default::default() }, 0),
        (DeadLetterFilter { partition: named("p"), error: named("NO USE"), ..Default::default() }, 3),
        (DeadLetterFilter { group: named("h"), ..Default::default() }, 5),
        // A purge ignores limit and offset.
        (DeadLetterFilter { from: Some(0), limit: 1, offset: 3, ..Default::default() }, 4),
    ] {
        let before = left().await;
        assert_eq!(purge(&broker, filter.clone()).await, Some(gone), "{filter:?}");
        assert_eq!(left().await, before - gone, "{filter:?}");
    }
    assert_eq!(purge(&broker, DeadLetterFilter::default()).await, Some(0));
    assert_eq!(number(&sql, "select count(*) from queen.dead_letters").await, 1);
}

#[tokio::test]
async fn more_than_a_slice_is_thrown_away_and_nothing_that_fails_meanwhile() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    for partition in ["p", "r", "s"] {
        dead(&broker, "q", partition, "g", 900).await;
    }
    // According to their time, these fail after the purge has started.
    travel(&sql, "1 hour").await;
    dead(&broker, "q", "late", "g", 10).await;
    travel(&sql, "0").await;
    assert_eq!(purge(&broker, DeadLetterFilter::default()).await, Some(2_700));
    assert_eq!(dead_letters(&broker, "q").await.len(), 10);
}

#[tokio::test]
async fn a_purge_skips_a_letter_that_is_being_replayed() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    dead(&broker, "q", "p", "g", 5).await;
    sql.batch_execute(
        "begin; select queen.drop_letters(array(select id from queen.dead_letter_rows order by message_offset limit 2))",
    )
    .await
    .unwrap();
    let purged = timeout(Duration::from_secs(3), purge(&broker, DeadLetterFilter::default()));
    assert_eq!(purged.await.expect("nobody waits"), Some(3));
    sql.batch_execute("rollback").await.unwrap();
    assert_eq!(dead_letters(&broker, "q").await.len(), 2);
    assert_eq!(purge(&broker, DeadLetterFilter::default()).await, Some(2));
}

#[tokio::test]
async fn a_redrive_goes_on_beside_it_and_every_letter_is_one_s_or_the_other_s() {
    let db = database().await;
    let broker = engine(db.url()).await;
    dead(&broker, "q", "p", "g", 60).await;
    let ask = RedriveAsk {
        queue: "q".to_owned(),
        target_queue: None,
        partition: None,
        group: None,
        from: None,
        to: None,
        error: None,
        shape: None,
        per_second: 20,
    };
    let id = broker.start_redrive(&ask).await.unwrap().unwrap().id;
    let state = async || broker.redrive(id).await.unwrap().unwrap();
    eventually("it is under way", async || (state().await.done > 0).then_some(())).await;
    let purged = purge(&broker, DeadLetterFilter::default()).await.unwrap();
    let redrive =
        eventually("it ends", async || Some(state().await).filter(|redrive| redrive.status == "completed"))
            .await;
    assert!(purged > 0, "it was too late");
    assert_eq!((redrive.done + purged, redrive.failed), (60, 0));
    let replayed = drain(&broker, "q", "p", "check").await.len() as i64 - 60;
    assert_eq!((replayed, dead_letters(&broker, "q").await.len()), (redrive.done, 0));
}

#[tokio::test]
async fn a_slice_is_bounded_by_what_it_looks_at_and_goes_on_where_nothing_matches() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    dead(&broker, "q", "p", "g", 7).await;
    // Another group gave up on the same messages. The dead letters of one message are examined together.
    let popped = pop(&broker, named("q", "p").group("wanted").batch(7)).await.unwrap();
    ack_all(&broker, &popped.messages, &[AckStatus::Dlq; 7]).await;
    let text = "select purged, next_partition::text, next_offset
                from queen.purge_letters('q', null, $1, null, null, null, null, $2::text::uuid, $3, 3)";
    for (group, purged) in [("nobody", [0, 0, 0, 0]), ("wanted", [2, 2, 2, 1])] {
        let (mut partition, mut offset) = ("00000000-0000-0000-0000-000000000000".to_owned(), 0_i64);
        for (slice, purged) in purged.into_iter().enumerate() {
            let row = sql.query_one(text, &[&group, &partition, &offset]).await.unwrap();
            assert_eq!(row.get::<_, i64>(0), purged, "{group}, slice {slice}");
            match (row.get::<_, Option<String>>(1), row.get::<_, Option<i64>>(2)) {
                (Some(next), Some(behind)) if slice < 3 => (partition, offset) = (next, behind),
                (None, None) if slice == 3 => {}
                other => panic!("{group}, slice {slice}: {other:?}"),
            }
        }
    }
    assert_eq!(dead_letters(&broker, "q").await.len(), 7);
}

#[tokio::test]
async fn those_behind_many_that_do_not_match_are_found() {
    let db = database().await;
    let broker = engine(db.url()).await;
    for partition in ["p", "r", "s"] {
        dead(&broker, "q", partition, "g", 900).await;
        dead(&broker, "q", &format!("{partition} too"), "wanted", 5).await;
    }
    let filter = DeadLetterFilter { group: Some("wanted".to_owned()), ..Default::default() };
    assert_eq!(purge(&broker, filter.clone()).await, Some(15));
    assert_eq!(purge(&broker, filter).await, Some(0));
    assert_eq!(broker.queue("q").await.unwrap().unwrap().dead_letters, 2_700);
}
