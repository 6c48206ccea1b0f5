//! API keys in the database, and the queues that partitions belong to.

use queen_engine::{NewKey, QueueFilter, StartError, create_key, list_keys, revoke_key};
use queen_testkit::{database, empty_database};
use uuid::Uuid;

use crate::support::{config, engine, push};

fn new<'a>(id: &'a str, hash: &'a [u8], seconds: Option<i64>) -> NewKey<'a> {
    let grants = Some(r#"[{"queues": ["a"], "rights": ["pop"]}]"#);
    NewKey { id, name: "ci", role: "admin", grants, hash, seconds }
}

#[tokio::test]
async fn a_key_lives_until_it_is_revoked_or_expires_and_is_remembered() {
    let db = empty_database().await;
    let config = config(db.url());
    assert!(matches!(list_keys(&config).await, Err(StartError::NoSchema)), "no broker was here yet");
    let broker = engine(db.url()).await;
    let (first, second) = ("00000000000000aa", "00000000000000bb");
    assert_eq!(create_key(&config, &new(first, &[1; 32], None)).await.unwrap(), None);
    assert!(create_key(&config, &new(second, &[2; 32], Some(600))).await.unwrap().is_some());
    let live = async || broker.live_keys().await.unwrap().into_iter().map(|key| key.id).collect::<Vec<_>>();
    assert_eq!(live().await, [first, second]);
    db.client()
        .await
        .batch_execute("update queen.api_keys set expires_at = now() where expires_at is not null")
        .await
        .unwrap();
    assert_eq!(live().await, [first]);
    assert!(revoke_key(&config, first).await.unwrap());
    assert!(!revoke_key(&config, first).await.unwrap() && !revoke_key(&config, "nobody").await.unwrap());
    assert!(live().await.is_empty());
    let all = list_keys(&config).await.unwrap();
    assert_eq!(all.len(), 2);
    assert!(all[0].revoked_at.is_some() && all[0].hash == [1; 32] && all[0].grants.is_some());
    // Keys that no broker could read are not stored.
    for bad in [new(first, &[1; 32], None), new("x", &[1; 32], None), new("00000000000000cc", &[1; 31], None)]
    {
        assert!(create_key(&config, &bad).await.is_err());
    }
}

#[tokio::test]
async fn a_partition_is_known_by_id_and_by_number() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let mut ids = Vec::new();
    for queue in ["a", "b"] {
        ids.push(push(&broker, queue, "p", 0..1).await[0].partition_id);
    }
    let asked = [ids[1], Uuid::nil(), ids[0], ids[1]];
    // The second time, the owners come from memory.
    for _ in 0..2 {
        let owners = broker.owners(&asked).await.unwrap();
        let names: Vec<_> = owners.iter().map(Option::as_deref).collect();
        assert_eq!(names, [Some("b"), None, Some("a"), Some("b")]);
    }
    let sql = db.client().await;
    let number: i64 =
        sql.query_one("select number from queen.partitions where id = $1", &[&ids[0]]).await.unwrap().get(0);
    let fresh = engine(db.url()).await;
    let owners = fresh.owners_of_numbers(&[number, -1]).await.unwrap();
    assert_eq!(owners.iter().map(Option::as_deref).collect::<Vec<_>>(), [Some("a"), None]);
}

#[tokio::test]
async fn queues_are_listed_by_pattern() {
    let db = database().await;
    let broker = engine(db.url()).await;
    for queue in ["a_b", "axb", "a%", "a\\b"] {
        push(&broker, queue, "p", 0..1).await;
    }
    for (pattern, expected) in [
        ("a_*", &["a_b"][..]),
        ("a%", &["a%"]),
        ("a\\*", &["a\\b"]),
        ("*b", &["a\\b", "a_b", "axb"]),
        ("", &[]),
    ] {
        let filter =
            QueueFilter { patterns: Some(vec![pattern.to_owned()]), limit: 10, ..QueueFilter::default() };
        let mut names: Vec<String> =
            broker.queues(&filter).await.unwrap().into_iter().map(|queue| queue.name).collect();
        names.sort_unstable();
        assert_eq!(names, expected, "{pattern}");
    }
}
