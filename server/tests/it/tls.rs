//! TLS of the listener: HTTPS only, with the current certificate, and other protocols do no harm.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use queen_server::tls::{Door, Files};
use queen_testkit::{Authority, Broker, Certificate};
use reqwest::{Client, Identity};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::eventually;

const QUEEN: &str = env!("CARGO_BIN_EXE_queen");

fn write(dir: &Path, certificate: &Certificate) {
    std::fs::write(dir.join("cert.pem"), &certificate.certificate).unwrap();
    std::fs::write(dir.join("key.pem"), &certificate.key).unwrap();
}

fn paths(dir: &Path) -> [PathBuf; 2] {
    [dir.join("cert.pem"), dir.join("key.pem")]
}

async fn start(url: &str, dir: &Path, more: &[&str]) -> anyhow::Result<Broker> {
    let [certificate, key] = paths(dir).map(|path| path.to_str().unwrap().to_owned());
    let mut args = vec!["--database-url", url, "--tls-cert", &certificate, "--tls-key", &key];
    args.extend(more);
    Broker::start(Path::new(QUEEN), &args, &[]).await
}

/// Trusts one authority and keeps its connections.
fn client(authority: &Authority) -> Client {
    let root = reqwest::Certificate::from_pem(authority.pem().as_bytes()).unwrap();
    Client::builder().tls_certs_only([root]).build().unwrap()
}

async fn healthy(client: &Client, broker: &Broker) -> Result<(), String> {
    let answer = client.get(format!("{}/health", broker.url())).send().await;
    let answer = answer.map_err(|error| format!("{error:?}"))?;
    if answer.status().as_u16() == 200 { Ok(()) } else { Err(answer.status().to_string()) }
}

#[tokio::test]
async fn a_listener_with_a_certificate_speaks_https_and_takes_a_new_one_while_it_runs() {
    let (database, dir) = (queen_testkit::database().await, TempDir::new().unwrap());
    let (old, new) = (Authority::new(), Authority::new());
    write(dir.path(), &old.issue(&["127.0.0.1"]));
    let broker = start(database.url(), dir.path(), &[]).await.unwrap();
    assert!(broker.url().starts_with("https://"), "{}", broker.output());
    let (knows_old, knows_new) = (client(&old), client(&new));
    healthy(&knows_old, &broker).await.unwrap();
    assert!(healthy(&knows_new, &broker).await.is_err(), "it is not who it says it is");

    // A client without TLS, and a client that sends nothing.
    let address = broker.url().trim_start_matches("https://").to_owned();
    let mut plain = TcpStream::connect(&address).await.unwrap();
    let _silent = TcpStream::connect(&address).await.unwrap();
    plain.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    _ = timeout(Duration::from_secs(10), plain.read_to_end(&mut answer)).await.expect("it is closed");
    assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
    healthy(&knows_old, &broker).await.unwrap();

    // A certificate without its new key is not a valid change.
    std::fs::write(dir.path().join("cert.pem"), &new.issue(&["127.0.0.1"]).certificate).unwrap();
    hang_up(&broker);
    broker.says("keeping the old one").await;
    healthy(&client(&old), &broker).await.unwrap();

    write(dir.path(), &new.issue(&["127.0.0.1"]));
    hang_up(&broker);
    broker.says("using a new certificate").await;
    healthy(&knows_new, &broker).await.unwrap();
    healthy(&knows_old, &broker).await.expect("an open connection goes on");
    assert!(healthy(&client(&old), &broker).await.is_err(), "a new one has to trust the new certificate");
}

#[tokio::test]
async fn the_command_line_trusts_the_file_it_is_given() {
    let (database, dir) = (queen_testkit::database().await, TempDir::new().unwrap());
    write(dir.path(), &Authority::self_signed(&["127.0.0.1"]));
    let broker = start(database.url(), dir.path(), &[]).await.unwrap();
    let other = dir.path().join("other.pem");
    std::fs::write(&other, Authority::new().pem()).unwrap();
    let list = async |more: &[&str]| {
        let mut queen = tokio::process::Command::new(QUEEN);
        queen.args(["queues", "list", "--url", broker.url()]).args(more).output().await.unwrap()
    };
    let [certificate, _] = paths(dir.path());
    let trusted = list(&["--cacert", certificate.to_str().unwrap()]).await;
    assert!(trusted.status.success(), "{trusted:?}");
    for more in [&[][..], &["--cacert", other.to_str().unwrap()]] {
        let refused = list(more).await;
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(
            !refused.status.success() && said.contains("the certificate of the broker is not trusted"),
            "{said}"
        );
        assert!(!said.contains("CaUsedAsEndEntity"), "{said}");
        assert!(said.contains("it is self-signed: trust it with --cacert") || more.is_empty(), "{said}");
        assert!(!said.contains("is it running there?"), "{said}");
    }
    let empty = dir.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let refused = list(&["--cacert", empty.to_str().unwrap()]).await;
    let said = format!("--cacert {} contains no PEM certificate", empty.display());
    assert!(String::from_utf8_lossy(&refused.stderr).contains(&said), "{refused:?}");
    let refused = list(&["--cacert", "/nowhere.pem"]).await;
    assert!(String::from_utf8_lossy(&refused.stderr).contains("/nowhere.pem"), "{refused:?}");
}

#[tokio::test]
async fn a_changed_file_is_noticed_without_a_signal() {
    let dir = TempDir::new().unwrap();
    let authority = Authority::new();
    write(dir.path(), &authority.issue(&["a.test"]));
    let [certificate, key] = paths(dir.path());
    let door = Arc::new(Door::open(Files { certificate, key, client_ca: None }).unwrap());
    let first = Arc::as_ptr(door.acceptor().config());
    let watching = door.clone();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move { watching.watch().await });
    write(dir.path(), &authority.issue(&["b.test"]));
    eventually("the new certificate is used", async || {
        (Arc::as_ptr(door.acceptor().config()) != first).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_hangup_before_there_is_a_watcher_is_kept_and_ends_nothing() {
    let dir = TempDir::new().unwrap();
    let authority = Authority::new();
    write(dir.path(), &authority.issue(&["a.test"]));
    let [certificate, key] = paths(dir.path());
    let door = Door::open(Files { certificate, key, client_ca: None }).unwrap();
    let first = Arc::as_ptr(door.acceptor().config());
    write(dir.path(), &authority.issue(&["b.test"]));
    kill_process(rustix::process::getpid(), Signal::HUP).unwrap();
    let used = eventually("the new certificate is used", async || {
        (Arc::as_ptr(door.acceptor().config()) != first).then_some(())
    });
    tokio::select! {
        () = door.watch() => {}
        () = used => {}
    }
}

#[tokio::test]
async fn only_clients_of_the_named_authority_are_let_in() {
    let (database, dir) = (queen_testkit::database().await, TempDir::new().unwrap());
    let (servers, clients) = (Authority::new(), Authority::new());
    write(dir.path(), &servers.issue(&["127.0.0.1"]));
    let ca = dir.path().join("clients.pem");
    std::fs::write(&ca, clients.pem()).unwrap();
    let broker = start(database.url(), dir.path(), &["--tls-client-ca", ca.to_str().unwrap()]).await.unwrap();
    let with = |certificate: Certificate| {
        let root = reqwest::Certificate::from_pem(servers.pem().as_bytes()).unwrap();
        let pem = format!("{}{}", certificate.certificate, certificate.key);
        let identity = Identity::from_pem(pem.as_bytes()).unwrap();
        Client::builder().tls_certs_only([root]).identity(identity).build().unwrap()
    };
    healthy(&with(clients.issue(&["app"])), &broker).await.unwrap();
    assert!(healthy(&with(Authority::new().issue(&["app"])), &broker).await.is_err());
    assert!(healthy(&client(&servers), &broker).await.is_err());
}

#[tokio::test]
async fn a_certificate_that_cannot_be_used_ends_the_start_with_its_name() {
    let (database, dir) = (queen_testkit::database().await, TempDir::new().unwrap());
    let authority = Authority::new();
    let missing = start(database.url(), dir.path(), &[]).await.unwrap_err().to_string();
    assert!(missing.contains("cert.pem"), "{missing}");
    write(dir.path(), &authority.issue(&["127.0.0.1"]));
    std::fs::write(dir.path().join("key.pem"), authority.issue(&["x"]).key).unwrap();
    let unfit = start(database.url(), dir.path(), &[]).await.unwrap_err().to_string();
    assert!(unfit.contains("do not fit"), "{unfit}");
    std::fs::write(dir.path().join("key.pem"), "nothing").unwrap();
    let empty = start(database.url(), dir.path(), &[]).await.unwrap_err().to_string();
    assert!(empty.contains("key.pem holds no private key"), "{empty}");
}

fn hang_up(broker: &Broker) {
    kill_process(Pid::from_raw(broker.pid().cast_signed()).unwrap(), Signal::HUP).unwrap();
}
