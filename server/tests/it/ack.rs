//! `POST /api/v1/ack` and `/ack/batch`: cursors, leases and their rules.

use serde_json::{Value, json};

use crate::support::{Server, ack_of, numbers};

async fn popped(server: &Server, count: usize) -> Vec<Value> {
    server.push("q", "p", &numbers(0..count)).await;
    let popped = server.pop(&format!("/queue/q?batch={count}")).await.unwrap();
    assert_eq!(popped.messages.len(), count);
    popped.messages
}

#[tokio::test]
async fn an_answer_is_an_array_of_one_with_every_field() {
    let server = Server::start().await;
    let messages = popped(&server, 1).await;
    let result = server.ack(&messages[0], "completed").await;
    let expected = json!({
        "index": 0, "transactionId": messages[0]["transactionId"], "success": true, "error": null,
        "queueName": "q", "partitionName": "p", "leaseReleased": true, "dlq": false, "noop": false,
    });
    assert_eq!(result, expected);
}

#[tokio::test]
async fn acknowledging_the_last_message_finishes_the_batch() {
    let server = Server::start().await;
    let messages = popped(&server, 3).await;
    assert_eq!(server.ack(&messages[2], "completed").await["leaseReleased"], true);
    server.travel("1 hour").await;
    assert!(server.pop("/queue/q/partition/p?batch=10").await.is_none());
}

#[tokio::test]
async fn acknowledging_one_in_the_middle_finishes_only_the_earlier_ones() {
    let server = Server::start().await;
    let messages = popped(&server, 3).await;
    let result = server.ack(&messages[1], "completed").await;
    assert_eq!((&result["success"], &result["leaseReleased"]), (&json!(true), &json!(false)));
    assert!(server.pop("/queue/q?batch=10").await.is_none(), "the lease holds the rest");
    server.travel("1 hour").await;
    assert_eq!(server.pop("/queue/q/partition/p?batch=10").await.unwrap().data(), [2]);
}

#[tokio::test]
async fn a_late_ack_changes_nothing_and_a_late_nack_is_refused() {
    let server = Server::start().await;
    let messages = popped(&server, 3).await;
    server.ack(&messages[1], "completed").await;
    let again = server.ack(&messages[0], "completed").await;
    assert_eq!((&again["success"], &again["noop"]), (&json!(true), &json!(true)));
    for status in ["failed", "retry", "dlq"] {
        let refused = server.ack(&messages[0], status).await;
        assert_eq!(refused["success"], false);
        assert!(refused["error"].as_str().unwrap().contains("committed"), "{refused}");
    }
    server.ack(&messages[2], "completed").await;
    server.travel("1 hour").await;
    assert!(server.pop("/queue/q/partition/p?batch=10").await.is_none(), "the cursor never moves back");
}

#[tokio::test]
async fn acks_in_any_order_reach_the_end_of_the_batch() {
    let server = Server::start().await;
    let messages = popped(&server, 4).await;
    let shuffled: Vec<_> = [3, 0, 2, 1].iter().map(|&n: &usize| messages[n].clone()).collect();
    let results = server.ack_all(&shuffled, &["completed"; 4]).await;
    for (index, result) in results.iter().enumerate() {
        assert_eq!(result["index"], index);
        assert_eq!(result["transactionId"], shuffled[index]["transactionId"]);
        assert_eq!((&result["success"], &result["leaseReleased"]), (&json!(true), &json!(true)));
    }
}

#[tokio::test]
async fn an_unknown_message_is_refused_and_the_lease_stays() {
    let server = Server::start().await;
    let messages = popped(&server, 2).await;
    let mut ghost = messages[0].clone();
    ghost["transactionId"] = json!("ghost");
    let results = server.ack_all(&[ghost, messages[0].clone()], &["completed"; 2]).await;
    let error = results[0]["error"].as_str().unwrap();
    assert!(error.contains("Message not found") && error.contains("unresolv"), "{error}");
    assert_eq!((&results[0]["success"], &results[1]["success"]), (&json!(false), &json!(true)));
    assert_eq!(server.ack(&messages[1], "completed").await["leaseReleased"], true);
}

#[tokio::test]
async fn a_foreign_lease_is_refused_with_status_200_and_nothing_moves() {
    let server = Server::start().await;
    let messages = popped(&server, 2).await;
    for lease in
        ["not-a-lease", "0193a5e0-1111-7222-8333-444455556666", "0193a5e0-1111-7222-8333-444455556666.1"]
    {
        let mut foreign = messages.clone();
        foreign.iter_mut().for_each(|message| message["leaseId"] = json!(lease));
        let results = server.ack_all(&foreign, &["completed"; 2]).await;
        for result in results {
            assert_eq!(
                (&result["success"], &result["error"]),
                (&json!(false), &json!("Invalid or expired lease"))
            );
        }
    }
    assert_eq!(server.ack(&messages[1], "completed").await["success"], true);
}

#[tokio::test]
async fn an_expired_lease_is_refused_and_an_ack_without_one_still_counts() {
    let server = Server::start().await;
    let messages = popped(&server, 2).await;
    server.travel("1 hour").await;
    let refused = server.ack(&messages[1], "completed").await;
    assert_eq!((&refused["success"], &refused["error"]), (&json!(false), &json!("Invalid or expired lease")));
    let mut late = messages[1].clone();
    late["leaseId"] = json!("");
    assert_eq!(server.ack(&late, "completed").await["success"], true);
    assert!(server.pop("/queue/q/partition/p?batch=10").await.is_none());
}

#[tokio::test]
async fn a_stale_lease_does_not_disturb_its_successor() {
    let server = Server::start().await;
    let stale = popped(&server, 1).await;
    server.travel("1 hour").await;
    let current = server.pop("/queue/q/partition/p").await.unwrap();
    assert_eq!(server.ack(&stale[0], "completed").await["success"], false);
    assert_eq!(server.ack(&current.messages[0], "completed").await["success"], true);
}

#[tokio::test]
async fn acks_of_one_group_never_move_another() {
    let server = Server::start().await;
    server.push("q", "p", &numbers(0..2)).await;
    let one = server.pop("/queue/q?consumerGroup=one&batch=2").await.unwrap();
    let two = server.pop("/queue/q?consumerGroup=two&batch=2").await.unwrap();
    server.ack(&one.messages[1], "completed").await;
    let mut crossed = two.messages[1].clone();
    crossed["leaseId"] = one.messages[1]["leaseId"].clone();
    assert_eq!(server.ack(&crossed, "completed").await["success"], false);
    server.travel("1 hour").await;
    let again = server.pop("/queue/q/partition/p?consumerGroup=two&batch=2").await.unwrap();
    assert_eq!(again.data(), [0, 1]);
}

#[tokio::test]
async fn the_group_of_a_batch_is_that_of_the_call_and_null_is_queue_mode() {
    let server = Server::start().await;
    let messages = popped(&server, 1).await;
    let mut item = ack_of(&messages[0], "completed");
    item.as_object_mut().unwrap().remove("consumerGroup");
    let body = json!({"acknowledgments": [item], "consumerGroup": null});
    let results = server.call("/api/v1/ack/batch", body).await;
    assert_eq!((&results[0]["success"], &results[0]["leaseReleased"]), (&json!(true), &json!(true)));
}

#[tokio::test]
async fn an_absent_status_and_its_synonyms_are_completions() {
    let server = Server::start().await;
    for (n, status) in [None, Some("success"), Some("acked"), Some("ok")].into_iter().enumerate() {
        let queue = format!("q{n}");
        server.push(&queue, "p", &[json!(n)]).await;
        let popped = server.pop(&format!("/queue/{queue}")).await.unwrap();
        let mut body = ack_of(&popped.messages[0], "");
        body["status"] = json!(status);
        assert_eq!(server.call("/api/v1/ack", body).await[0]["leaseReleased"], true);
        server.travel("1 hour").await;
        assert!(server.pop(&format!("/queue/{queue}/partition/p")).await.is_none(), "{status:?}");
    }
}

#[tokio::test]
async fn no_acknowledgments_are_no_results() {
    let server = Server::start().await;
    assert_eq!(server.call("/api/v1/ack/batch", json!({"acknowledgments": []})).await, json!([]));
}

#[tokio::test]
async fn an_ack_by_transaction_id_alone_means_the_first_and_a_message_id_decides() {
    let server = Server::start().await;
    server.configure("q", json!({"dedupWindowSeconds": 0})).await;
    for n in 0..4 {
        server
            .push_items(json!([{"queue": "q", "partition": "p", "payload": n, "transactionId": "same"}]))
            .await;
    }
    let messages = server.pop("/queue/q?batch=3").await.unwrap().messages;
    for noop in [false, true] {
        let first = server.ack(&messages[2], "completed").await;
        assert_eq!((&first["noop"], &first["leaseReleased"]), (&json!(noop), &json!(false)), "{first}");
    }
    let named = |n: usize, transaction: &str| {
        let mut body = ack_of(&messages[n], "completed");
        (body["messageId"], body["transactionId"]) = (messages[n]["id"].clone(), json!(transaction));
        body
    };
    let wrong = server.call("/api/v1/ack", named(1, "another")).await;
    let text = wrong[0]["error"].as_str().unwrap();
    assert!(wrong[0]["success"] == false && text.contains("do not name the same message"), "{text}");
    let many = json!({"acknowledgments": [named(1, "same")], "consumerGroup": null});
    let second = server.call("/api/v1/ack/batch", many).await;
    assert_eq!((&second[0]["success"], &second[0]["noop"]), (&json!(true), &json!(false)));
    let mut operation = named(2, "same");
    operation["type"] = json!("ack");
    let third = server.call("/api/v1/transaction", json!({"operations": [operation]})).await;
    assert_eq!(third["success"], true, "{third}");
    server.travel("1 hour").await;
    assert_eq!(server.pop("/queue/q/partition/p?batch=10").await.unwrap().data(), [3]);
    let mut nonsense = named(0, "same");
    nonsense["messageId"] = json!("7");
    assert!(server.post("/api/v1/ack", nonsense).await.is_error(400, "bad_request"));
}
