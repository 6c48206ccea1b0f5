//! A role that may create objects in schema `public`, as every role may on clusters older than PostgreSQL 15, and tries to make the
//! broker's role call one of them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use queen_engine::{DeadLetterFilter, SeekTo, examine};
use queen_protocol::AckStatus;
use queen_testkit::{Database, connect, empty_database};
use serde_json::json;
use tokio_postgres::Client;

use crate::support::{
    Ask, ack, ack_operation, any, config, configure, dead_letters, engine_with, eventually, named, number,
    parked, pop, pop_soon, push, push_ids, push_operation, send, transact,
};

const LONG: Duration = Duration::from_secs(12);

/// All words in the SQL of this crate that are followed by an opening parenthesis, or follow `from` and the like.
fn words() -> (BTreeSet<String>, BTreeSet<String>) {
    fn read(folder: &Path, text: &mut String) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension().and_then(|extension| extension.to_str()) {
                _ if path.is_dir() => read(&path, text),
                Some("sql" | "rs") => text.push_str(&fs::read_to_string(&path).unwrap()),
                _ => {}
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    for folder in ["sql", "src/db", "src/doctor"] {
        read(&root.join(folder), &mut text);
    }
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let (mut called, mut all) = (BTreeSet::new(), BTreeSet::new());
    let mut rest = text.as_str();
    while let Some(start) = rest.find(is_word) {
        rest = &rest[start..];
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(end);
        if behind.starts_with('(') {
            called.insert(word.to_owned());
        }
        all.insert(word.to_owned());
        rest = behind;
    }
    (called, all)
}

fn array(words: impl IntoIterator<Item = String>) -> String {
    format!("'{{{}}}'::text[]", words.into_iter().collect::<Vec<_>>().join(","))
}

/// A database whose schema `public` is full of hostile objects, and sessions of its owner and of
/// the role that planted them.
async fn hostile_database() -> (Database, Client, Client) {
    let db = empty_database().await;
    let sql = db.client().await;
    let role = format!("{}_mallory", db.name());
    sql.batch_execute(&format!(
        "create role {role} login password 'x'; grant create, usage on schema public to {role};
         set search_path = pg_catalog"
    ))
    .await
    .unwrap();
    let user = db.url().parse::<tokio_postgres::Config>().unwrap().get_user().unwrap().to_owned();
    let url = db.url().replace(&format!("user={user}"), &format!("user={role}"));
    let mallory = connect(&format!("{url} password=x")).await.unwrap();
    let (called, all) = words();
    let built_in = "select coalesce(array_agg(distinct p.proname::text), '{}') from pg_proc p
                    where p.pronamespace = 'pg_catalog'::regnamespace and p.proname = any ($1)";
    // PostgreSQL has no longer names.
    let called: Vec<String> = called.into_iter().filter(|name| name.len() < 64).collect();
    let names: Vec<String> = sql.query_one(built_in, &[&called]).await.unwrap().get(0);
    assert!(names.len() > 80 && names.iter().any(|name| name == "make_interval"), "{names:?}");
    let relations = all.into_iter().filter(|word| word.starts_with("pg_"));
    let plant =
        include_str!("hostile.sql").replace("$names", &array(names)).replace("$relations", &array(relations));
    mallory
        .batch_execute(&format!("set search_path = pg_catalog; {plant}; reset search_path"))
        .await
        .unwrap();
    // A search path in which `pg_catalog` comes last.
    let path = format!("alter database {} set search_path = public, pg_catalog", db.name());
    sql.batch_execute(&path).await.unwrap();
    (db, sql, mallory)
}

/// The hostile objects that were called.
async fn hits(sql: &Client) -> Vec<String> {
    let text = "select s.sequencename::text from pg_sequences s where s.sequencename like 'hit %' and s.last_value is not null";
    sql.query(text, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn a_broker_calls_nothing_that_a_neighbor_has_planted() {
    let (db, sql, mallory) = hostile_database().await;
    let mut settings = config(db.url());
    settings.retention_interval = Duration::from_millis(100);
    settings.eviction_interval = Duration::from_millis(100);
    settings.statistics_interval = Duration::from_millis(100);
    settings.metrics_aggregate = Duration::from_millis(200);
    queen_engine::migrate(&settings).await.expect("the schema is installed");
    let broker = engine_with(settings.clone()).await;

    let options = json!({"retryLimit": 1, "retryDelay": 0, "retentionEnabled": true, "retentionSeconds": 3600,
                         "completedRetentionSeconds": 60, "maxWaitTimeSeconds": 3600, "windowBuffer": 0});
    configure(&broker, "q", options).await;
    let waiting = parked(&broker, any("q").group("w").wait(LONG)).await;
    push(&broker, "q", "p", 0..20).await;
    waiting.answer().await.expect("it is woken");
    let traced = json!([{"queue": "q", "partition": "p", "payload": 1, "traceId": "00000000-0000-0000-0000-000000000007"}]);
    send(&broker, &traced).await.unwrap();
    push_ids(&broker, "q", "p2", &["a", "b", "c", "d"]).await;
    push_ids(&broker, "q", "p2", &["a", "b", "c", "d"]).await;
    let popped = pop(&broker, named("q", "p").batch(5)).await.unwrap();
    assert!(broker.renew(&popped.lease_id, 60).await.is_ok());
    assert!(ack(&broker, &popped.messages[2], AckStatus::Completed).await.success);
    assert!(ack(&broker, &popped.messages[3], AckStatus::Failed).await.success);
    for _ in 0..2 {
        let popped = pop_soon(&broker, &named("q", "p2").group("g")).await;
        assert!(ack(&broker, &popped.messages[0], AckStatus::Failed).await.success);
    }
    assert_eq!(dead_letters(&broker, "q").await.len(), 1);
    broker
        .letter_shapes(&DeadLetterFilter { queue: Some("q".to_owned()), limit: 10, ..Default::default() })
        .await
        .unwrap();
    let popped = pop_soon(&broker, &named("q", "p2").group("t")).await;
    let body = json!({"operations": [ack_operation(&popped.messages[0], "completed"), push_operation("q", "p3", &json!(1))]});
    assert!(transact(&broker, &body).await.success);
    broker.seek("g", "q", SeekTo::Time(0)).await.unwrap();
    broker.message(popped.partition_id, "b").await.unwrap().expect("it is stored");
    assert!(broker.delete_message(popped.partition_id, "d").await.unwrap());
    broker.refresh_statistics().await.unwrap();
    broker.queue("q").await.unwrap().expect("it exists");
    broker.overview().await.unwrap();
    broker.trouble().await.unwrap();
    broker.trace_names(10, 0).await.unwrap();
    broker.redrives(10, 0).await.unwrap();
    broker.operations_stats().await.unwrap();
    broker.postgres_stats().await.unwrap();
    broker.live_keys().await.unwrap();
    broker.set_pop_maintenance(true).await.unwrap();
    broker.set_pop_maintenance(false).await.unwrap();
    assert!(examine(&settings).await.unwrap().facts.is_some());

    // From SQL: a role that may push, in a session with a bad search path.
    let role = format!("{}_mallory", db.name());
    let grants = format!(
        "grant usage on schema queen to {role}; grant execute on function queen.push(text, text, jsonb, text, uuid) to {role}"
    );
    sql.batch_execute(&grants).await.unwrap();
    mallory.batch_execute("select queen.push('q', 'sql', '{\"n\": 1}', 'id')").await.unwrap();
    eventually("the message arrives", async || pop(&broker, named("q", "sql").group("g")).await).await;

    // From SQL: a user with the broker's rights and PostgreSQL's default search path.
    let person = db.client().await;
    person.batch_execute("set search_path = \"$user\", public").await.unwrap();
    for text in [
        "table queen.messages",
        "table queen.lag",
        "table queen.leases",
        "table queen.dead_letters",
        "delete from queen.dead_letters",
        "select queen.push_messages_v3('[{\"queue\": \"q\", \"payload\": 1}]')",
        "select queen.push_messages_v2('[{\"queue\": \"q\", \"payload\": 1}]')",
        "select queen.pop_specific_batch('[{\"idx\": 0, \"queue_name\": \"q\", \"partition_name\": \"Default\", \
         \"consumer_group\": \"g\", \"lease_seconds\": 60, \"worker_id\": \"w\", \"batch_size\": 2, \"sub_mode\": \"all\", \"sub_from\": \"\"}]')",
        "delete from queen.queues",
    ] {
        person.batch_execute(text).await.unwrap_or_else(|error| panic!("{text}: {error:?}"));
    }
    assert_eq!(number(&sql, "select count(*) from queen.queues").await, 0);
    broker.stop().await;
    assert_eq!(hits(&sql).await, Vec::<String>::new(), "hostile objects were called");
}

/// Sessions of brokers have their own search path. Procedures that run in other sessions have to set one, or use names
/// that were resolved when they were created.
#[tokio::test]
async fn what_runs_in_sessions_of_others_does_not_use_their_search_path() {
    let db = queen_testkit::database().await;
    let _broker = engine_with(config(db.url())).await;
    let sql = db.client().await;
    let text = "select coalesce(string_agg(p.oid::regprocedure::text, ', '), '') from pg_proc p
                where p.pronamespace = 'queen'::regnamespace and p.prosqlbody is null
                  and not coalesce(p.proconfig, '{}') @> '{\"search_path=pg_catalog, pg_temp\"}'
                  and (p.prosecdef or p.prorettype = 'trigger'::regtype or has_function_privilege('public', p.oid, 'execute')
                       or p.proname = any ('{push_messages_v2,push_messages_v3,pop_specific_batch}'))";
    let found: String = sql.query_one(text, &[]).await.unwrap().get(0);
    assert_eq!(found, "");
    // Names that were resolved at creation refer to PostgreSQL's own objects.
    let text = "select coalesce(string_agg(pg_describe_object(d.classid, d.objid, d.objsubid) || ' uses '
                                           || pg_describe_object(d.refclassid, d.refobjid, 0), ', '), '')
                from pg_depend d
                join pg_namespace n on n.nspname = 'public'
                left join pg_proc p on d.refclassid = 'pg_proc'::regclass and p.oid = d.refobjid
                left join pg_operator o on d.refclassid = 'pg_operator'::regclass and o.oid = d.refobjid
                where n.oid in (p.pronamespace, o.oprnamespace)";
    let found: String = sql.query_one(text, &[]).await.unwrap().get(0);
    assert_eq!(found, "");
}
