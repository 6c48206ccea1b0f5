//! `POST /api/v1/lease/:leaseId/extend`.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Server, numbers};

async fn renew(server: &Server, lease: &Value, body: Option<&str>) -> Value {
    let path = format!("/api/v1/lease/{}/extend", lease.as_str().unwrap());
    let reply = server.send(Method::POST, &path, body).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.json()
}

#[tokio::test]
async fn a_renewed_lease_outlives_its_first_term() {
    let server = Server::start().await;
    server.push("q", "p", &[json!(1)]).await;
    let popped = server.pop("/queue/q?leaseSeconds=60").await.unwrap();
    let answer = renew(&server, &popped.body["leaseId"], Some(r#"{"seconds":600}"#)).await;
    assert_eq!((&answer["success"], &answer["renewed"]), (&json!(true), &json!(1)));
    assert_eq!((&answer["leaseId"], &answer["error"]), (&popped.body["leaseId"], &json!(null)));
    assert!(answer["expiresAt"].as_str().unwrap().ends_with('Z'));
    assert_eq!(answer["newExpiresAt"], answer["expiresAt"]);
    assert_eq!(answer["lease_expires_at"], answer["expiresAt"]);
    server.travel("300 seconds").await;
    assert!(server.pop("/queue/q/partition/p").await.is_none());
    assert_eq!(server.ack(&popped.messages[0], "completed").await["success"], true);
}

#[tokio::test]
async fn a_body_may_be_absent_empty_or_an_empty_object() {
    let server = Server::start().await;
    server.push("q", "p", &[json!(1)]).await;
    let lease = server.pop("/queue/q").await.unwrap().body["leaseId"].clone();
    for body in [None, Some(""), Some("{}"), Some(r#"{"seconds":null}"#)] {
        assert_eq!(renew(&server, &lease, body).await["success"], true, "{body:?}");
    }
}

#[tokio::test]
async fn a_renewal_never_shortens() {
    let server = Server::start().await;
    server.push("q", "p", &[json!(1)]).await;
    let popped = server.pop("/queue/q?leaseSeconds=3600").await.unwrap();
    renew(&server, &popped.body["leaseId"], Some(r#"{"seconds":1}"#)).await;
    server.travel("600 seconds").await;
    assert!(server.pop("/queue/q/partition/p").await.is_none());
    assert_eq!(server.ack(&popped.messages[0], "completed").await["success"], true);
}

#[tokio::test]
async fn one_renewal_covers_every_partition_of_the_lease() {
    let server = Server::start().await;
    for partition in ["a", "b", "c"] {
        server.push("q", partition, &numbers(0..2)).await;
    }
    let popped = server.pop("/queue/q?batch=10&partitions=3&leaseSeconds=60").await.unwrap();
    assert_eq!(renew(&server, &popped.body["leaseId"], Some(r#"{"seconds":600}"#)).await["renewed"], 3);
    server.travel("300 seconds").await;
    let results = server.ack_all(&popped.messages, &["completed"; 6]).await;
    assert!(results.iter().all(|result| result["success"] == true), "{results:?}");
}

#[tokio::test]
async fn a_lost_lease_is_reported_with_status_200() {
    let server = Server::start().await;
    server.push("q", "p", &[json!(1)]).await;
    let lease = server.pop("/queue/q").await.unwrap().body["leaseId"].clone();
    server.travel("1 hour").await;
    for lease in [lease, json!("nobodys"), json!("0193a5e0-1111-7222-8333-444455556666.1"), json!("%00")] {
        let answer = renew(&server, &lease, None).await;
        assert_eq!((&answer["success"], &answer["renewed"]), (&json!(false), &json!(0)), "{lease}");
        for key in ["newExpiresAt", "expiresAt", "lease_expires_at"] {
            assert_eq!(answer[key], json!(null));
        }
    }
}
