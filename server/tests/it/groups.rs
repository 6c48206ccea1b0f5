//! Consumer groups through the API: deleting, moving, starting over.

use serde_json::{Value, json};

use crate::support::{Server, numbers};

/// Everything a group can still read, acknowledged as it comes.
async fn drained(server: &Server, group: &str) -> Vec<Value> {
    let mut data = Vec::new();
    let path = format!("/queue/q?consumerGroup={group}&batch=100&partitions=10&autoAck=true");
    while let Some(popped) = server.pop(&path).await {
        data.extend(popped.data());
    }
    data
}

async fn ten_partitions_read(server: &Server) {
    for partition in 0..10 {
        server.push("q", &format!("p{partition}"), &[json!(partition)]).await;
    }
    assert_eq!(drained(server, "g").await.len(), 10);
    assert_eq!(drained(server, "g").await.len(), 0);
}

#[tokio::test]
async fn a_deleted_group_starts_afresh() {
    let server = Server::start().await;
    ten_partitions_read(&server).await;
    let answer = server.delete("/api/v1/consumer-groups/g?deleteMetadata=true").await;
    let expected =
        json!({"success": true, "consumerGroup": "g", "deletedPartitions": 10, "metadataDeleted": true});
    assert_eq!((answer.status, answer.json()), (200, expected));
    assert_eq!(drained(&server, "g").await.len(), 10);
}

#[tokio::test]
async fn a_group_deleted_from_one_queue_keeps_its_cursors_in_other_queues() {
    let server = Server::start().await;
    ten_partitions_read(&server).await;
    server.push("other", "p", &[json!(1)]).await;
    assert!(server.pop("/queue/other?consumerGroup=g&autoAck=true").await.is_some());
    let answer = server.delete("/api/v1/consumer-groups/g/queues/q").await.json();
    assert_eq!((&answer["success"], &answer["queueName"]), (&json!(true), &json!("q")));
    assert_eq!((&answer["deletedPartitions"], &answer["metadataDeleted"]), (&json!(10), &json!(true)));
    assert_eq!(drained(&server, "g").await.len(), 10);
    assert!(server.pop("/queue/other?consumerGroup=g").await.is_none());
}

#[tokio::test]
async fn without_its_metadata_a_group_is_measured_from_its_first_registration() {
    let server = Server::start().await;
    server.push("q", "p", &[json!("old")]).await;
    assert!(server.pop("/queue/q?consumerGroup=g&subscriptionMode=new").await.is_none());
    server.push("q", "p", &[json!("new")]).await;
    assert_eq!(drained(&server, "g").await, ["new"]);
    let answer = server.delete("/api/v1/consumer-groups/g?deleteMetadata=false").await.json();
    assert_eq!(answer["metadataDeleted"], false);
    assert_eq!(drained(&server, "g").await, ["new"], "the registration still says where it began");
    server.delete("/api/v1/consumer-groups/g").await;
    assert_eq!(drained(&server, "g").await, ["old", "new"]);
}

#[tokio::test]
async fn deleting_an_unknown_group_is_not_an_error() {
    let server = Server::start().await;
    let answer = server.delete("/api/v1/consumer-groups/nobody").await;
    assert_eq!((answer.status, &answer.json()["deletedPartitions"]), (200, &json!(0)));
    assert_eq!(answer.json()["metadataDeleted"], false);
}

#[tokio::test]
async fn deleting_a_group_ends_its_leases() {
    let server = Server::start().await;
    server.push("q", "p", &numbers(0..2)).await;
    let held = server.pop("/queue/q?consumerGroup=g&batch=2").await.unwrap();
    server.delete("/api/v1/consumer-groups/g").await;
    assert_eq!(server.ack(&held.messages[1], "completed").await["success"], false);
    assert_eq!(drained(&server, "g").await, [0, 1]);
}

#[tokio::test]
async fn a_seek_goes_back_to_a_time_or_on_to_the_end() {
    let server = Server::start().await;
    ten_partitions_read(&server).await;
    let seek = "/api/v1/consumer-groups/g/queues/q/seek";
    let answer = server.call(seek, json!({"timestamp": "2001-01-01T00:00:00Z"})).await;
    let expected = json!({
        "success": true, "consumerGroup": "g", "queueName": "q", "seekToEnd": false,
        "targetTimestamp": "2001-01-01T00:00:00Z", "partitionsUpdated": 10,
    });
    assert_eq!(answer, expected);
    assert_eq!(drained(&server, "g").await.len(), 10);

    server.call(seek, json!({"timestamp": "2001-01-01T00:00:00Z"})).await;
    let answer = server.call(seek, json!({"toEnd": true})).await;
    assert_eq!((&answer["seekToEnd"], &answer["targetTimestamp"]), (&json!(true), &json!(null)));
    assert_eq!(drained(&server, "g").await.len(), 0);
}

#[tokio::test]
async fn a_seek_between_two_messages_delivers_the_second() {
    let server = Server::start().await;
    server.push("q", "p", &[json!("first")]).await;
    let first = server.pop("/queue/q").await.unwrap().messages[0]["createdAt"].clone();
    server.push("q", "p", &[json!("second")]).await;
    assert_eq!(drained(&server, "g").await, ["first", "second"]);
    server.call("/api/v1/consumer-groups/g/queues/q/seek", json!({"timestamp": first})).await;
    assert_eq!(drained(&server, "g").await, ["second"]);
}

#[tokio::test]
async fn a_seek_ends_leases_and_needs_a_target() {
    let server = Server::start().await;
    server.push("q", "p", &numbers(0..2)).await;
    let held = server.pop("/queue/q?consumerGroup=g").await.unwrap();
    let seek = "/api/v1/consumer-groups/g/queues/q/seek";
    server.call(seek, json!({"timestamp": "2001-01-01T00:00:00Z"})).await;
    assert_eq!(server.ack(&held.messages[0], "completed").await["success"], false);
    assert_eq!(drained(&server, "g").await, [0, 1]);
    for body in [
        json!({}),
        json!({"position": "end"}),
        json!({"timestamp": "soon"}),
        json!({"toEnd": "yes"}),
        json!([]),
    ] {
        assert!(server.post(seek, body.clone()).await.is_error(400, "bad_request"), "{body}");
    }
}

#[tokio::test]
async fn a_dry_run_tells_what_a_seek_would_do_and_does_it_not() {
    let server = Server::start().await;
    ten_partitions_read(&server).await;
    server.push("q", "p0", &numbers(0..3)).await;
    let held = server.pop("/queue/q/partition/p0?consumerGroup=g").await.unwrap();
    let seek = "/api/v1/consumer-groups/g/queues/q/seek";
    let beginning = "1970-01-01T00:00:00Z";
    let told = server.call(seek, json!({"timestamp": beginning, "dryRun": true})).await;
    let expected = json!({
        "success": true, "consumerGroup": "g", "queueName": "q", "seekToEnd": false, "targetTimestamp": beginning,
        "partitionsUpdated": 10, "dryRun": true, "messagesReplayed": 10, "messagesSkipped": 0,
    });
    assert_eq!(told, expected);
    let told = server.call(seek, json!({"toEnd": true, "dryRun": true})).await;
    assert_eq!((&told["messagesReplayed"], &told["messagesSkipped"]), (&json!(0), &json!(3)));
    let one = "/api/v1/consumer-groups/g/queues/q/partitions/p0/seek";
    let expected = json!({
        "success": true, "consumerGroup": "g", "queueName": "q", "partitionName": "p0", "updated": true,
        "cursorMovedTo": 4, "dryRun": true, "messagesReplayed": 0, "messagesSkipped": 3,
    });
    assert_eq!(server.call(one, json!({"dryRun": true})).await, expected);
    let told = server.call(one, json!({"timestamp": beginning, "dryRun": true})).await;
    assert_eq!((&told["messagesReplayed"], &told["cursorMovedTo"]), (&json!(1), &json!(0)));
    for body in [
        json!({"dryRun": true}),
        json!({"dryRun": "yes", "toEnd": true}),
        json!({"timestamp": "soon", "dryRun": true}),
    ] {
        assert!(server.post(seek, body.clone()).await.is_error(400, "bad_request"), "{body}");
    }
    let nowhere = "/api/v1/consumer-groups/g/queues/q/partitions/nowhere/seek";
    assert!(server.post(nowhere, json!({"dryRun": true})).await.is_error(404, "not_found"));

    // A dry run moves nothing, and does not end the lease.
    assert_eq!(server.ack(&held.messages[0], "completed").await["success"], true);
    assert_eq!(drained(&server, "g").await, [1, 2]);
    let moved = server.call(seek, json!({"timestamp": beginning, "dryRun": false})).await;
    assert_eq!((&moved["partitionsUpdated"], moved.get("dryRun")), (&json!(10), None));
    assert_eq!(drained(&server, "g").await.len(), 13);
}

#[tokio::test]
async fn a_seek_of_a_group_that_does_not_read_the_queue_is_refused_and_creates_nothing() {
    let server = Server::start().await;
    ten_partitions_read(&server).await;
    let beginning = "1970-01-01T00:00:00Z";
    for (path, body) in [
        ("/api/v1/consumer-groups/typo/queues/q/seek", json!({"toEnd": true})),
        ("/api/v1/consumer-groups/typo/queues/q/seek", json!({"timestamp": beginning, "dryRun": true})),
        ("/api/v1/consumer-groups/typo/queues/q/partitions/p0/seek", json!({})),
        (
            "/api/v1/consumer-groups/typo/queues/q/partitions/p0/seek",
            json!({"dryRun": true, "create": false}),
        ),
        ("/api/v1/consumer-groups/g/queues/none/seek", json!({"toEnd": true})),
        ("/api/v1/consumer-groups/g/queues/none/seek", json!({"toEnd": true, "create": true})),
    ] {
        let reply = server.post(path, body.clone()).await;
        assert!(reply.is_error(404, "not_found"), "{path} {body}: {} {}", reply.status, reply.text);
    }
    let reply = server.post("/api/v1/consumer-groups/typo/queues/q/seek", json!({"toEnd": true})).await;
    let said = "consumer group \"typo\" does not read queue \"q\"; send \"create\": true to create it there";
    assert_eq!(reply.json()["error"], said);
    assert_eq!(names_of(&server).await, ["g"]);
    // An invalid request is reported before an unknown group.
    let nowhere = server.post("/api/v1/consumer-groups/typo/queues/q/seek", json!({})).await;
    assert!(nowhere.is_error(400, "bad_request"));
}

#[tokio::test]
async fn a_seek_creates_a_group_when_it_is_asked_to() {
    let server = Server::start().await;
    ten_partitions_read(&server).await;
    let seek = "/api/v1/consumer-groups/new/queues/q/seek";
    let told = server.call(seek, json!({"toEnd": true, "create": true, "dryRun": true})).await;
    assert_eq!((&told["partitionsUpdated"], &told["messagesSkipped"]), (&json!(10), &json!(10)));
    assert_eq!(names_of(&server).await, ["g"], "a dry run creates nothing");
    assert_eq!(server.call(seek, json!({"toEnd": true, "create": true})).await["partitionsUpdated"], 10);
    assert_eq!(names_of(&server).await, ["g", "new"]);
    // The group also reads partitions that are created later, so they count.
    server.push("q", "later", &numbers(0..2)).await;
    let left = server.get("/api/v1/resources/queues/q/depth?group=new").await.json();
    assert_eq!(left["pending"], 2);
    assert_eq!(drained(&server, "new").await, [0, 1]);
    let one = "/api/v1/consumer-groups/one/queues/q/partitions/p0/seek";
    let moved = server.call(one, json!({"timestamp": "1970-01-01T00:00:00Z", "create": true})).await;
    assert_eq!(moved["cursorMovedTo"], 0);
    assert_eq!(names_of(&server).await, ["g", "new", "one"]);
}

#[tokio::test]
async fn a_group_that_is_registered_and_has_read_nothing_can_be_moved() {
    let server = Server::start().await;
    assert!(server.pop("/queue/q?consumerGroup=g").await.is_none());
    server.push("q", "p", &numbers(0..2)).await;
    let seek = "/api/v1/consumer-groups/g/queues/q/seek";
    assert_eq!(server.call(seek, json!({"toEnd": true})).await["partitionsUpdated"], 1);
    assert_eq!(drained(&server, "g").await.len(), 0);
    server.delete("/api/v1/consumer-groups/g?deleteMetadata=false").await;
    assert_eq!(server.call(seek, json!({"toEnd": true})).await["partitionsUpdated"], 1);
    server.delete("/api/v1/consumer-groups/g").await;
    assert!(server.post(seek, json!({"toEnd": true})).await.is_error(404, "not_found"));
}

async fn names_of(server: &Server) -> Vec<Value> {
    let listed = server.get("/api/v1/consumer-groups?queue=q").await.json();
    listed.as_array().unwrap().iter().map(|group| group["name"].clone()).collect()
}

#[tokio::test]
async fn one_partition_can_be_sent_back() {
    let server = Server::start().await;
    ten_partitions_read(&server).await;
    let one = "/api/v1/consumer-groups/g/queues/q/partitions/p3/seek";
    let moved = server.call(one, json!({"timestamp": "1970-01-01T00:00:00Z"})).await;
    assert_eq!((&moved["cursorMovedTo"], moved.get("messagesReplayed")), (&json!(0), None));
    assert_eq!(drained(&server, "g").await, [3]);
    for body in ["{", r#"{"toEnd": false}"#, r#"{"timestamp": "soon"}"#] {
        let reply = server.send(reqwest::Method::POST, one, Some(body)).await;
        assert!(reply.is_error(400, "bad_request"), "{body}: {}", reply.text);
    }
    let reply = server.send(reqwest::Method::POST, one, None).await;
    assert_eq!((reply.status, &reply.json()["cursorMovedTo"]), (200, &json!(1)));
}

#[tokio::test]
async fn a_subscription_can_be_moved_for_partitions_not_met_yet() {
    let server = Server::start().await;
    server.push("q", "p", &[json!("old")]).await;
    assert!(server.pop("/queue/q?consumerGroup=g&subscriptionMode=new").await.is_none());
    let path = "/api/v1/consumer-groups/g/subscription";
    let answer = server.call(path, json!({"subscriptionTimestamp": "2001-01-01T00:00:00Z"})).await;
    let expected = json!({
        "success": true, "consumerGroup": "g", "newTimestamp": "2001-01-01T00:00:00Z", "rowsUpdated": 1,
    });
    assert_eq!(answer, expected);
    server.delete("/api/v1/consumer-groups/g?deleteMetadata=false").await;
    assert_eq!(drained(&server, "g").await, ["old"]);

    let nobody = "/api/v1/consumer-groups/nobody/subscription";
    let answer = server.call(nobody, json!({"subscriptionTimestamp": "2001-01-01T00:00:00Z"})).await;
    assert_eq!(answer["rowsUpdated"], 0);
    for body in [json!({}), json!({"subscriptionTimestamp": "soon"}), json!({"subscriptionTimestamp": 5})] {
        assert!(server.post(path, body.clone()).await.is_error(400, "bad_request"), "{body}");
    }
}

#[tokio::test]
async fn a_field_that_is_a_known_one_misspelt_is_refused_and_moves_nothing() {
    let server = Server::start().await;
    server.push("q", "p", &numbers(0..2)).await;
    let held = server.pop("/queue/q/partition/p?consumerGroup=g&batch=2").await.unwrap();
    let (all, one) =
        ("/api/v1/consumer-groups/g/queues/q/seek", "/api/v1/consumer-groups/g/queues/q/partitions/p/seek");
    let time = "1970-01-01T00:00:00Z";
    for body in [
        json!({"toEnd": true, "dryrun": true}),
        json!({"toEnd": true, "dry_run": true}),
        json!({"toEnd": true, "dry-run": true}),
        json!({"timestamp": time, "Create": true}),
        json!({"timestamp": time, "to_end": false}),
        json!({"timestamp": time, "toEnd": true}),
    ] {
        for path in [all, one] {
            let refused = server.post(path, body.clone()).await;
            assert!(refused.is_error(400, "bad_request"), "{body}: {} {}", refused.status, refused.text);
        }
    }
    assert_eq!(server.ack(&held.messages[1], "completed").await["success"], true, "nothing has moved");
    // Unknown fields are accepted, because clients of other releases may send them.
    server.call(all, json!({"toEnd": true, "position": null})).await;
    server.call(one, json!({"toEnd": false, "timestamp": time})).await;
}

#[tokio::test]
async fn a_group_that_reads_one_partition_by_name_is_listed() {
    let server = Server::start().await;
    server.push("q", "p", &numbers(0..2)).await;
    server.pop("/queue/q/partition/p?consumerGroup=h").await.unwrap();
    let listed = server.get("/api/v1/consumer-groups?queue=q").await.json();
    assert_eq!((&listed[0]["name"], &listed[0]["queueName"]), (&json!("h"), &json!("q")), "{listed}");
    assert!(server.get("/api/v1/consumer-groups/h").await.json()["q"].is_object());
}
