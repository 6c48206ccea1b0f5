//! Lists of partitions by backlog: largest first, however many there are.

use queen_engine::{Engine, PartitionFigures};
use queen_testkit::database;
use uuid::Uuid;

use crate::support::{Ask, any, drain, engine, pop, push, push_wide};

async fn page(
    broker: &Engine,
    queue: Uuid,
    group: Option<&str>,
    search: Option<&str>,
    limit: i64,
    offset: i64,
) -> Vec<PartitionFigures> {
    broker.partition_page(Some(queue), group, search, limit, offset).await.unwrap()
}

fn named_and_unread(page: &[PartitionFigures]) -> Vec<(&str, i64)> {
    page.iter().map(|partition| (partition.name.as_str(), partition.unread)).collect()
}

async fn id(broker: &Engine, queue: &str) -> Uuid {
    broker.queue(queue).await.unwrap().expect("it is known").id
}

#[tokio::test]
async fn the_fullest_come_first_and_a_part_of_the_name_chooses() {
    let db = database().await;
    let broker = engine(db.url()).await;
    for (partition, count) in [("Customer-1", 2), ("customer-12", 5), ("%", 1), ("supplier", 3)] {
        push(&broker, "q", partition, 0..count).await;
    }
    push(&broker, "other", "customer-12", 0..9).await;
    drain(&broker, "q", "customer-12", "g").await;
    let queue = id(&broker, "q").await;
    let all = page(&broker, queue, None, None, 10, 0).await;
    assert_eq!(
        named_and_unread(&all),
        [("supplier", 3), ("Customer-1", 2), ("%", 1), ("customer-12", 0)],
        "the group that reads there has read it"
    );
    let some = page(&broker, queue, None, Some("CUSTOMER"), 10, 0).await;
    assert_eq!(named_and_unread(&some), [("Customer-1", 2), ("customer-12", 0)]);
    assert_eq!(named_and_unread(&page(&broker, queue, None, Some("%"), 10, 0).await), [("%", 1)]);
    assert_eq!(
        named_and_unread(&page(&broker, queue, None, None, 2, 1).await),
        [("Customer-1", 2), ("%", 1)]
    );
    assert!(page(&broker, queue, None, None, 2, i64::MAX).await.is_empty());
    let of_all = broker.partition_page(None, None, Some("12"), 10, 0).await.unwrap();
    assert_eq!(named_and_unread(&of_all), [("customer-12", 9), ("customer-12", 0)]);
}

#[tokio::test]
async fn of_a_large_queue_all_are_named_once_and_those_that_stood_out_first() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push_wide(&broker, "q", 0..1_500).await;
    push(&broker, "q", "p777", 0..9).await;
    push(&broker, "q", "p1234", 0..5).await;
    drop(pop(&broker, any("q").group("g")).await);
    broker.refresh_statistics().await.unwrap();
    let queue = id(&broker, "q").await;
    for group in [None, Some("g")] {
        let first = page(&broker, queue, group, None, 300, 0).await;
        assert_eq!(named_and_unread(&first)[..2], [("p777", 10), ("p1234", 6)], "{group:?}");
        let mut names = Vec::new();
        for at in 0..6 {
            let found = page(&broker, queue, group, None, 300, at * 300).await;
            names.extend(found.into_iter().map(|partition| partition.name));
        }
        assert_eq!(names.len(), 1_500, "{group:?}");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 1_500, "{group:?}");
    }
    let found = page(&broker, queue, Some("g"), Some("P12"), 1_000, 0).await;
    assert_eq!(found.len(), 111, "p12, p120 to p129 and p1200 to p1299");
    assert_eq!(found.iter().filter(|partition| partition.name == "p1234").count(), 1);
    assert_eq!(page(&broker, queue, Some("g"), Some("p"), 7, 1_498).await.len(), 2);
}
