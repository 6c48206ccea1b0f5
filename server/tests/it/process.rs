//! The program as users run it: started, stopped, killed, and given invalid settings.

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use queen_testkit::Broker;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::timeout;

use crate::support::eventually;
use crate::waiting::{answer, parked};

const QUEEN: &str = env!("CARGO_BIN_EXE_queen");

async fn start(args: &[&str]) -> Broker {
    Broker::start(Path::new(QUEEN), args, &[]).await.unwrap()
}

/// The output of a broker that does not start.
async fn refusal(args: &[&str], env: &[(&str, &str)]) -> String {
    match timeout(Duration::from_secs(30), Broker::start(Path::new(QUEEN), args, env)).await {
        Ok(Err(error)) => format!("{error:#}"),
        Ok(Ok(_)) => panic!("it started"),
        Err(_) => panic!("it neither starts nor ends"),
    }
}

async fn output(args: &[&str]) -> Output {
    Command::new(QUEEN).args(args).output().await.unwrap()
}

async fn push(broker: &Broker, payload: Value) -> Value {
    let body = json!({"items": [{"queue": "q", "partition": "p", "payload": payload}]}).to_string();
    let request = reqwest::Client::new().post(format!("{}/api/v1/push", broker.url())).body(body);
    let response = request.send().await.unwrap();
    assert_eq!(response.status().as_u16(), 201);
    response.json().await.unwrap()
}

async fn pop(broker: &Broker) -> Vec<Value> {
    let url = format!("{}/api/v1/pop/queue/q?batch=100&autoAck=true", broker.url());
    let response = reqwest::get(url).await.unwrap();
    match response.status().as_u16() {
        204 => Vec::new(),
        _ => {
            let body: Value = response.json().await.unwrap();
            body["messages"].as_array().unwrap().iter().map(|message| message["data"].clone()).collect()
        }
    }
}

#[tokio::test]
async fn the_schema_is_brought_up_to_date_without_serving() {
    let database = queen_testkit::empty_database().await;
    let sql = database.client().await;
    let schema = "select to_regclass('queen.queues') is not null";
    for _ in 0..2 {
        let done = output(&["migrate", "--database-url", database.url()]).await;
        assert!(done.status.success(), "{done:?}");
        assert!(sql.query_one(schema, &[]).await.unwrap().get::<_, bool>(0));
    }
    let nowhere = output(&["migrate", "--database-url", "host=127.0.0.1 port=1 user=queen"]).await;
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("cannot reach the database at"), "{nowhere:?}");
}

#[tokio::test]
async fn a_termination_drains_answers_parked_pops_and_ends_with_success() {
    let database = queen_testkit::database().await;
    let mut broker = start(&["--database-url", database.url()]).await;
    let poll = parked(broker.url(), "/api/v1/pop/queue/q?wait=true&timeout=60000").await;
    broker.terminate();
    assert!(answer(poll).await.starts_with("HTTP/1.1 204"));
    let status = timeout(Duration::from_secs(20), broker.wait()).await.expect("it ends");
    assert_eq!(status.code(), Some(0), "{}", broker.output());
}

/// A request whose body never ends.
async fn stuck(broker: &Broker) -> TcpStream {
    let mut stream = TcpStream::connect(broker.url().trim_start_matches("http://")).await.unwrap();
    let head = "POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut go_on = [0; 25];
    stream.read_exact(&mut go_on).await.unwrap();
    assert!(go_on.starts_with(b"HTTP/1.1 100"), "the handler is waiting for the body");
    stream
}

#[tokio::test]
async fn a_request_that_does_not_finish_holds_up_the_end_only_for_a_while() {
    let database = queen_testkit::database().await;
    let mut broker = start(&["--database-url", database.url(), "--drain", "1s"]).await;
    let _stuck = stuck(&broker).await;
    broker.terminate();
    let status = timeout(Duration::from_secs(20), broker.wait()).await.expect("it ends");
    assert_eq!(status.code(), Some(0), "{}", broker.output());
    broker.says("did not finish in time").await;
}

#[tokio::test]
async fn a_second_signal_ends_at_once() {
    let database = queen_testkit::database().await;
    let mut broker = start(&["--database-url", database.url(), "--drain", "10m"]).await;
    let _stuck = stuck(&broker).await;
    broker.terminate();
    broker.says("stopping").await;
    broker.terminate();
    let status = timeout(Duration::from_secs(10), broker.wait()).await.expect("it ends");
    assert_eq!(status.code(), Some(130), "{}", broker.output());
}

#[tokio::test]
async fn the_banner_says_where_the_data_is_and_never_the_password() {
    let database = queen_testkit::database().await;
    let connection = format!("{} password=hush", database.url());
    let broker = start(&["--database-url", &connection]).await;
    broker.says("queen psql").await;
    let output = broker.output();
    assert!(output.contains(database.name()) && output.contains(env!("CARGO_PKG_VERSION")), "{output}");
    assert!(!output.contains("hush"), "{output}");
    assert_eq!(output.matches("listening on http://").count(), 1);
}

#[tokio::test]
async fn a_log_that_goes_into_a_file_has_no_colours() {
    let database = queen_testkit::database().await;
    for format in ["text", "json"] {
        let broker = start(&["--database-url", database.url(), "--log-format", format]).await;
        broker.terminate();
        broker.says("stopping").await;
        assert!(!broker.output().contains('\u{1b}'), "{}", broker.output());
    }
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let said = refusal(&["--database-url", "host=127.0.0.1 port=1"], &[("PORT", &port)]).await;
    let expected = format!("port {port} is already in use by another program; choose one with --port");
    assert!(said.contains(&expected) && said.contains("exit status: 1"), "{said}");
}

#[tokio::test]
async fn a_database_that_cannot_be_reached_is_named() {
    let said = refusal(&["--database-url", "postgres://ann:hush@127.0.0.1:1/app"], &[]).await;
    assert!(said.contains("cannot reach the database at") && said.contains("127.0.0.1"), "{said}");
    assert!(said.contains("exit status: 1") && !said.contains("hush"), "{said}");
}

#[tokio::test]
async fn a_user_the_database_refuses_is_named() {
    let database = queen_testkit::database().await;
    let connection = format!("{} user=nobody_here", database.url());
    let said = refusal(&["--database-url", &connection], &[]).await;
    assert!(said.contains("refused user \"nobody_here\""), "{said}");
}

#[tokio::test]
async fn a_wrong_password_is_reported_without_the_password() {
    let cluster = queen_testkit::cluster().await;
    let rules = "copy (values ('local all queen trust'), ('local all all scram-sha-256')) to ";
    let sql = format!(
        "create role ann login password 'right';
         do $$ begin execute format('{rules}%L', current_setting('hba_file')); perform pg_reload_conf(); end $$",
        rules = rules.replace('\'', "''"),
    );
    cluster.client().await.batch_execute(&sql).await.unwrap();
    let connection = format!("{} user=ann password=hush", cluster.url());
    eventually("the rules are in force", async || {
        queen_testkit::connect(&connection).await.is_err().then_some(())
    })
    .await;
    let said = refusal(&["--database-url", &connection], &[]).await;
    assert!(said.contains("refused user \"ann\"") && said.contains("password"), "{said}");
    assert!(said.contains("exit status: 1") && !said.contains("hush"), "{said}");
}

#[tokio::test]
async fn a_bad_value_ends_the_start_and_names_the_setting() {
    for (name, value) in [("NUM_WORKERS", "many"), ("RETENTION_INTERVAL", "0"), ("LOG_FORMAT", "xml")] {
        let said = refusal(&["--database-url", "host=127.0.0.1 port=1"], &[(name, value)]).await;
        assert!(said.contains(value), "{name}: {said}");
    }
    let said = refusal(&["--database-url", "host=127.0.0.1 port=1"], &[("LOG_LEVEL", "verbose")]).await;
    assert!(said.contains("verbose"), "{said}");
}

#[tokio::test]
async fn a_door_that_was_meant_to_be_locked_does_not_open() {
    let said = refusal(&["--database-url", "host=127.0.0.1 port=1"], &[("JWT_ENABLED", "true")]).await;
    assert!(said.contains("JWT_ENABLED"), "{said}");
}

#[tokio::test]
async fn variables_without_meaning_or_misspelt_earn_a_warning_each_and_aliases_are_read() {
    let database = queen_testkit::database().await;
    let env = [
        ("DATABASE_URL", database.url()),
        ("ALL_OPS_USE_SIDECAR", "true"),
        ("QUEEN_UDP_PEERS", "somewhere:1"),
        ("QUEEN_DRAIN_SECOND", "5"),
        ("MAX_ITEMS_PER_TX", "9"),
        ("PG_HOST", ""),
    ];
    let broker = Broker::start(Path::new(QUEEN), &[], &env).await.unwrap();
    broker.says("ALL_OPS_USE_SIDECAR").await;
    broker.says("QUEEN_UDP_PEERS").await;
    broker.says("nearest=\"QUEEN_DRAIN_SECONDS\"").await;
    let config = Command::new(QUEEN).arg("config").envs(env).output().await.unwrap();
    let config = String::from_utf8(config.stdout).unwrap();
    let line = config.lines().find(|line| line.contains("MAX_ITEMS_PER_TX")).unwrap();
    assert!(line.contains(" 9 ") && line.ends_with("environment MAX_ITEMS_PER_TX"), "{config}");
}

#[tokio::test]
async fn an_embedded_database_keeps_what_was_acknowledged_through_kill_and_restart() {
    let dir = TempDir::new().unwrap();
    let args = ["--data-dir", dir.path().to_str().unwrap()];
    let mut broker = start(&args).await;
    broker.says("embedded PostgreSQL in").await;
    for n in 0..20 {
        push(&broker, json!(n)).await;
    }

    let second = refusal(&args, &[]).await;
    assert!(second.contains("another queen is using"), "{second}");

    broker.kill9().await;
    let mut broker = start(&args).await;
    assert_eq!(pop(&broker).await, (0..20).map(Value::from).collect::<Vec<_>>());
    push(&broker, json!("after")).await;

    let psql = output(&["psql", args[0], args[1], "-Atc", "select name from queen.queues"]).await;
    assert_eq!(String::from_utf8_lossy(&psql.stdout).trim(), "q", "{psql:?}");

    broker.terminate();
    let status = timeout(Duration::from_secs(40), broker.wait()).await.expect("it ends");
    assert_eq!(status.code(), Some(0), "{}", broker.output());
    assert!(queen_postgres::describe(dir.path()).is_err(), "PostgreSQL stops with its broker");
    let psql = output(&["psql", args[0], args[1], "-c", "select 1"]).await;
    let said = String::from_utf8_lossy(&psql.stderr);
    assert!(!psql.status.success() && said.contains("no embedded PostgreSQL is running"), "{said}");

    let broker = start(&args).await;
    assert_eq!(pop(&broker).await, ["after"]);
}

#[tokio::test]
async fn tables_that_name_no_schema_go_to_public_in_an_embedded_database() {
    let dir = TempDir::new().unwrap();
    let args = ["--data-dir", dir.path().to_str().unwrap()];
    let psql = async |text: &str| {
        let psql = output(&["psql", args[0], args[1], "-Atqc", text]).await;
        assert!(psql.status.success(), "{text}: {psql:?}");
        String::from_utf8_lossy(&psql.stdout).trim().to_owned()
    };
    let schema_of = |table: &str| format!("select schemaname from pg_tables where tablename = '{table}'");
    let mut broker = start(&args).await;
    psql("create table orders (id bigint primary key)").await;
    assert_eq!(psql(&schema_of("orders")).await, "public");

    // The state in which an earlier release left the role.
    psql("alter role queen reset search_path").await;
    psql("create table misplaced ()").await;
    assert_eq!(psql(&schema_of("misplaced")).await, "queen");
    broker.terminate();
    timeout(Duration::from_secs(40), broker.wait()).await.expect("it ends");
    let mut broker = start(&args).await;
    psql("create table customers ()").await;
    assert_eq!(psql(&schema_of("customers")).await, "public");

    // An existing setting is kept.
    psql("create schema shop; alter role queen set search_path = shop").await;
    broker.terminate();
    timeout(Duration::from_secs(40), broker.wait()).await.expect("it ends");
    let _broker = start(&args).await;
    psql("create table carts ()").await;
    assert_eq!(psql(&schema_of("carts")).await, "shop");
}

#[tokio::test]
async fn the_programs_of_postgresql_see_no_secret_of_the_broker() {
    const SECRETS: [(&str, &str); 4] = [
        ("QUEEN_ENCRYPTION_KEY", "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"),
        ("JWT_SECRET", "hush-hush-hush-hush-hush-hush-hush-hush"),
        ("AWS_SECRET_ACCESS_KEY", "hush-hush"),
        ("PGPASSFILE", "/hush"),
    ];
    let dir = TempDir::new().unwrap();
    let args = ["--data-dir", dir.path().to_str().unwrap()];
    let _broker = Broker::start(Path::new(QUEEN), &args, &SECRETS).await.unwrap();
    let pidfile = std::fs::read_to_string(dir.path().join("postgres/postmaster.pid")).unwrap();
    let environ = format!("/proc/{}/environ", pidfile.lines().next().unwrap());
    let environ = String::from_utf8(std::fs::read(environ).unwrap()).unwrap();
    let names: Vec<&str> = environ.split('\0').filter_map(|pair| pair.split('=').next()).collect();
    assert!(names.contains(&"PATH") && names.contains(&"LC_ALL"), "{names:?}");
    assert!(SECRETS.iter().all(|(name, _)| !names.contains(name)), "{names:?}");

    // A user's psql keeps the variables of libpq itself.
    let psql = Command::new(QUEEN).args(["psql", args[0], args[1], "-c", r"\! env"]).envs(SECRETS).output();
    let psql = psql.await.unwrap();
    let environ = String::from_utf8_lossy(&psql.stdout);
    assert!(environ.contains("PATH=") && environ.contains("PGPASSFILE=/hush"), "{psql:?}");
    assert!(SECRETS[..3].iter().all(|(name, _)| !environ.contains(name)), "{environ}");
}

#[tokio::test]
async fn the_small_commands_print_and_end() {
    let version = output(&["version"]).await;
    assert_eq!(String::from_utf8(version.stdout).unwrap(), format!("queen {}\n", env!("CARGO_PKG_VERSION")));
    let config = output(&["config", "--port", "7000", "--pg-password", "hush"]).await;
    let text = String::from_utf8(config.stdout).unwrap();
    assert!(text.contains("7000") && text.contains("flag --port") && !text.contains("hush"), "{text}");
    let document = output(&["openapi"]).await;
    assert!(String::from_utf8(document.stdout).unwrap().contains("\"openapi\": \"3.1."));
    let page = output(&["config", "--markdown"]).await;
    assert!(String::from_utf8(page.stdout).unwrap().starts_with("# Configuration\n"));
}
