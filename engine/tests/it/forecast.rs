//! Previews of seeks: exact, and without effect.

use queen_engine::{Engine, Seek, SeekForecast, SeekTo};
use queen_protocol::{PopRequest, Subscription};
use queen_testkit::database;
use tokio_postgres::Client;

use crate::support::{Ask, ack, any, complete, drain, engine, named, number, pop, push, push_wide, travel};

async fn unread(broker: &Engine, group: &str) -> i64 {
    let groups = broker.groups(Some(group), Some("q"), 10, 0).await.unwrap();
    groups.first().map_or(0, |group| group.unread)
}

async fn forecast(broker: &Engine, group: &str, partition: Option<&str>, to: SeekTo) -> SeekForecast {
    broker.seek_forecast(group, "q", partition, Seek { to, create: true }).await.unwrap()
}

/// Everything a seek changes.
async fn places(sql: &Client) -> String {
    let text = "select coalesce(string_agg(c::text, ' ' order by c.partition_id, c.consumer_group), '') from queen.consumers c";
    sql.query_one(text, &[]).await.unwrap().get(0)
}

/// The time of the database, in microseconds.
async fn now(sql: &Client) -> i64 {
    number(sql, "select (extract(epoch from queen.now()) * 1000000)::bigint").await
}

#[tokio::test]
async fn a_forecast_is_what_the_seek_then_does_and_does_none_of_it() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    push(&broker, "q", "a", 0..5).await;
    push(&broker, "q", "b", 0..3).await;
    let between = now(&sql).await;
    travel(&sql, "1 minute").await;
    push(&broker, "q", "a", 5..9).await;
    push(&broker, "q", "c", 0..2).await;
    // One group in the middle, one that has read everything, one that starts now, one that reads a single partition,
    // and one that does not exist.
    complete(&broker, &pop(&broker, named("q", "a").group("middle").batch(7)).await.unwrap()).await;
    complete(&broker, &pop(&broker, named("q", "b").group("middle").batch(1)).await.unwrap()).await;
    for partition in ["a", "b", "c"] {
        drain(&broker, "q", partition, "done").await;
    }
    let late = PopRequest { subscription: Subscription::New, ..any("q").group("late") };
    assert!(pop(&broker, late).await.is_none());
    complete(&broker, &pop(&broker, named("q", "b").group("narrow").batch(2)).await.unwrap()).await;
    for group in ["middle", "done", "late", "narrow"] {
        for to in
            [SeekTo::Time(between), SeekTo::End, SeekTo::Time(0), SeekTo::Time(between), SeekTo::Time(0)]
        {
            let (before, stood) = (unread(&broker, group).await, places(&sql).await);
            let seen = forecast(&broker, group, None, to).await;
            assert_eq!(places(&sql).await, stood, "{group} {to:?}: it moves nothing");
            assert_eq!(broker.seek(group, "q", to).await.unwrap(), seen.partitions, "{group} {to:?}");
            let after = unread(&broker, group).await;
            assert_eq!(before + seen.replayed - seen.skipped, after, "{group} {to:?}: {seen:?}");
            let again = forecast(&broker, group, None, to).await;
            assert_eq!((again.replayed, again.skipped), (0, 0), "{group} {to:?}: it is there");
        }
    }
    let seen = forecast(&broker, "new", None, SeekTo::End).await;
    assert_eq!((seen.partitions, seen.replayed, seen.skipped), (3, 0, 14));
    let seen = forecast(&broker, "new", None, SeekTo::Time(0)).await;
    assert_eq!((seen.replayed, seen.skipped), (0, 0), "it would start there");
}

#[tokio::test]
async fn some_messages_may_be_read_again_and_others_skipped() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    push(&broker, "q", "a", 0..4).await;
    let time = now(&sql).await;
    travel(&sql, "1 minute").await;
    push(&broker, "q", "b", 0..3).await;
    drain(&broker, "q", "b", "g").await;
    complete(&broker, &pop(&broker, named("q", "a").group("g")).await.unwrap()).await;
    let seen = forecast(&broker, "g", None, SeekTo::Time(time)).await;
    assert_eq!(seen, SeekForecast { partitions: 2, replayed: 3, skipped: 3, lands: 4 });
}

#[tokio::test]
async fn a_forecast_of_one_partition_does_not_affect_leases() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push_wide(&broker, "q", 0..5).await;
    push(&broker, "q", "p1", 1..4).await;
    let held = pop(&broker, named("q", "p1").group("g").batch(2)).await.unwrap();
    let seen = forecast(&broker, "g", Some("p1"), SeekTo::End).await;
    assert_eq!(seen, SeekForecast { partitions: 1, replayed: 0, skipped: 4, lands: 4 });
    let nowhere = forecast(&broker, "g", Some("nowhere"), SeekTo::End).await;
    assert_eq!(nowhere, SeekForecast { partitions: 0, replayed: 0, skipped: 0, lands: 0 });
    assert!(broker.seek_forecast("g", "nowhere", None, SeekTo::End).await.is_err());
    let done = ack(&broker, &held.messages[1], queen_protocol::AckStatus::Completed).await;
    assert!(done.success && done.lease_released, "{done:?}");
    assert_eq!(broker.seek_partition("g", "q", "p1", SeekTo::Time(0)).await.unwrap(), Some(0));
    assert_eq!(broker.clear("q", Some("p1")).await.unwrap(), Some(4));
    push(&broker, "q", "p1", 0..1).await;
    let seen = forecast(&broker, "g", Some("p1"), SeekTo::Time(0)).await;
    assert_eq!(
        (seen.replayed, seen.skipped, seen.lands),
        (0, 0, 4),
        "the beginning is the oldest that is stored"
    );
}
