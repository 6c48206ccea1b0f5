//! What each right includes: messages, labels, leases, options, and the requests of the command line.

use serde_json::{Value, json};

use super::grants::{Scene, forbidden};
use super::issuer::Signer;
use super::{Holder, SECRET, claims, granted};
use crate::support::ack_of;

#[tokio::test]
async fn messages_require_the_right_to_read_or_pop() {
    let scene = Scene::new().await;
    let mine = scene.partition("mine").await;
    let paths = [
        "/api/v1/messages?queue=mine",
        "/api/v1/messages/P/live",
        "/api/v1/messages/P/live/life",
        "/api/v1/status/queues/mine/messages",
        "/api/v1/dlq?queue=mine",
        "/api/v1/dlq/shapes?queue=mine",
        "/api/v1/traces/P/live",
    ];
    for (rights, status) in [(&["push", "admin"][..], 403), (&["push", "read"], 200), (&["pop"], 200)] {
        let holder = scene.limited("read-only", rights);
        for path in paths {
            let reply = holder.get(&path.replace('P', &mine)).await;
            assert_eq!(reply.status, status, "{rights:?} {path}: {}", reply.text);
        }
        // Any right includes numbers and options.
        assert_eq!(holder.get("/api/v1/resources/queues/mine").await.status, 200);
        assert_eq!(holder.get("/api/v1/consumer-groups?queue=mine").await.status, 200);
    }
    let reader = scene.limited("admin", &["read"]);
    assert_eq!(reader.get("/api/v1/pop/queue/mine").await.status, 403, "to read is not to take");
    assert_eq!(reader.push("mine").await.status, 403);
    assert_eq!(
        scene.limited("read-only", &["push"]).get("/api/v1/dlq?queue=mine").await.json()["error"],
        "no right to read messages of queue \"mine\""
    );
}

#[tokio::test]
async fn a_limited_caller_labels_its_queues_only_with_what_leads_to_no_other() {
    let scene = Scene::new().await;
    scene
        .boss()
        .post("/api/v1/configure", json!({"queue": "theirs", "namespace": "shop", "task": "mail"}))
        .await;
    scene.boss().post("/api/v1/configure", json!({"queue": "mine.old", "namespace": "shop"})).await;
    let grants = json!([{"queues": ["mine*"], "rights": ["push", "pop", "admin"]}]);
    let token = granted("admin", grants);
    let holder = Holder::new(&scene.server, &token);
    let label = |queue: &str, namespace: Option<&str>, task: Option<&str>| json!({"queue": queue, "namespace": namespace, "task": task, "payload": 1, "options": {}});
    let options = |queue, namespace, task| {
        let mut body = label(queue, namespace, task);
        body.as_object_mut().unwrap().remove("payload");
        body
    };
    let push = |item: Value| json!({"items": [item]});
    let transaction = |mut item: Value| {
        item["type"] = json!("push");
        json!({"operations": [item]})
    };
    for (namespace, task) in [(Some("shop"), None), (None, Some("mail")), (Some("own"), Some("mail"))] {
        let reply = holder.post("/api/v1/configure", options("mine", namespace, task)).await;
        assert!(forbidden(&reply), "{}", reply.text);
        let reply = holder.post("/api/v1/push", push(label("mine.new", namespace, task))).await;
        assert!(forbidden(&reply), "{}", reply.text);
        assert!(forbidden(
            &holder.post("/api/v1/transaction", transaction(label("mine.new", namespace, task))).await
        ));
    }
    assert_eq!(scene.boss().get("/api/v1/resources/queues/mine.new").await.status, 404, "nothing was made");
    // Allowed: labels that no other queue has, the queue's own, those that follow from its name, and none at all.
    for (queue, namespace, task) in [
        ("mine", Some("own"), Some("own")),
        ("mine.other", Some("own"), None),
        ("mine.old", Some("shop"), None),
        ("mine.task", Some("mine"), Some("task")),
        ("mine", Some(""), None),
    ] {
        let reply = holder.post("/api/v1/configure", options(queue, namespace, task)).await;
        assert_eq!(reply.status, 200, "{queue}: {}", reply.text);
        assert_eq!(
            holder.post("/api/v1/push", push(label(queue, namespace, task))).await.status,
            201,
            "{queue}"
        );
    }
    assert_eq!(scene.boss().post("/api/v1/configure", options("mine", Some("shop"), None)).await.status, 200);
    // A push labels only new queues. An existing queue counts as new, because it may be deleted
    // before the push is executed.
    let items =
        json!([label("mine", Some("shop"), Some("mail")), label("mine.old", Some("other"), Some("mail"))]);
    assert!(forbidden(&holder.post("/api/v1/push", json!({"items": items})).await));
    let mut items = vec![label("mine", Some("shop"), None); 20];
    items.extend((0..20).map(|n| label(&format!("mine.{n}"), Some(&format!("own{n}")), None)));
    assert_eq!(holder.post("/api/v1/push", json!({"items": items})).await.status, 201);
    items.push(label("mine.last", Some("shop"), None));
    assert!(forbidden(&holder.post("/api/v1/push", json!({"items": items})).await));
    for path in ["/api/v1/pop?namespace=own", "/api/v1/pop?task=own", "/api/v1/pop?namespace=shop&queue=mine"]
    {
        assert!(forbidden(&holder.get(path).await), "{path}");
    }
}

#[tokio::test]
async fn an_acknowledgement_without_a_lease_settles_no_live_one() {
    let scene = Scene::new().await;
    let boss = scene.boss();
    let popped = scene.pop(&boss, "mine", 1).await;
    let message = &popped["messages"][0];
    let (mut bare, leased) = (ack_of(message, "completed"), ack_of(message, "completed"));
    bare["leaseId"] = Value::Null;
    let stranger = scene.limited("read-write", &["pop"]);
    for holder in [&boss, &stranger] {
        let reply = holder.post("/api/v1/ack", bare.clone()).await;
        assert!(forbidden(&reply) && reply.text.contains("leaseId"), "{}", reply.text);
        let batch = json!({"acknowledgments": [bare.clone()], "consumerGroup": message["consumerGroup"]});
        assert!(forbidden(&holder.post("/api/v1/ack/batch", batch).await));
    }
    let operations = |ack: &Value, leases: Value| {
        let mut ack = ack.clone();
        ack["type"] = json!("ack");
        json!({"operations": [ack], "requiredLeases": leases})
    };
    assert!(forbidden(&stranger.post("/api/v1/transaction", operations(&bare, json!([]))).await));
    assert!(forbidden(&boss.post("/api/v1/transaction", operations(&bare, json!([]))).await));
    // In another group, nothing is leased.
    let mut elsewhere = bare.clone();
    elsewhere["consumerGroup"] = json!("g");
    assert_eq!(boss.post("/api/v1/ack", elsewhere).await.status, 200);
    // Published clients name the lease once for all operations.
    let lease = json!([message["leaseId"]]);
    assert_eq!(boss.post("/api/v1/transaction", operations(&bare, lease)).await.json()["success"], true);
    assert_eq!(boss.post("/api/v1/ack", leased).await.status, 200);
    // Once the lease has ended, a late handler may commit.
    assert_eq!(boss.post("/api/v1/ack", bare).await.json()[0]["noop"], true);
}

#[tokio::test]
async fn only_an_admin_makes_a_queue_keep_less() {
    let scene = Scene::new().await;
    let token = Signer::secret(SECRET).sign(&claims("read-write"));
    let writer = Holder::new(&scene.server, &token);
    let configure = |queue: &str, options: Value| json!({"queue": queue, "options": options});
    let kept = json!({"retentionEnabled": true, "retentionSeconds": 86_400, "leaseTime": 9});
    assert_eq!(
        writer.post("/api/v1/configure", configure("fresh", kept.clone())).await.status,
        200,
        "a new one"
    );
    assert_eq!(
        writer.post("/api/v1/configure", configure("fresh", kept)).await.status,
        200,
        "the same again"
    );
    for less in [
        json!({"retentionSeconds": 10}),
        json!({"completedRetentionSeconds": 10}),
        json!({"maxWaitTimeSeconds": 10}),
        json!({"deadLetterQueue": false, "dlqAfterMaxRetries": false}),
    ] {
        let reply = writer.post("/api/v1/configure", configure("fresh", less.clone())).await;
        assert!(reply.is_error(403, "forbidden") && reply.text.contains("admin"), "{less}: {}", reply.text);
    }
    for more in [
        json!({"retentionSeconds": 90_000}),
        json!({"leaseTime": 5, "ttl": 1}),
        json!({"retentionEnabled": false}),
    ] {
        assert_eq!(writer.post("/api/v1/configure", configure("fresh", more)).await.status, 200);
    }
    let less = json!({"retentionEnabled": true, "retentionSeconds": 10});
    assert_eq!(writer.post("/api/v1/configure", configure("mine", less.clone())).await.status, 403);
    // For callers with grants the right to the queue decides, for all others the role.
    let limited = scene.limited("read-write", &["admin"]);
    assert_eq!(limited.post("/api/v1/configure", configure("mine", less.clone())).await.status, 200);
    assert_eq!(scene.boss().post("/api/v1/configure", configure("theirs", less)).await.status, 200);
}

#[tokio::test]
async fn the_command_line_asks_for_no_more_than_a_limited_caller_may_see() {
    let scene = Scene::new().await;
    let token = granted("admin", json!([{"queues": ["mine"], "rights": ["pop", "admin"]}]));
    let run = async |arguments: &[&str]| {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_queen"));
        command.env_clear().env("QUEEN_URL", &scene.server.url).env("QUEEN_TOKEN", &token);
        command.args(arguments).output().await.unwrap()
    };
    let group = "__QUEUE_MODE__";
    for arguments in [
        &["queues", "show", "mine"][..],
        &["groups", "list", "--queue", "mine"],
        &["groups", "show", group, "--queue", "mine"],
        &["seek", "mine", group, "beginning", "--dry-run"],
        &["seek", "mine", group, "end"],
        &["groups", "delete", group, "--queue", "mine", "--yes"],
        &["queues", "list"],
    ] {
        let output = run(arguments).await;
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    for arguments in
        [&["queues", "show", "theirs"][..], &["groups", "list"], &["seek", "theirs", group, "end"]]
    {
        assert_eq!(run(arguments).await.status.code(), Some(5), "{arguments:?}");
    }
}
