//! Starting: on an empty database, on a used one, many at once, and on one that is ahead of this binary.

use queen_engine::{Config, Engine, StartError};
use queen_protocol::PushStatus;
use queen_testkit::{Proxy, database};
use tokio_postgres::Client;

use crate::support::{any, at_once, config, data, engine, number, push, push_ids, travel};

/// Everything a start could have touched, with the transaction that last did.
async fn schema(sql: &Client) -> Vec<String> {
    let text = "select format('%s %s %s %s', 'proc', p.oid, p.proname, p.xmin) from pg_proc p
                where p.pronamespace = 'queen'::regnamespace
                union all
                select format('%s %s %s %s', 'class', c.oid, c.relname, '') from pg_class c
                where c.relnamespace = 'queen'::regnamespace
                union all select format('migration %s %s', m.version, m.xmin) from queen.migrations m
                union all select format('procedure %s %s', p.name, p.xmin) from queen.procedures p
                order by 1";
    sql.query(text, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn eight_brokers_may_start_at_once_on_an_empty_database() {
    let db = database().await;
    let starts = (0..8).map(|_| {
        let config = Config { connections: 2, ..config(db.url()) };
        async move { Engine::start(config).await }
    });
    let mut engines = Vec::new();
    for started in at_once(starts).await {
        engines.push(started.expect("every one of them starts"));
    }
    let sql = db.client().await;
    let applied = number(&sql, "select count(*) from queen.migrations").await;
    assert_eq!(applied, number(&sql, "select max(version)::bigint from queen.migrations").await);
    for engine in &engines {
        push(engine, "q", "p", 0..1).await;
    }
    assert_eq!(number(&sql, "select count(*) from queen.messages").await, 8);
}

#[tokio::test]
async fn a_second_start_changes_nothing() {
    let db = database().await;
    let sql = db.client().await;
    let first = engine(db.url()).await;
    push_ids(&first, "q", "p", &["x"]).await;
    let before = schema(&sql).await;
    first.stop().await;
    let second = engine(db.url()).await;
    assert_eq!(schema(&sql).await, before);
    assert_eq!(push_ids(&second, "q", "p", &["x"]).await[0].status, PushStatus::Duplicate);
    assert_eq!(data(&second, any("q")).await, ["x"]);
}

#[tokio::test]
async fn a_procedure_that_another_version_left_behind_is_replaced_and_no_other() {
    let db = database().await;
    let sql = db.client().await;
    engine(db.url()).await.stop().await;
    travel(&sql, "1 hour").await; // Not ours to replace: it came with the schema.
    let before = schema(&sql).await;
    sql.batch_execute(
        "create or replace function queen.message_id(p_created_at timestamptz, p_offset bigint, p_number bigint)
         returns uuid language sql immutable parallel safe as $$ select null::uuid $$;
         update queen.procedures set checksum = 'of another version' where name = 'message_id'",
    )
    .await
    .unwrap();
    engine(db.url()).await;
    assert_eq!(
        number(&sql, "select count(*) from queen.message_id(now(), 1, 1) id where id is null").await,
        0
    );
    let after = schema(&sql).await;
    let changed = after.iter().filter(|line| !before.contains(line));
    assert!(changed.clone().all(|line| line.contains("message_id")), "{:?}", changed.collect::<Vec<_>>());
}

#[tokio::test]
async fn a_schema_newer_than_the_binary_is_refused_in_words() {
    let db = database().await;
    let sql = db.client().await;
    engine(db.url()).await.stop().await;
    let before = schema(&sql).await;
    sql.batch_execute(
        "insert into queen.migrations (version, name, checksum) values (4711, 'from the future', '')",
    )
    .await
    .unwrap();
    let error = Engine::start(config(db.url())).await.err().expect("it must not start");
    assert!(matches!(error, StartError::SchemaNewer { found: 4711, .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("version 4711") && text.contains("newer"), "{text}");
    sql.batch_execute("delete from queen.migrations where version = 4711").await.unwrap();
    assert_eq!(schema(&sql).await, before, "nothing was touched");
    engine(db.url()).await;
}

#[tokio::test]
async fn a_database_that_cannot_be_reached_or_read_is_named_without_its_password() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    proxy.refuse(true);
    let url = format!("{} password=hush", proxy.url());
    let error = Engine::start(config(&url)).await.err().expect("it must not start");
    let text = error.to_string();
    assert!(matches!(error, StartError::Unreachable { .. }), "{text}");
    assert!(text.contains("127.0.0.1") && !text.contains("hush"), "{text}");
    let error = Engine::start(config("no such = thing")).await.err().expect("it must not start");
    assert!(matches!(error, StartError::Settings(_)), "{error}");
}
