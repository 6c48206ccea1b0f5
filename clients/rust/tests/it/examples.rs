//! The examples and the quickstart of the README run and end by themselves.

use std::process::Output;
use std::time::Duration;

use queen_client::Queen;
use queen_testkit::{Authority, Broker};
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::timeout;

use crate::support::{PATIENCE, Site, binary, built};

async fn run(name: &str, url: &str, env: &[(&str, &str)]) -> Output {
    let example = built("examples").join(name);
    assert!(example.exists(), "{} is missing: cargo build -p queen-client --examples", example.display());
    let mut command = Command::new(example);
    command.env("QUEEN_URL", url).envs(env.iter().copied()).kill_on_drop(true);
    timeout(PATIENCE, command.output()).await.expect("it ends by itself").expect("it runs")
}

/// The output of an example that must succeed.
async fn said(name: &str, url: &str, env: &[(&str, &str)]) -> String {
    let output = run(name, url, env).await;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name}: {}\n{out}\n{err}", output.status);
    out.into_owned()
}

#[test]
fn the_quickstart_of_the_readme_is_the_example() {
    let (readme, example) = (include_str!("../../README.md"), include_str!("../../examples/quickstart.rs"));
    assert!(
        readme.contains(&format!("```rust,no_run\n{example}```")),
        "copy examples/quickstart.rs into README.md"
    );
}

#[tokio::test]
async fn the_quickstart_runs() {
    let site = Site::start().await;
    let out = said("quickstart", site.broker.url(), &[]).await;
    assert!(out.contains("customer-7 pays 42\n1 orders billed\n"), "{out}");
}

#[tokio::test]
async fn workers_do_all_jobs_but_one_and_say_why() {
    let site = Site::start().await;
    let out = said("worker", site.broker.url(), &[]).await;
    assert!(out.contains("19 handled, 2 failed\njob 13 given up: 13 is not supported\n"), "{out}");
}

#[tokio::test]
async fn groups_read_everything_and_late_ones_nothing_old() {
    let site = Site::start().await;
    let out = said("fan_out", site.broker.url(), &[]).await;
    assert!(out.ends_with("mails 3, statistics 3, late 0\n"), "{out}");
}

#[tokio::test]
async fn customers_are_served_in_order() {
    let site = Site::start().await;
    let out = said("customer_ordering", site.broker.url(), &[]).await;
    assert!(out.contains("30 events in order, 0 out of order"), "{out}");
}

#[tokio::test]
async fn orders_become_invoices() {
    let site = Site::start().await;
    let out = said("pipeline", site.broker.url(), &[]).await;
    assert!(out.contains("3 orders became invoices") && out.ends_with("3 invoices sent\n"), "{out}");
}

#[tokio::test]
async fn a_group_reads_again_and_a_dead_letter_comes_back() {
    let site = Site::start().await;
    let out = said("replay", site.broker.url(), &[]).await;
    assert!(out.contains("the sum was 15, and is 15 again"), "{out}");
    assert!(out.ends_with("1 dead letters\n1 pushed again\ngot 1000\n"), "{out}");
}

#[tokio::test]
async fn https_only_trusts_certificates_that_the_system_trusts() {
    let (database, dir) = (queen_testkit::database().await, TempDir::new().unwrap());
    let authority = Authority::new();
    let certificate = authority.issue(&["127.0.0.1"]);
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (chain, key) = (file("cert.pem", &certificate.certificate), file("key.pem", &certificate.key));
    let root = file("root.pem", &authority.pem());
    let other = file("other.pem", &Authority::new().pem());
    let flags = ["--database-url", database.url(), "--tls-cert", &chain, "--tls-key", &key];
    let broker = Broker::start(&binary(), &flags, &[]).await.unwrap();
    assert!(broker.url().starts_with("https://"));
    let out = said("quickstart", broker.url(), &[("SSL_CERT_FILE", &root)]).await;
    assert!(out.contains("1 orders billed"), "{out}");
    // It fails at once, instead of retrying until the deadline.
    let refused = run("quickstart", broker.url(), &[("SSL_CERT_FILE", &other)]).await;
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("not issued by a trusted authority"), "{said}");
}

#[tokio::test]
async fn a_self_signed_certificate_is_trusted_if_it_is_named() {
    let (database, dir) = (queen_testkit::database().await, TempDir::new().unwrap());
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (own, twin) = (Authority::self_signed(&["127.0.0.1"]), Authority::self_signed(&["127.0.0.1"]));
    let (chain, key) = (file("cert.pem", &own.certificate), file("key.pem", &own.key));
    let flags = ["--database-url", database.url(), "--tls-cert", &chain, "--tls-key", &key];
    let broker = Broker::start(&binary(), &flags, &[]).await.unwrap();
    let ask = async |url: &str, pem: &str| {
        let queen = Queen::builder().url(url).ca_certificates(pem).deadline(Duration::from_secs(10)).build();
        queen.unwrap().queue("orders").push(&1).await.map_err(|error| error.to_string())
    };
    ask(broker.url(), &own.certificate).await.unwrap();
    let both = format!("{}{}", twin.certificate, own.certificate);
    ask(broker.url(), &both).await.unwrap();
    let said = run("quickstart", broker.url(), &[("SSL_CERT_FILE", &chain)]).await;
    assert!(said.status.success(), "{said:?}");
    // Not another certificate for the same name, and not for another name.
    for (url, pem, why) in [
        (broker.url().to_owned(), &twin.certificate, "it is self-signed"),
        (broker.url().replace("127.0.0.1", "localhost"), &own.certificate, "its name does not match the URL"),
    ] {
        let refused = ask(&url, pem).await.unwrap_err();
        assert!(refused.contains("is not trusted") && refused.contains(why), "{refused}");
        assert!(!refused.contains("CaUsedAsEndEntity"), "{refused}");
    }
    for pem in ["", "no PEM", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        assert!(Queen::builder().url(broker.url()).ca_certificates(pem).build().is_err(), "{pem:?}");
    }
}
