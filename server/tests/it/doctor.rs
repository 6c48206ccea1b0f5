//! `queen doctor`, and findings that brokers log.

use std::path::Path;

use queen_testkit::{Broker, Database, cluster_with};
use serde_json::Value;
use tokio::process::Command;

use crate::support::Server;

const QUEEN: &str = env!("CARGO_BIN_EXE_queen");

/// The exit code and standard output.
async fn doctor(database: &Database, flags: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(QUEEN);
    command.args(["doctor", "--database-url", database.url()]).args(flags);
    let output = command.output().await.unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[tokio::test]
async fn a_healthy_database_ends_with_0_and_a_sick_one_with_1() {
    let cluster = cluster_with(&[("shared_buffers", "128MB")]).await;
    let database = Database::create(&cluster.maintenance_url()).await;
    let (code, said) = doctor(&database, &[]).await;
    assert!(code == Some(1) && said.starts_with("! schema_missing: "), "{said}");

    let url = database.url().to_owned();
    let server = Server::start_on(database.into(), &url, &[]).await;
    assert_eq!(
        doctor(&server.database, &[]).await,
        (Some(0), "nothing is wrong with this database\n".to_owned())
    );
    let (code, said) = doctor(&server.database, &["--json"]).await;
    let report: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (code, &report["healthy"], &report["findings"]),
        (Some(0), &true.into(), &Value::Array(Vec::new()))
    );

    server.sql("select pg_create_physical_replication_slot('left', true)").await;
    let (code, said) = doctor(&server.database, &[]).await;
    assert!(code == Some(0) && said.starts_with("? slot_inactive: "), "a warning is no problem: {said}");
    server.sql("alter table queen.heads set (autovacuum_enabled = off)").await;
    let (code, said) = doctor(&server.database, &["--json"]).await;
    let report: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, &report["healthy"]), (Some(1), &false.into()));
    let findings = report["findings"].as_array().unwrap();
    let codes: Vec<(&str, &str)> =
        findings.iter().map(|f| (f["severity"].as_str().unwrap(), f["code"].as_str().unwrap())).collect();
    assert_eq!(codes, [("problem", "autovacuum_off_table"), ("warning", "slot_inactive")]);
    assert!(findings[0]["message"].as_str().unwrap().contains("alter table queen.heads reset"));
}

#[tokio::test]
async fn a_broker_says_at_its_start_what_is_wrong_once() {
    // The clusters of tests run without `fsync` and `full_page_writes`.
    let database = queen_testkit::database().await;
    let args = ["--database-url", database.url(), "--doctor-interval", "50ms"];
    let broker = Broker::start(Path::new(QUEEN), &args, &[]).await.unwrap();
    broker.says("doctor: fsync is off").await;
    broker.says("doctor: full_page_writes is off").await;
    let sql = database.client().await;
    sql.batch_execute("alter table queen.heads set (autovacuum_enabled = off)").await.unwrap();
    // By the time of this line, it has examined the database again.
    broker.says("doctor: autovacuum is disabled for queen.heads").await;
    assert_eq!(broker.output().matches("doctor: fsync is off").count(), 1, "{}", broker.output());
}

#[tokio::test]
async fn sessions_that_keep_old_rows_are_named_until_they_end() {
    let server = Server::start().await;
    let held = server.database.client().await;
    held.batch_execute("set application_name = 'forgotten'; begin; create table held (n int)").await.unwrap();
    let holder = async || {
        let report = server.get("/api/v1/system/doctor?fresh=true").await.json();
        let holders = report["holders"].as_array().unwrap().clone();
        holders.into_iter().find(|holder| holder["name"] == "forgotten")
    };
    let found = holder().await.unwrap();
    assert_eq!(
        (&found["kind"], &found["state"]),
        (&"session".into(), &"idle in transaction".into()),
        "{found}"
    );
    assert!(found["pid"].is_i64() && found["seconds"].as_f64() >= Some(0.0), "{found}");
    held.batch_execute("rollback").await.unwrap();
    assert_eq!(holder().await, None);
}
