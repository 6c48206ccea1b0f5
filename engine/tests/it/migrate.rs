//! Startup: on an empty database, on a used one, many brokers at once, and on one with a newer schema.

use queen_engine::{Config, Engine, StartError};
use queen_protocol::PushStatus;
use queen_testkit::{Proxy, empty_database as database};
use tokio::task::JoinSet;
use tokio_postgres::Client;

use crate::letters::dead_of;
use crate::support::{
    Ask, any, at_once, config, data, engine, eventually, named, number, push, push_ids, travel,
};

/// Everything that a start could have changed, with the transaction that last changed it.
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

/// Contents of the second schema, as a broker of that version left them.
const SECOND: &str = "
    insert into queen.queues (id, name) values ('00000000-0000-0000-0000-00000000000a', 'q');
    insert into queen.partitions (id, queue_id, name, head, tail, last_push_at, message_bytes_max)
    values ('00000000-0000-7000-8000-00000000000b', '00000000-0000-0000-0000-00000000000a', 'p', 3, 1, now(), 40);
    insert into queen.segments (partition_id, base_offset, created_at, extent, count, transactions, frames)
    select '00000000-0000-7000-8000-00000000000b', 0, now(), 1, 3, decode(repeat('80', 48), 'hex'),
           string_agg(format('{\"transactionId\":\"t%1$s\",\"payload\":%1$s}', n), e'\\n' order by n)
    from generate_series(0, 2) n;
    insert into queen.consumers (partition_id, consumer_group, cursor)
    values ('00000000-0000-7000-8000-00000000000b', 'ahead', 2);";

async fn of_the_second_schema(sql: &Client) {
    sql.batch_execute("create schema queen").await.unwrap();
    for file in [
        include_str!("../../sql/schema/0001_init.sql"),
        include_str!("../../sql/schema/0002_answers_as_arrays.sql"),
    ] {
        sql.batch_execute(file).await.unwrap();
    }
    sql.batch_execute(SECOND).await.unwrap();
    sql.batch_execute(
        "create table queen.migrations (version int primary key, name text not null, checksum text not null,
                                        applied_at timestamptz not null default now());
         create table queen.procedures (name text primary key, checksum text not null,
                                        applied_at timestamptz not null default now());
         insert into queen.migrations (version, name, checksum) values (1, '0001_init', ''), (2, '0002', '')",
    )
    .await
    .unwrap();
}

#[tokio::test]
async fn heads_and_cursors_of_the_second_schema_are_taken_over() {
    let db = database().await;
    let sql = db.client().await;
    of_the_second_schema(&sql).await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "p", 3..4).await;
    assert_eq!(data(&broker, named("q", "p").group("ahead").batch(9)).await, [2, 3]);
    assert_eq!(data(&broker, named("q", "p").group("new").batch(9)).await, [1, 2, 3], "from the tail on");
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
    travel(&sql, "1 hour").await; // This function came with the schema, so it is not replaced.
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

/// What a later release would change: one more column, a new version of a procedure, and which releases may continue.
async fn upgrade(sql: &Client, readable_from: &str) {
    sql.batch_execute(&format!(
        "alter table queen.queues add column colour text not null default 'red';
         create or replace function queen.message_id(p_created_at timestamptz, p_offset bigint, p_number bigint)
         returns uuid language sql immutable parallel safe
         as $$ select coalesce(queen.message_id_of_now(p_created_at, p_offset, p_number), null) $$;
         update queen.procedures set checksum = 'of a later release' where name = 'message_id';
         insert into queen.migrations (version, name, checksum)
         select max(version) + 1, 'of a later release', '' from queen.migrations;
         insert into queen.releases (number, schema_version, readable_from)
         select 2000000000, max(version), {readable_from} from queen.migrations"
    ))
    .await
    .unwrap();
}

#[tokio::test]
async fn a_broker_starts_and_serves_beside_the_next_release_and_takes_nothing_back() {
    let db = database().await;
    let sql = db.client().await;
    let running = engine(db.url()).await;
    push_ids(&running, "q", "p", &["before"]).await;
    sql.batch_execute("alter function queen.message_id rename to message_id_of_now").await.unwrap();
    upgrade(&sql, "max(version) - 1").await;
    push_ids(&running, "q", "p", &["beside"]).await;
    let after = schema(&sql).await;
    let started = engine(db.url()).await;
    assert_eq!(schema(&sql).await, after, "an older broker changes nothing");
    push_ids(&started, "q", "p", &["later"]).await;
    assert_eq!(data(&started, any("q").batch(9)).await, ["before", "beside", "later"]);
}

#[tokio::test]
async fn a_later_release_may_refuse_earlier_ones() {
    let db = database().await;
    let sql = db.client().await;
    engine(db.url()).await.stop().await;
    sql.batch_execute("alter function queen.message_id rename to message_id_of_now").await.unwrap();
    upgrade(&sql, "max(version)").await;
    let after = schema(&sql).await;
    let error = Engine::start(config(db.url())).await.err().expect("it must not start");
    assert!(matches!(error, StartError::SchemaNewer { .. }), "{error:?}");
    assert_eq!(schema(&sql).await, after, "nothing was touched");
}

/// What brokers of 0.1.0 call although this release does not, with the columns that they read.
#[tokio::test]
async fn what_the_release_before_calls_is_still_there() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    dead_of(&broker, "q", "p", &[Some("no use for 1"), Some("no use for 2")]).await;
    let counted = "select queen.dead_letters_count('q', 'p', 'g', null, null, 'NO USE')";
    assert_eq!(number(&sql, counted).await, 2);
    let listed = "select id, partition_id, queue_name, partition_name, consumer_group, error, attempts, frame, created_at, failed_at
                  from queen.dead_letters('q', 'p', 'g', null, null, 'NO USE', 10, 0)";
    assert_eq!(sql.query(listed, &[]).await.unwrap().len(), 2);
    let started = "select queen.start_redrive('00000000-0000-0000-0000-000000000001', 'q', null, null, null, null, null, '2', 1)";
    assert_eq!(number(&sql, started).await, 1);
    let listed = "select id, queue_name, target_queue, partition_name, consumer_group, failed_from, failed_to, error_filter,
                         per_second, status, total, done, failed, created_at, started_at, finished_at, error, rate
                  from queen.list_redrives('00000000-0000-0000-0000-000000000001', 10, 0)";
    assert_eq!(sql.query_one(listed, &[]).await.unwrap().get::<_, i64>("total"), 1);
    assert_eq!(number(&sql, "select queen.seek('of nobody', 'q', null, true, null)").await, 1);
    let opened = "select count(id) from queen.open(array['q', 'new'], array['p', 'p'], array[gen_random_uuid(), gen_random_uuid()],
                                                   array[null, 'n'], array[null, 't'], array[true, true])";
    assert_eq!(number(&sql, opened).await, 2);
    sql.batch_execute("select queen.subscribe('q', 'earlier', '', true, null)").await.unwrap();
    let groups = broker.groups(Some("earlier"), Some("q"), 1, 0).await.unwrap();
    assert!(groups[0].since.is_some() && groups[0].mode.is_none(), "{groups:?}");
}

/// Whether a session waits for an exclusive lock on one of the broker's tables.
async fn somebody_waits(sql: &Client) -> bool {
    let text = "select count(*) from pg_locks where not granted and mode = 'AccessExclusiveLock'
                and relation in (select oid from pg_class where relnamespace = 'queen'::regnamespace)
                and database = (select oid from pg_database where datname = current_database())";
    number(sql, text).await > 0
}

/// While a lock is being waited for, all later sessions queue behind it.
#[tokio::test]
async fn a_migration_asks_for_a_lock_again_and_again_instead_of_standing_in_the_way() {
    let db = database().await;
    let (sql, reader) = (db.client().await, db.client().await);
    of_the_second_schema(&sql).await;
    reader.batch_execute("begin; select count(*) from queen.partitions").await.unwrap();
    let mut starting = JoinSet::new();
    starting.spawn(Engine::start(config(db.url())));
    for _ in 0..2 {
        eventually("the migration waits", async || somebody_waits(&sql).await.then_some(())).await;
        eventually("it steps back", async || (!somebody_waits(&sql).await).then_some(())).await;
    }
    assert!(starting.try_join_next().is_none());
    assert_eq!(number(&sql, "select max(version)::bigint from queen.migrations").await, 2, "all or nothing");
    reader.batch_execute("commit").await.unwrap();
    let broker = starting.join_next().await.unwrap().unwrap().expect("it starts once the reader is gone");
    assert_eq!(data(&broker, named("q", "p").group("ahead").batch(9)).await, [2]);
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
