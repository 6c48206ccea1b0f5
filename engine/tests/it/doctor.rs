//! The doctor on real databases: each finding is provoked, and a healthy database has none.

use queen_engine::{Config, Examination, Severity, examine};
use queen_testkit::{Cluster, Database, Pooler, cluster_with};
use serde_json::json;
use tokio_postgres::Client;

use crate::support::{any, config, configure, engine, engine_with, eventually, pop, push, push_wide, travel};

/// The safe settings that Queen's own server has, and room for prepared transactions.
const SAFE: [(&str, &str); 2] = [("shared_buffers", "128MB"), ("max_prepared_transactions", "5")];

async fn safe_cluster() -> Cluster {
    cluster_with(&SAFE).await
}

async fn examined(config: &Config) -> Examination {
    examine(config).await.expect("the database can be examined")
}

fn codes(examination: &Examination) -> Vec<&'static str> {
    examination.findings.iter().map(|finding| finding.code).collect()
}

/// The one finding with this code, which must have this severity.
fn finding(examination: &Examination, code: &str, severity: Severity) -> String {
    let found: Vec<_> = examination.findings.iter().filter(|finding| finding.code == code).collect();
    assert_eq!(found.len(), 1, "{code}: {:?}", examination.findings);
    assert_eq!(found[0].severity, severity, "{found:?}");
    found[0].text.clone()
}

/// The finding about the session with this name. When the clock has jumped, the broker's own current statements look
/// old as well, so other sessions may be named next to it.
fn named(examination: &Examination, code: &str, severity: Severity, session: &str) -> String {
    let found = examination.findings.iter().find(|finding| {
        finding.code == code && finding.severity == severity && finding.text.contains(session)
    });
    found.unwrap_or_else(|| panic!("{code} of {session}: {:?}", examination.findings)).text.clone()
}

/// An idle session in a transaction, with a snapshot.
async fn idle_in_transaction(database: &Database) -> Client {
    let session = database.client().await;
    let sql = "set application_name = 'forgetful'; begin isolation level repeatable read; select 1 from queen.queues";
    session.batch_execute(sql).await.unwrap();
    session
}

#[tokio::test]
async fn a_healthy_database_is_left_in_peace_by_command_and_by_broker() {
    let cluster = safe_cluster().await;
    let database = Database::create(&cluster.maintenance_url()).await;
    let engine = engine(database.url()).await;
    push(&engine, "q", "p", 0..100).await;
    pop(&engine, any("q")).await.unwrap();
    let examination = examined(&config(database.url())).await;
    assert_eq!(examination.findings, [], "healthy");
    assert!(engine.findings().is_none(), "nobody has looked yet");
    let seen = engine.examine().await.unwrap();
    assert_eq!(seen.findings, []);
    let facts = seen.facts.as_ref().unwrap();
    assert_eq!((facts.sessions.brokers, facts.leases.as_ref().unwrap().live), (1, 1));
    // The broker itself may be running a statement.
    assert!(facts.oldest_xmin_seconds() < 60.0, "{facts:?}");
    assert!(facts.tables.iter().any(|table| table.name == "segments"), "{:?}", facts.tables);
    assert_eq!(engine.findings().unwrap().findings, []);
}

#[tokio::test]
async fn a_database_without_a_schema_is_not_reported_as_healthy() {
    let database = queen_testkit::empty_database().await;
    let examination = examined(&config(database.url())).await;
    assert_eq!(codes(&examination), ["schema_missing"]);
    assert!(examination.has_problem());
}

#[tokio::test]
async fn unsafe_and_small_settings_are_each_named() {
    let settings = [
        ("fsync", "off"),
        ("full_page_writes", "off"),
        ("synchronous_commit", "off"),
        ("autovacuum", "off"),
        ("max_wal_size", "256MB"),
        ("min_wal_size", "64MB"),
        ("shared_buffers", "16MB"),
        ("max_connections", "20"),
    ];
    let cluster = cluster_with(&settings).await;
    let database = Database::create(&cluster.maintenance_url()).await;
    let mut large = config(database.url());
    large.connections = 17;
    let engine = engine_with(large.clone()).await;
    push(&engine, "q", "p", 0..1).await;
    crate::support::listening(&database.client().await, 1).await;
    let examination = examined(&large).await;
    for code in ["fsync_off", "full_page_writes_off", "autovacuum_off"] {
        finding(&examination, code, Severity::Problem);
    }
    for code in ["synchronous_commit_off", "shared_buffers"] {
        finding(&examination, code, Severity::Warning);
    }
    assert!(finding(&examination, "max_wal_size", Severity::Warning).contains("256 MB"));
    let wanted = finding(&examination, "connections_wanted", Severity::Warning);
    assert!(wanted.contains("1 broker(s) may open 20") && wanted.contains("allows 17"), "{wanted}");
    let mut others = Vec::new();
    while others.len() < 20 && !codes(&engine.examine().await.unwrap().clone()).contains(&"connections_used")
    {
        others.push(database.client().await);
    }
    assert!(
        finding(&engine.examine().await.unwrap(), "connections_used", Severity::Problem).contains("of 17")
    );
}

#[tokio::test]
async fn sessions_that_pin_old_row_versions_are_named() {
    let cluster = safe_cluster().await;
    let database = Database::create(&cluster.maintenance_url()).await;
    let engine = engine(database.url()).await;
    push(&engine, "q", "p", 0..1).await;
    let sql = database.client().await;
    let idle = idle_in_transaction(&database).await;
    let prepared =
        "create table t (); begin; insert into t default values; prepare transaction 'left behind'";
    sql.batch_execute(prepared).await.unwrap();
    let busy = database.client().await;
    let running = busy.batch_execute("set application_name = 'reporter'; select pg_sleep(60)");
    let young = examined(&config(database.url())).await;
    assert_eq!(young.findings, [], "they are young");

    travel(&sql, "10 minutes").await;
    let seen = async || {
        let seen = engine.examine().await.unwrap();
        seen.findings.iter().any(|finding| finding.text.contains("reporter")).then_some(seen)
    };
    let seen = tokio::select! {
        _ = running => panic!("it sleeps"),
        seen = eventually("the sleeper is seen", seen) => seen,
    };
    named(&seen, "long_transaction", Severity::Problem, "reporter");
    let text = named(&seen, "idle_in_transaction", Severity::Problem, "forgetful");
    assert!(text.contains("10 min") && text.contains("pg_terminate_backend"), "{text}");
    let text = finding(&seen, "prepared_transaction", Severity::Problem);
    assert!(text.contains("left behind") && text.contains("rollback prepared"), "{text}");
    // It was the clock of the database that has moved.
    assert!(finding(&seen, "clock_difference", Severity::Warning).contains("behind"));
    assert!(seen.facts.as_ref().unwrap().oldest_xmin_seconds() > 500.0);

    travel(&sql, "0 minutes").await;
    drop(idle);
    sql.batch_execute("rollback prepared 'left behind'").await.unwrap();
    travel(&sql, "10 minutes").await;
    eventually("they are gone", async || {
        let seen = engine.examine().await.unwrap();
        let named = seen.findings.iter().any(|found| found.text.contains("forgetful"));
        (!named && !codes(&seen).contains(&"prepared_transaction")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_inactive_replication_slot_is_named_with_what_it_keeps() {
    let cluster = safe_cluster().await;
    let database = Database::create(&cluster.maintenance_url()).await;
    let engine = engine(database.url()).await;
    let sql = database.client().await;
    sql.batch_execute("select pg_create_physical_replication_slot('forgotten', true)").await.unwrap();
    push(&engine, "q", "p", 0..100).await;
    let seen = engine.examine().await.unwrap();
    let text = finding(&seen, "slot_inactive", Severity::Warning);
    assert!(
        text.contains("forgotten") && text.contains("of WAL") && text.contains("pg_drop_replication_slot"),
        "{text}"
    );
    assert!(seen.facts.as_ref().unwrap().slots[0].wal_bytes > 0);
    sql.batch_execute("select pg_drop_replication_slot('forgotten')").await.unwrap();
    assert_eq!(engine.examine().await.unwrap().findings, []);
}

#[tokio::test]
async fn changed_tables_and_indexes_are_named() {
    let cluster = safe_cluster().await;
    let database = Database::create(&cluster.maintenance_url()).await;
    let engine = engine(database.url()).await;
    push(&engine, "q", "p", 0..10).await;
    let sql = database.client().await;
    sql.batch_execute(
        "alter table queen.heads set (autovacuum_enabled = off);
         drop index queen.dead_letters_newest;
         update pg_index set indisvalid = false where indexrelid = 'queen.deferred_finished'::regclass;
         insert into queen.extents (number) values (77);
         delete from queen.migrations where version = (select max(version) from queen.migrations)",
    )
    .await
    .unwrap();
    let seen = engine.examine().await.unwrap();
    assert!(finding(&seen, "autovacuum_off_table", Severity::Problem).contains("queen.heads"));
    assert!(finding(&seen, "index_missing", Severity::Problem).contains("dead_letters_newest"));
    assert!(finding(&seen, "index_invalid", Severity::Problem).contains("deferred_finished"));
    finding(&seen, "extents_differ", Severity::Problem);
    finding(&seen, "schema_version", Severity::Warning);
    assert_eq!(seen.findings.len(), 5, "{:?}", seen.findings);
}

#[tokio::test]
async fn rows_that_vacuum_may_not_remove_and_updates_that_are_not_hot_are_named() {
    let cluster = safe_cluster().await;
    let database = Database::create(&cluster.maintenance_url()).await;
    let engine = engine(database.url()).await;
    push_wide(&engine, "q", 0..500).await;
    let sql = database.client().await;
    let idle = idle_in_transaction(&database).await;
    sql.batch_execute(
        "create index somebodys_own on queen.heads (last_push_at);
         do $$ begin for i in 1 .. 120 loop
             update queen.heads set last_push_at = last_push_at + interval '1 second';
         end loop; end $$",
    )
    .await
    .unwrap();
    let seen = eventually("statistics have arrived", async || {
        let seen = engine.examine().await.unwrap();
        codes(&seen).contains(&"dead_tuples").then_some(seen)
    })
    .await;
    assert!(finding(&seen, "dead_tuples", Severity::Warning).contains("queen.heads"));
    assert!(finding(&seen, "hot_updates", Severity::Warning).contains("only 0 percent"));
    drop(idle);
}

#[tokio::test]
async fn locks_on_whole_tables_do_not_keep_the_doctor_from_answering() {
    let cluster = safe_cluster().await;
    let database = Database::create(&cluster.maintenance_url()).await;
    let engine = engine(database.url()).await;
    let locker = database.client().await;
    locker
        .batch_execute("set application_name = 'migration'; begin; lock table queen.deferred")
        .await
        .unwrap();
    let seen = engine.examine().await.unwrap();
    assert!(finding(&seen, "table_locked", Severity::Problem).contains("migration"));
    finding(&seen, "tables_unread", Severity::Warning);
    drop(locker);
    let reader = database.client().await;
    reader
        .batch_execute("set application_name = 'dump'; begin; select count(*) from queen.segments")
        .await
        .unwrap();
    eventually("the lock is gone", async || {
        engine.examine().await.unwrap().findings.is_empty().then_some(())
    })
    .await;
    travel(&database.client().await, "10 minutes").await;
    let seen = engine.examine().await.unwrap();
    named(&seen, "log_in_use", Severity::Warning, "dump");
}

#[tokio::test]
async fn a_lease_held_for_hours_and_one_held_for_nothing_are_named() {
    let cluster = safe_cluster().await;
    let database = Database::create(&cluster.maintenance_url()).await;
    let engine = engine(database.url()).await;
    let sql = database.client().await;
    configure(&engine, "slow", json!({"leaseTime": 86_000})).await;
    push(&engine, "slow", "lane", 0..2).await;
    pop(&engine, any("slow")).await.unwrap();
    assert_eq!(engine.examine().await.unwrap().findings, []);
    travel(&sql, "3 hours").await;
    let seen = engine.examine().await.unwrap();
    let text = finding(&seen, "lease_stuck", Severity::Warning);
    assert!(text.contains("\"slow\"") && text.contains("\"lane\"") && text.contains("3.0 h"), "{text}");
    travel(&sql, "0 hours").await;
    sql.batch_execute("update queen.consumers set lease_until = now() + interval '29 days'").await.unwrap();
    finding(&engine.examine().await.unwrap(), "lease_orphaned", Severity::Problem);
}

#[tokio::test]
async fn a_pooler_in_transaction_mode_is_found_and_none_is_not() {
    let cluster = safe_cluster().await;
    let database = Database::create(&cluster.maintenance_url()).await;
    let engine = engine(database.url()).await;
    push(&engine, "q", "p", 0..1).await;
    let pooler = Pooler::to_postgres(database.url()).await;
    let seen = examined(&config(pooler.url())).await;
    assert!(
        finding(&seen, "transaction_pooler", Severity::Problem).contains("session mode"),
        "{:?}",
        seen.findings
    );
    assert_eq!(codes(&examined(&config(database.url())).await), [""; 0]);
}

#[tokio::test]
async fn a_role_that_sees_only_itself_says_so_and_still_gets_an_answer() {
    let cluster = safe_cluster().await;
    let database = Database::create(&cluster.maintenance_url()).await;
    let sql = database.client().await;
    let role = format!("create role modest login; grant create on database {} to modest", database.name());
    sql.batch_execute(&role).await.unwrap();
    let url = database.url().replace("user=queen", "user=modest");
    let engine = engine(&url).await;
    push(&engine, "q", "p", 0..1).await;
    let seen = examined(&config(&url)).await;
    assert_eq!(codes(&seen), ["limited_view"]);
    let clients = seen.facts.as_ref().unwrap().sessions.clients;
    assert!(clients >= 3, "the doctor's own, the broker's and ours, which is another role's: {clients}");
    assert!(!seen.has_problem());
}
