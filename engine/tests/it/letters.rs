//! Dead letters grouped by their errors, and selected by group.

use queen_engine::{DeadLetterFilter, Engine, LetterShape};
use queen_protocol::{AckItem, AckStatus};
use queen_testkit::database;
use tokio_postgres::Client;

use crate::support::{Ask, ack_items, ack_of, engine, named, number, pop, push, travel};

/// Pushes one message for each of these errors, and makes it a dead letter of `g` with that error.
pub async fn dead_of(engine: &Engine, queue: &str, partition: &str, errors: &[Option<&str>]) {
    push(engine, queue, partition, 0..errors.len()).await;
    let popped = pop(engine, named(queue, partition).group("g").batch(errors.len() as u32))
        .await
        .expect("they are there");
    assert_eq!(popped.messages.len(), errors.len());
    let item = |(message, error): (_, &Option<&str>)| AckItem {
        error: error.map(str::to_owned),
        ..ack_of(message, AckStatus::Dlq)
    };
    ack_items(engine, popped.messages.iter().zip(errors).map(item).collect()).await;
}

fn of_shape(shape: &str) -> DeadLetterFilter {
    DeadLetterFilter { shape: Some(shape.to_owned()), limit: 100, ..Default::default() }
}

async fn shape(sql: &Client, error: Option<&str>) -> String {
    sql.query_one("select queen.error_shape($1)", &[&error]).await.unwrap().get(0)
}

fn counts(shapes: &[LetterShape]) -> Vec<(&str, i64, i64)> {
    shapes.iter().map(|each| (each.shape.as_str(), each.count, each.queues)).collect()
}

#[tokio::test]
async fn a_shape_is_the_error_without_what_varies() {
    let db = database().await;
    let sql = db.client().await;
    let long = "x".repeat(5_000);
    for (error, expected) in [
        ("no such customer 42", "no such customer #"),
        ("order 01a1dee1-7461-7000-8000-000000000002 is gone", "order # is gone"),
        (
            "at 2026-11-15T11:04:40.814Z: no answer from 10.0.0.1:5432 after 12ms",
            "at #Z: no answer from # after #ms",
        ),
        ("0x1f, deadbeefcafe and DEADBEEF12, but a facade", "#, # and #, but a facade"),
        ("cannot parse \"a \\\"b\\\" c\" as 'date', nor `x`", "cannot parse # as #, nor #"),
        ("it isn't the user's fault", "it isn't the user's fault"),
        (r#"{"code": 7, "why": "no \"x\"", "at": [1, 2]}"#, "{code: #, why: #, at: [#, #]}"),
        ("  two\nlines\tof it ", "two lines of it"),
        ("100% of _ and %", "#% of _ and %"),
        (" \n", ""),
        ("", ""),
        (long.as_str(), &long[..200]),
    ] {
        assert_eq!(shape(&sql, Some(error)).await, expected);
    }
    assert_eq!(shape(&sql, None).await, "");
}

#[tokio::test]
async fn alike_are_counted_together_and_a_shape_chooses_exactly_those() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let none = broker.letter_shapes(&of_shape("")).await.unwrap();
    assert_eq!((none.shapes.len(), none.total, none.counted), (0, 0, 0));
    let customers = [Some("no such customer 1"), Some("no such customer 22"), Some("No such customer 1")];
    dead_of(&broker, "q", "p", &customers).await;
    dead_of(&broker, "q", "r", &[None, Some(""), Some("timeout after 3 s")]).await;
    dead_of(&broker, "other", "p", &[Some("no such customer 333")]).await;
    let all = broker.letter_shapes(&DeadLetterFilter { limit: 100, ..Default::default() }).await.unwrap();
    assert_eq!((all.total, all.counted), (7, 7));
    assert_eq!(counts(&all.shapes)[..2], [("no such customer #", 3, 2), ("", 2, 1)]);
    assert_eq!(all.shapes.len(), 4);
    let customer = &all.shapes[0];
    assert!(customer.example.starts_with("no such customer ") && customer.example.len() > 17, "{customer:?}");
    assert!(customer.first_failed_at < customer.last_failed_at, "{customer:?}");

    // Listing by a shape returns exactly the letters that were counted.
    for each in &all.shapes {
        let (letters, total) = broker.dead_letters(&of_shape(&each.shape)).await.unwrap();
        assert_eq!((letters.len() as i64, total), (each.count, each.count), "{each:?}");
        assert_eq!(letters.iter().map(|letter| letter.failed_at).max(), Some(each.last_failed_at));
        assert_eq!(letters.iter().map(|letter| letter.failed_at).min(), Some(each.first_failed_at));
    }
    assert_eq!(
        broker.dead_letters(&of_shape("no such customer 1")).await.unwrap().1,
        0,
        "not an error, a shape"
    );
    let narrow = |filter: DeadLetterFilter| {
        let broker = broker.clone();
        async move { broker.letter_shapes(&DeadLetterFilter { limit: 1, ..filter }).await.unwrap() }
    };
    let named = |text: &str| Some(text.to_owned());
    let found = narrow(DeadLetterFilter { queue: named("q"), ..Default::default() }).await;
    assert_eq!(
        (counts(&found.shapes), found.total),
        (vec![("", 2, 1)], 6),
        "of two that are as frequent the newer"
    );
    let found = narrow(DeadLetterFilter { partition: named("p"), ..Default::default() }).await;
    assert_eq!(found.total, 4, "of any queue");
    let in_other = DeadLetterFilter { queue: named("other"), partition: named("p"), ..Default::default() };
    assert_eq!(narrow(in_other).await.total, 1);
    let elsewhere = DeadLetterFilter { queue: named("other"), partition: named("r"), ..Default::default() };
    assert_eq!(narrow(elsewhere).await.total, 0);
    let found = narrow(DeadLetterFilter { error: named("TIMEOUT"), ..Default::default() }).await;
    assert_eq!(counts(&found.shapes), [("timeout after # s", 1, 1)]);
    assert_eq!(narrow(DeadLetterFilter { group: named("nobody"), ..Default::default() }).await.total, 0);
    assert_eq!(narrow(DeadLetterFilter { to: Some(0), ..Default::default() }).await.total, 0);
    assert_eq!(narrow(DeadLetterFilter { queue: named("nowhere"), ..Default::default() }).await.total, 0);

    // A purge deletes exactly what was shown.
    let purged = broker.purge_dead_letters("q", &of_shape("")).await.unwrap();
    assert_eq!(purged, Some(2));
    let purged = broker.purge_dead_letters("q", &of_shape("no such customer #")).await.unwrap();
    assert_eq!(purged, Some(2));
    let left = broker.letter_shapes(&DeadLetterFilter { limit: 100, ..Default::default() }).await.unwrap();
    let mut left = counts(&left.shapes);
    left.sort_unstable();
    assert_eq!(
        left,
        [("No such customer #", 1, 1), ("no such customer #", 1, 1), ("timeout after # s", 1, 1)]
    );
}

#[tokio::test]
async fn only_the_newest_letters_are_grouped_if_there_are_too_many() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    dead_of(&broker, "q", "p", &[Some("old"); 3]).await;
    travel(&sql, "1 hour").await;
    dead_of(&broker, "q", "r", &[Some("new"), Some("new")]).await;
    for queue in ["'q'", "null"] {
        let text = format!(
            "select count(*) from queen.letter_shapes({queue}, null, null, null, null, null, 2, 10) s
             where s.shape = 'new' and s.count = 2 and s.total = 5 and s.counted = 2"
        );
        assert_eq!(number(&sql, &text).await, 1, "{queue}");
    }
}
