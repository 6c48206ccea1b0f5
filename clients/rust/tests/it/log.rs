//! What is logged without a listener. Uses a fake broker.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queen_client::{ErrorKind, Message, Queen};
use serde_json::json;
use tokio::time::{sleep, timeout};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

use crate::stub::{Asked, Stub};
use crate::support::PATIENCE;

/// Captures what is logged in this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("nobody panics here").extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl Log {
    fn listen() -> (Self, DefaultGuard) {
        let log = Self::default();
        let written =
            tracing_subscriber::fmt().with_ansi(false).without_time().with_writer(log.clone()).finish();
        (log, tracing::subscriber::set_default(written))
    }

    fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().expect("nobody panics here").clone()).expect("a text");
        text.lines().filter(|line| line.contains("queen_client")).map(|line| line.trim().to_owned()).collect()
    }

    async fn wait_for(&self, lines: usize) -> Vec<String> {
        let reached = async {
            while self.lines().len() < lines {
                sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(PATIENCE, reached).await.expect("it is logged");
        self.lines()
    }
}

fn queen(stub: &Stub) -> Queen {
    let quick = Duration::from_millis(2);
    Queen::builder().url(&stub.url).retry_delay(quick).max_retry_delay(quick).build().expect("an URL")
}

fn deliver(asked: Asked, messages: usize) {
    assert!(asked.line.contains("/api/v1/pop/queue/q"), "{}", asked.line);
    let message = |number: usize| {
        json!({"id": number.to_string(), "transactionId": format!("t{number}"), "data": number, "createdAt": "2026-01-01T00:00:00Z",
            "partitionId": "p1", "partition": "customer-7", "queue": "q", "leaseId": "lease", "consumerGroup": "g", "retryCount": 0})
    };
    let messages: Vec<_> = (1..=messages).map(message).collect();
    asked
        .answer(200, &json!({"success": true, "leaseId": "lease", "leaseSeconds": 60, "messages": messages}));
}

fn accept(asked: Asked) {
    let acks = asked.body["acknowledgments"].as_array().cloned().unwrap_or_default();
    let accepted = |ack: &serde_json::Value| json!({"transactionId": ack["transactionId"], "success": true, "error": null, "dlq": false});
    let results = acks.iter().map(accepted).collect();
    asked.answer(200, &results);
}

#[tokio::test]
async fn a_handler_that_fails_is_logged_with_its_message_and_the_causes_of_its_error() {
    let (log, _guard) = Log::listen();
    let mut stub = Stub::start().await;
    let consume = queen(&stub).queue("q").group("g").consume().limit(1);
    let failing = |_: Message<u32>, _| async { Err(anyhow::anyhow!("total is -1").context("no invoice")) };
    let consumer = consume.each(failing).start().unwrap();
    deliver(stub.next().await, 1);
    accept(stub.next().await);
    timeout(PATIENCE, consumer.finished()).await.unwrap().unwrap();
    let lines = log.lines();
    assert_eq!(
        lines,
        [
            r#"ERROR queen_client: handler failed queue="q" partition="customer-7" transaction_id="t1" messages=1 error="no invoice: total is -1""#
        ]
    );
}

#[tokio::test]
async fn a_batch_that_fails_is_logged_once_and_names_its_first_message() {
    let (log, _guard) = Log::listen();
    let mut stub = Stub::start().await;
    let consume = queen(&stub).queue("q").group("g").consume().limit(3);
    let consumer = consume.batches(|_: Vec<Message<u32>>, _| async { Err("no invoice") }).start().unwrap();
    deliver(stub.next().await, 3);
    accept(stub.next().await);
    timeout(PATIENCE, consumer.finished()).await.unwrap().unwrap();
    let lines = log.lines();
    assert!(
        lines.len() == 1 && lines[0].contains(r#"transaction_id="t1" messages=3 error="no invoice""#),
        "{lines:?}"
    );
}

#[tokio::test]
async fn a_broker_that_does_not_answer_is_logged_when_that_begins_and_when_it_ends() {
    let (log, _guard) = Log::listen();
    let mut stub = Stub::start().await;
    let consume = queen(&stub).queue("q").group("g").consume().limit(1);
    let consumer = consume.each(|_: Message<u32>, _| async { Ok::<_, String>(()) }).start().unwrap();
    for _ in 0..6 {
        drop(stub.next().await);
    }
    deliver(stub.next().await, 1);
    accept(stub.next().await);
    timeout(PATIENCE, consumer.finished()).await.unwrap().unwrap();
    let lines = log.lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[0]
            .starts_with(&format!("WARN queen_client: broker does not respond broker={:?} error=", stub.url)),
        "{}",
        lines[0]
    );
    assert!(
        lines[1].starts_with(&format!(
            "WARN queen_client: broker responds again broker={:?} outage_ms=",
            stub.url
        )),
        "{}",
        lines[1]
    );
}

#[tokio::test]
async fn pops_that_a_broker_refuses_for_a_while_are_logged_when_that_begins_and_when_it_ends() {
    let (log, _guard) = Log::listen();
    let mut stub = Stub::start().await;
    let consume = queen(&stub).queue("q").group("g").consume();
    let consumer = consume.each(|_: Message<u32>, _| async { Ok::<_, String>(()) }).start().unwrap();
    for _ in 0..5 {
        stub.next().await.answer(500, &json!({"error": "out of order"}));
    }
    deliver(stub.next().await, 1);
    accept(stub.next().await);
    let lines = log.wait_for(2).await;
    drop(consumer);
    assert!(
        lines[0].starts_with("WARN queen_client: pops are failing; retrying")
            && lines[0].contains("out of order"),
        "{lines:?}"
    );
    assert!(lines[1].starts_with("WARN queen_client: pops work again"), "{lines:?}");
    assert_eq!(lines.len(), 2, "{lines:?}");
}

#[tokio::test]
async fn a_failed_acknowledgement_is_logged_unless_there_is_a_listener() {
    for listens in [false, true] {
        let (log, _guard) = Log::listen();
        let mut stub = Stub::start().await;
        let mut consume = queen(&stub).queue("q").group("g").consume().limit(1);
        if listens {
            consume = consume.on_error(|_| {});
        }
        let consumer = consume.each(|_: Message<u32>, _| async { Ok::<_, String>(()) }).start().unwrap();
        deliver(stub.next().await, 1);
        stub.next().await.answer(403, &json!({"error": "not yours"}));
        timeout(PATIENCE, consumer.finished()).await.unwrap().unwrap();
        let lines = log.lines();
        if listens {
            assert_eq!(lines, Vec::<String>::new());
        } else {
            assert!(
                lines.len() == 1
                    && lines[0].contains(
                        r#"acknowledgement failed queue="q" partition="customer-7" transaction_id="t1""#
                    ),
                "{lines:?}"
            );
        }
    }
}

#[tokio::test]
async fn messages_that_a_buffer_could_not_deliver_are_logged() {
    let (log, _guard) = Log::listen();
    let mut stub = Stub::start().await;
    let buffer = queen(&stub).queue("q").buffer().start().unwrap();
    buffer.push(&1).await.unwrap();
    stub.next().await.refuse();
    let lines = log.wait_for(1).await;
    assert!(
        lines[0].starts_with(r#"ERROR queen_client: message was not delivered queue="q" error="#),
        "{lines:?}"
    );
    assert_eq!(buffer.close().await.unwrap_err().kind(), ErrorKind::BadRequest);
}
