//! Long polls: parked without a connection, woken by a push, ended by their id or with their client.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use uuid::Uuid;

use crate::support::{Server, eventually};

/// Sends a long poll. Returns after a while without a response, when the server has parked it.
pub async fn parked(url: &str, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(url.trim_start_matches("http://")).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut byte = [0];
    let quiet = timeout(Duration::from_millis(400), stream.peek(&mut byte)).await;
    assert!(quiet.is_err(), "the poll was answered at once");
    stream
}

pub async fn answer(mut stream: TcpStream) -> String {
    let mut answer = vec![0; 16 << 10];
    let length = timeout(Duration::from_secs(20), stream.read(&mut answer)).await.unwrap().unwrap();
    String::from_utf8(answer[..length].to_vec()).unwrap()
}

#[tokio::test]
async fn a_push_wakes_a_parked_pop() {
    let server = Server::start().await;
    for queue in ["known", "unknown"] {
        if queue == "known" {
            server.configure(queue, json!({})).await;
        }
        let poll = parked(&server.url, &format!("/api/v1/pop/queue/{queue}?wait=true&timeout=30000")).await;
        let began = Instant::now();
        server.push(queue, "p", &[json!("woken")]).await;
        let answer = answer(poll).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("woken"), "{answer}");
        assert!(began.elapsed() < Duration::from_secs(3), "{queue}: woken after {:?}", began.elapsed());
    }
}

#[tokio::test]
async fn a_transaction_wakes_a_parked_pop() {
    let server = Server::start().await;
    let poll = parked(&server.url, "/api/v1/pop/queue/q/partition/p?wait=true&timeout=30000").await;
    let operation = json!({"type": "push", "items": [{"queue": "q", "partition": "p", "payload": "woken"}]});
    server.call("/api/v1/transaction", json!({"operations": [operation]})).await;
    assert!(answer(poll).await.contains("woken"));
}

#[tokio::test]
async fn a_poll_that_finds_nothing_ends_with_204_when_its_time_is_up() {
    let server = Server::start().await;
    let began = Instant::now();
    assert!(server.pop("/queue/q?wait=true&timeout=600").await.is_none());
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(550) && waited < Duration::from_secs(3), "{waited:?}");
}

#[tokio::test]
async fn a_parked_pop_notices_an_expired_lease_and_a_released_one() {
    let server = Server::start().await;
    server.push("q", "p", &[json!(1)]).await;
    let held = server.pop("/queue/q?leaseSeconds=1").await.unwrap();
    let again = server.pop("/queue/q?wait=true&timeout=20000").await.unwrap();
    assert_eq!(again.data(), held.data());

    let poll = parked(&server.url, "/api/v1/pop/queue/q?wait=true&timeout=30000").await;
    server.ack(&again.messages[0], "retry").await;
    assert!(answer(poll).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_parked_pop_is_woken_when_its_batch_is_full_before_the_window_closes() {
    let server = Server::start().await;
    server.configure("q", json!({"windowBuffer": 60})).await;
    let poll = parked(&server.url, "/api/v1/pop/queue/q?batch=3&wait=true&timeout=10000").await;
    for n in 0..3 {
        server.push("q", "p", &[json!(n)]).await;
    }
    let answer = answer(poll).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn a_client_that_went_away_swallows_no_later_message() {
    let server = Server::start().await;
    for round in 0..5 {
        let queue = format!("q{round}");
        let path = format!("/api/v1/pop/queue/{queue}?wait=true&timeout=30000");
        drop(parked(&server.url, &path).await);
        server.push(&queue, "p", &[json!(round)]).await;
        assert_eq!(server.pop_soon(&format!("/queue/{queue}")).await.data(), [round]);
    }
}

#[tokio::test]
async fn one_message_wakes_one_of_many_and_the_rest_stay_parked() {
    let server = Server::start().await;
    let mut polls = Vec::new();
    for _ in 0..4 {
        polls.push(parked(&server.url, "/api/v1/pop/queue/q?wait=true&timeout=3000").await);
    }
    server.push("q", "p", &[json!("one")]).await;
    let mut answers = Vec::new();
    for poll in polls {
        answers.push(answer(poll).await);
    }
    assert_eq!(answers.iter().filter(|answer| answer.starts_with("HTTP/1.1 200")).count(), 1);
    assert_eq!(answers.iter().filter(|answer| answer.starts_with("HTTP/1.1 204")).count(), 3);
}

#[tokio::test]
async fn every_group_that_waits_is_woken_by_the_same_message() {
    let server = Server::start().await;
    let mut polls = Vec::new();
    for group in ["a", "b", "c"] {
        let path = format!("/api/v1/pop/queue/q?consumerGroup={group}&wait=true&timeout=30000");
        polls.push(parked(&server.url, &path).await);
    }
    server.push("q", "p", &[json!("for all")]).await;
    for poll in polls {
        assert!(answer(poll).await.contains("for all"));
    }
}

#[tokio::test]
async fn stopping_answers_parked_pops_and_ends() {
    let server = Server::start().await;
    let poll = parked(&server.url, "/api/v1/pop/queue/q?wait=true&timeout=60000").await;
    server.shutdown.cancel();
    assert!(answer(poll).await.starts_with("HTTP/1.1 204"));
    server.tasks.close();
    timeout(Duration::from_secs(10), server.tasks.wait()).await.expect("the server ends");
    let gone = async || server.http.get(&server.url).send().await.is_err().then_some(());
    eventually("the port is closed", gone).await;
}

fn waits(id: Uuid) -> String {
    format!("/api/v1/pop/waits/{id}")
}

#[tokio::test]
async fn a_wait_is_ended_by_its_id() {
    let server = Server::start().await;
    server.configure("shop.q", json!({})).await;
    for path in ["/queue/shop.q?", "/queue/shop.q/partition/p?", "?namespace=shop&", "/queue/?"] {
        let id = Uuid::new_v4();
        let path = format!("/api/v1/pop{path}wait=true&timeout=30000&waitId={id}");
        let poll = parked(&server.url, &path).await;
        assert!(server.get(&path).await.is_error(409, "conflict"), "an id is one pop's at a time");
        assert_eq!(server.delete(&waits(Uuid::new_v4())).await.json(), json!({"ended": false}));
        let began = Instant::now();
        let reply = server.delete(&waits(id)).await;
        assert_eq!((reply.status, reply.json()), (200, json!({"ended": true})));
        let answer = answer(poll).await;
        assert!(answer.starts_with("HTTP/1.1 204"), "{path}: {answer}");
        assert!(began.elapsed() < Duration::from_secs(20), "not when its time was up");
        assert_eq!(server.delete(&waits(id)).await.json(), json!({"ended": false}), "it was answered");
    }
}

#[tokio::test]
async fn a_pop_that_comes_after_its_end_does_not_wait() {
    let server = Server::start().await;
    let id = Uuid::new_v4();
    assert_eq!(server.delete(&waits(id)).await.json(), json!({"ended": false}));
    // Much longer than the test may take.
    let reply = server.get(&format!("/api/v1/pop/queue/q?wait=true&timeout=300000&waitId={id}")).await;
    assert_eq!(reply.status, 204);
}

#[tokio::test]
async fn an_id_is_free_again_after_its_answer_and_after_its_client_hung_up() {
    let server = Server::start().await;
    let id = Uuid::new_v4();
    let path = format!("/queue/q?waitId={id}");
    server.push("q", "p", &[json!(1), json!(2)]).await;
    assert_eq!(server.pop(&format!("{path}&autoAck=true")).await.unwrap().data(), [1]);
    assert_eq!(server.pop(&format!("{path}&autoAck=true")).await.unwrap().data(), [2]);
    drop(parked(&server.url, &format!("/api/v1/pop{path}&wait=true&timeout=30000")).await);
    let forgotten = async || (server.delete(&waits(id)).await.json()["ended"] == false).then_some(());
    eventually("it is forgotten", forgotten).await;
}

#[tokio::test]
async fn an_id_that_is_none_is_refused() {
    let server = Server::start().await;
    for path in ["/api/v1/pop/queue/q?waitId=soon", "/api/v1/pop/queue/q/partition/p?waitId="] {
        assert!(server.get(path).await.is_error(400, "bad_request"), "{path}");
    }
    assert!(server.delete("/api/v1/pop/waits/soon").await.is_error(400, "bad_request"));
}
