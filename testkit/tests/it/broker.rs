//! Tests of `Broker`, with a shell script in place of the broker.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use queen_testkit::Broker;

const SCRIPT: &str = "trap 'echo draining; exit 3' TERM; echo \"$HOST $PORT $WHO\"
    echo 'listening on http://127.0.0.1:4711' >&2; echo started; while true; do sleep 0.05; done";

async fn start(script: &str) -> anyhow::Result<Broker> {
    Broker::start(Path::new("/bin/sh"), &["-c", script], &[("WHO", "me")]).await
}

#[tokio::test]
async fn a_broker_says_where_it_listens_and_ends_as_asked() {
    let mut broker = start(SCRIPT).await.unwrap();
    assert_eq!(broker.url(), "http://127.0.0.1:4711");
    broker.says("started").await;
    assert!(broker.output().contains("127.0.0.1 0 me\n"), "{}", broker.output());
    broker.terminate();
    assert_eq!(broker.wait().await.code(), Some(3));
    broker.says("draining").await;
}

#[tokio::test]
async fn a_broker_can_be_killed() {
    let mut broker = start(SCRIPT).await.unwrap();
    broker.kill9().await;
    assert_eq!(broker.wait().await.signal(), Some(9));
}

#[tokio::test]
async fn a_broker_that_does_not_start_tells_why() {
    let error = start("echo 'no database' >&2; exit 4").await.unwrap_err().to_string();
    assert!(error.contains("exit status: 4") && error.contains("no database"), "{error}");
}
