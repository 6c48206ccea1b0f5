//! Callers that are limited to some queues: what they may do there, and that they learn nothing about other queues.

use serde_json::{Value, json};

use super::issuer::Signer;
use super::{Holder, SECRET, claims, granted, server, with};
use crate::support::{Reply, ack_of};

pub fn forbidden(reply: &Reply) -> bool {
    reply.is_error(403, "forbidden") && !reply.text.contains("theirs")
}

/// Two queues with a message and a dead letter each, and a caller that may only use one of them.
pub struct Scene {
    pub server: crate::support::Server,
    boss: String,
}

impl Scene {
    pub async fn new() -> Self {
        let server = server().await;
        let boss = Signer::secret(SECRET).sign(&claims("admin"));
        let scene = Self { server, boss };
        for queue in ["mine", "theirs"] {
            let boss = scene.boss();
            let items = json!([
                {"queue": queue, "partition": "p", "payload": "dead", "transactionId": "dead"},
                {"queue": queue, "partition": "p", "payload": queue, "transactionId": "live"},
            ]);
            assert_eq!(boss.post("/api/v1/push", json!({ "items": items })).await.status, 201);
            let dead = &scene.pop(&boss, queue, 1).await["messages"][0];
            assert_eq!(boss.post("/api/v1/ack", ack_of(dead, "dlq")).await.json()[0]["success"], true);
        }
        scene
    }

    pub fn boss(&self) -> Holder<'_> {
        Holder::new(&self.server, &self.boss)
    }

    pub fn limited(&self, role: &str, rights: &[&str]) -> Holder<'_> {
        Holder::new(&self.server, &granted(role, json!([{"queues": ["mine"], "rights": rights}])))
    }

    pub async fn pop(&self, holder: &Holder<'_>, queue: &str, batch: usize) -> Value {
        let reply = holder.get(&format!("/api/v1/pop/queue/{queue}?batch={batch}")).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()
    }

    pub async fn partition(&self, queue: &str) -> String {
        let detail = self.boss().get(&format!("/api/v1/resources/queues/{queue}")).await.json();
        detail["partitions"][0]["id"].as_str().unwrap().to_owned()
    }
}

#[tokio::test]
async fn a_push_needs_the_right_for_every_queue_and_is_refused_as_a_whole() {
    let scene = Scene::new().await;
    let holder = scene.limited("admin", &["push"]);
    assert_eq!(holder.push("mine").await.status, 201);
    let reply = holder.push("other").await;
    assert!(reply.is_error(403, "forbidden"));
    assert_eq!(reply.json()["error"], "no right to push to queue \"other\"");
    let both = json!({"items": [{"queue": "mine", "payload": "half"}, {"queue": "other", "payload": 1}]});
    assert_eq!(holder.post("/api/v1/push", both).await.status, 403);
    let stored = scene.boss().get("/api/v1/messages?queue=mine").await.text;
    assert!(!stored.contains("half"), "nothing was done: {stored}");
    assert_eq!(scene.boss().get("/api/v1/resources/queues/other").await.status, 404);
    // The role stays the upper bound, and other rights do not help.
    assert_eq!(
        scene.limited("read-only", &["push"]).push("mine").await.json()["error"],
        "Insufficient permissions: the role is read-only, this needs read-write"
    );
    assert_eq!(scene.limited("admin", &["pop", "admin"]).push("mine").await.status, 403);
    assert_eq!(Holder::new(&scene.server, &granted("admin", json!([]))).push("mine").await.status, 403);
}

#[tokio::test]
async fn acks_leases_and_traces_belong_to_the_queue_of_their_partition() {
    let scene = Scene::new().await;
    let (boss, holder) = (scene.boss(), scene.limited("read-write", &["pop"]));
    assert!(forbidden(&scene.limited("read-write", &["push", "admin"]).get("/api/v1/pop/queue/mine").await));
    assert_eq!(holder.get("/api/v1/pop/queue/theirs").await.status, 403);
    assert_eq!(holder.get("/api/v1/pop/queue/theirs/partition/p").await.status, 403);
    assert_eq!(holder.get("/api/v1/pop?namespace=mine").await.status, 403);
    assert_eq!(holder.get("/api/v1/pop/queue/").await.status, 403);
    let (theirs, mine) = (scene.pop(&boss, "theirs", 1).await, scene.pop(&holder, "mine", 1).await);
    let (their, my) = (&theirs["messages"][0], &mine["messages"][0]);
    let lease = |popped: &Value| format!("/api/v1/lease/{}/extend", popped["leaseId"].as_str().unwrap());
    let trace = |message: &Value| json!({"transactionId": message["transactionId"], "partitionId": message["partitionId"], "data": {}});

    assert!(forbidden(&holder.post("/api/v1/ack", ack_of(their, "completed")).await));
    let batch = json!({"acknowledgments": [ack_of(my, "completed"), ack_of(their, "completed")]});
    assert!(forbidden(&holder.post("/api/v1/ack/batch", batch).await));
    assert!(forbidden(&holder.post(&lease(&theirs), json!({})).await));
    // Our lease, with the number of their partition added by hand.
    let (ours, number) = (mine["leaseId"].as_str().unwrap(), theirs["leaseId"].as_str().unwrap());
    let number = number.split('.').nth(1).unwrap();
    assert!(forbidden(&holder.post(&format!("/api/v1/lease/{ours}.{number}/extend"), json!({})).await));
    assert!(forbidden(&holder.post("/api/v1/traces", trace(their)).await));
    let nobody = json!({"transactionId": "x", "partitionId": "00000000-0000-0000-0000-000000000001"});
    // A partition that does not exist belongs to no other queue: the response says that there is nothing.
    let reply = holder.post("/api/v1/ack", nobody.clone()).await;
    assert_eq!((reply.status, &reply.json()[0]["success"]), (200, &json!(false)), "{}", reply.text);
    let gone = format!("/api/v1/lease/{}.999999999/extend", mine["leaseId"].as_str().unwrap());
    assert_ne!(holder.post(&gone, json!({})).await.status, 403);
    let mut traced = nobody;
    traced["data"] = json!({});
    assert!(forbidden(&holder.post("/api/v1/traces", traced).await));

    // Moving a message between queues in a transaction needs both rights.
    let operations = |ack: &Value, queue: &str| {
        let mut ack = ack_of(ack, "completed");
        ack["type"] = json!("ack");
        json!({"operations": [{"type": "push", "queue": queue, "payload": "moved"}, ack]})
    };
    let mover = granted(
        "read-write",
        json!([
            {"queues": ["mine"], "rights": ["pop"]}, {"queues": ["next.*"], "rights": ["push"]},
        ]),
    );
    let mover = Holder::new(&scene.server, &mover);
    assert!(forbidden(&mover.post("/api/v1/transaction", operations(their, "next.1")).await));
    assert_eq!(mover.post("/api/v1/transaction", operations(my, "mine")).await.status, 403);
    assert!(forbidden(&holder.post("/api/v1/transaction", operations(my, "next.1")).await));
    let mut foreign_lease = operations(my, "next.1");
    foreign_lease["requiredLeases"] = json!([theirs["leaseId"]]);
    assert!(forbidden(&mover.post("/api/v1/transaction", foreign_lease).await));

    // None of these calls had an effect: both leases are as they were.
    assert_eq!(holder.post(&lease(&mine), json!({})).await.json()["success"], true);
    assert_eq!(holder.post("/api/v1/traces", trace(my)).await.status, 201);
    assert_eq!(boss.post("/api/v1/ack", ack_of(their, "completed")).await.json()[0]["noop"], false);
    assert_eq!(mover.post("/api/v1/transaction", operations(my, "next.1")).await.json()["success"], true);
    assert_eq!(boss.get("/api/v1/pop/queue/next.1").await.status, 200);
}

#[tokio::test]
async fn changes_need_the_admin_right_and_the_role() {
    let scene = Scene::new().await;
    let (mine, theirs) = (scene.partition("mine").await, scene.partition("theirs").await);
    let holder = scene.limited("admin", &["admin"]);
    let others = [scene.limited("admin", &["push", "pop"]), scene.limited("read-only", &["admin"])];
    let change = json!({"subscriptionTimestamp": "2026-01-01T00:00:00Z"});
    let seek = json!({"toEnd": true, "create": true});
    // Q stands for the queue, P for the partition. The order is such that each call still finds something.
    let calls: [(&str, &str, Option<Value>); 9] = [
        ("POST", "/api/v1/configure", Some(json!({"queue": "Q", "options": {}}))),
        ("POST", "/api/v1/consumer-groups/g/queues/Q/seek", Some(seek.clone())),
        ("POST", "/api/v1/consumer-groups/g/queues/Q/partitions/p/seek", Some(json!({}))),
        ("POST", "/api/v1/messages/P/live/dlq", Some(json!({}))),
        ("POST", "/api/v1/messages/P/dead/retry", None),
        ("DELETE", "/api/v1/messages/P/dead", None),
        ("DELETE", "/api/v1/consumer-groups/g/queues/Q", None),
        ("DELETE", "/api/v1/queues/Q/clear", None),
        ("DELETE", "/api/v1/resources/queues/Q", None),
    ];
    for (method, path, body) in calls {
        let call = async |holder: &Holder<'_>, queue: &str, partition: &str| {
            let path = path.replace('Q', queue).replace('P', partition);
            let body = body
                .as_ref()
                .map(|body| serde_json::from_str(&body.to_string().replace('Q', queue)).unwrap());
            super::send(&scene.server, Some(&holder.authorization), method, &path, body).await
        };
        for other in &others {
            assert!(forbidden(&call(other, "mine", &mine).await), "{method} {path}");
        }
        assert_eq!(call(&holder, "theirs", &theirs).await.status, 403, "{method} {path}");
        let done = call(&holder, "mine", &mine).await;
        assert_eq!(done.status, 200, "{method} {path}: {}", done.text);
    }
    // Calls about all queues are forbidden for these callers, whatever their rights on one queue.
    for (method, path, body) in [
        ("DELETE", "/api/v1/consumer-groups/g", None),
        ("POST", "/api/v1/consumer-groups/g/subscription", Some(change)),
        ("DELETE", "/api/v1/resources/queues/", None),
        ("POST", "/api/v1/system/maintenance", Some(json!({"enabled": true}))),
        ("POST", "/internal/api/notify", Some(json!({"queue": "mine"}))),
        ("POST", "/api/v1/stats/refresh", None),
    ] {
        let reply = super::send(&scene.server, Some(&holder.authorization), method, path, body).await;
        assert!(reply.is_error(403, "forbidden"), "{method} {path}: {}", reply.text);
    }
}

#[tokio::test]
async fn a_redrive_needs_both_its_queues() {
    let scene = Scene::new().await;
    let holder = scene.limited("read-write", &["admin"]);
    let ask =
        |queue: &str, target: Option<&str>| json!({"queue": queue, "targetQueue": target, "perSecond": 1});
    let start = "/api/v1/dlq/redrive";
    assert_eq!(holder.post(start, ask("theirs", None)).await.status, 403);
    assert_eq!(holder.post(start, ask("mine", Some("theirs"))).await.status, 403);
    assert!(forbidden(&scene.limited("read-write", &["pop"]).post(start, ask("mine", None)).await));
    let (theirs, mine) =
        (scene.boss().post(start, ask("theirs", None)).await, holder.post(start, ask("mine", None)).await);
    assert_eq!((theirs.status, mine.status), (202, 202), "{}", mine.text);
    for (redrive, status) in [(theirs.json(), 403), (mine.json(), 200)] {
        let path = format!("/api/v1/dlq/redrives/{}", redrive["id"].as_str().unwrap());
        for reply in [holder.get(&path).await, holder.delete(&path).await] {
            assert_eq!((reply.status, forbidden(&reply)), (status, status == 403), "{}", reply.text);
        }
    }
    let across = scene.boss().post(start, ask("mine", Some("theirs"))).await.json();
    assert!(forbidden(
        &holder.get(&format!("/api/v1/dlq/redrives/{}", across["id"].as_str().unwrap())).await
    ));
    assert_eq!(holder.get("/api/v1/dlq/redrives/00000000-0000-0000-0000-000000000001").await.status, 404);
    assert_eq!(holder.get("/api/v1/dlq/redrives").await.status, 403);
}

#[tokio::test]
async fn a_limited_reader_sees_its_queues_and_not_a_word_about_others() {
    let scene = Scene::new().await;
    let (mine, theirs) = (scene.partition("mine").await, scene.partition("theirs").await);
    // Names that a careless pattern would match as one of ours.
    for queue in ["mine_2", "minex2", "m%"] {
        assert_eq!(scene.boss().push(queue).await.status, 201);
    }
    let token = granted("read-only", json!([{"queues": ["mine", "mine_*", "a\0"], "rights": ["pop"]}]));
    let holder = Holder::new(&scene.server, &token);
    for path in [
        "/api/v1/resources/queues/Q",
        "/api/v1/resources/queues/Q/depth",
        "/api/v1/resources/partitions?queue=Q",
        "/api/v1/status/queues/Q",
        "/api/v1/status/queues/Q/messages",
        "/api/v1/messages?queue=Q",
        "/api/v1/dlq?queue=Q",
        "/api/v1/dlq/shapes?queue=Q",
        "/api/v1/consumer-groups?queue=Q",
        "/api/v1/consumer-groups/__QUEUE_MODE__?queue=Q",
        "/api/v1/operations?queue=Q",
        "/api/v1/analytics/queue-lag?queue=Q",
        "/api/v1/analytics/queue-ops?queue=Q",
        "/api/v1/messages/P/live",
        "/api/v1/messages/P/live/life",
        "/api/v1/traces/P/live",
    ] {
        let own = holder.get(&path.replace('Q', "mine").replace('P', &mine)).await;
        assert_eq!(own.status, 200, "{path}: {}", own.text);
        assert!(!own.text.contains("theirs"), "{path}: {}", own.text);
        let other = holder.get(&path.replace('Q', "theirs").replace('P', &theirs)).await;
        assert!(other.is_error(403, "forbidden"), "{path}: {}", other.text);
    }
    // With two `queue` parameters the first counts, for the check as for the handler. No `queue`, or
    // an empty one, would mean all.
    for path in [
        "/api/v1/messages",
        "/api/v1/dlq",
        "/api/v1/dlq/shapes",
        "/api/v1/consumer-groups",
        "/api/v1/consumer-groups/__QUEUE_MODE__",
        "/api/v1/resources/partitions",
        "/api/v1/operations",
    ] {
        assert_eq!(holder.get(&format!("{path}?queue=theirs&queue=mine")).await.status, 403, "{path}");
        let first = holder.get(&format!("{path}?queue=mine&queue=theirs")).await;
        assert!(first.status == 200 && !first.text.contains("theirs"), "{path}");
        for query in ["", "?queue=", "?Queue=mine", "?namespace=mine"] {
            assert!(forbidden(&holder.get(&format!("{path}{query}")).await), "{path}{query}");
        }
    }
    for path in
        ["/api/v1/resources/queues", "/api/v1/status/queues", "/api/v1/resources/queues?search=theirs"]
    {
        let listed = holder.get(path).await.json();
        let mut names: Vec<&str> = listed["queues"]
            .as_array()
            .unwrap()
            .iter()
            .map(|queue| queue["name"].as_str().unwrap())
            .collect();
        names.sort_unstable();
        let expected: &[&str] = if path.contains("search") { &[] } else { &["mine", "mine_2"] };
        assert_eq!(names, expected, "{path}");
    }
    for path in [
        "/api/v1/resources/overview",
        "/api/v1/resources/namespaces",
        "/api/v1/resources/tasks",
        "/api/v1/status",
        "/api/v1/status/analytics",
        "/api/v1/status/buffers",
        "/api/v1/consumer-groups/lagging",
        "/api/v1/operations/stats",
        "/api/v1/traces/names",
        "/api/v1/traces/by-name/x",
        "/api/v1/analytics/system-metrics",
        "/api/v1/analytics/worker-metrics",
        "/api/v1/analytics/queue-parked-replicas",
        "/api/v1/analytics/retention",
        "/api/v1/analytics/postgres-stats",
        "/api/v1/system/doctor",
        "/api/v1/dlq/redrives",
        "/api/v1/system/settings",
    ] {
        assert!(forbidden(&holder.get(path).await), "{path}");
    }
    let boss_of_some = scene.limited("admin", &["admin"]);
    assert!(forbidden(&boss_of_some.get("/api/v1/system/settings").await), "they are about all queues");
    for path in ["/openapi.json", "/docs/", "/health", "/api/v1/whoami"] {
        assert_eq!(holder.get(path).await.status, 200, "{path}");
    }
    // Names are compared after decoding.
    assert_eq!(holder.get("/api/v1/resources/queues/%6Dine").await.status, 200);
    assert_eq!(holder.get("/api/v1/resources/queues/mine%2Ftheirs").await.status, 403);
    assert_eq!(holder.get("/api/v1/messages/nonsense/live").await.status, 400);
}

#[tokio::test]
async fn the_life_of_a_message_does_not_tell_where_its_children_are() {
    let scene = Scene::new().await;
    let boss = scene.boss();
    let traced = json!([{"queue": "mine", "partition": "t", "payload": 1, "transactionId": "traced", "traceId": uuid::Uuid::new_v4()}]);
    assert_eq!(boss.post("/api/v1/push", json!({ "items": traced })).await.status, 201);
    let popped = boss.get("/api/v1/pop/queue/mine/partition/t").await.json();
    let mut ack = ack_of(&popped["messages"][0], "completed");
    let partition = ack["partitionId"].as_str().unwrap().to_owned();
    ack["type"] = json!("ack");
    let operations = json!([ack, {"type": "push", "queue": "theirs", "payload": 1}]);
    let moved = boss.post("/api/v1/transaction", json!({ "operations": operations })).await;
    assert_eq!(moved.json()["success"], true, "{}", moved.text);
    let path = format!("/api/v1/messages/{partition}/traced/life");
    let child = async |holder: &Holder<'_>| {
        crate::support::eventually("there is a child", async || {
            let reply = holder.get(&path).await;
            assert_eq!(reply.status, 200, "{}", reply.text);
            let life = reply.json();
            let child =
                life["events"].as_array().unwrap().iter().find(|event| event["event"] == "child").cloned();
            child.map(|child| (child, reply.text.contains("theirs")))
        })
        .await
    };
    let (child_of_boss, named) = child(&boss).await;
    assert!(named && child_of_boss["message"]["queue"] == "theirs", "{child_of_boss}");
    let (blank, named) = child(&scene.limited("read-only", &["pop"])).await;
    assert!(!named && blank["message"].is_null() && blank["transaction"].is_null(), "{blank}");
}

#[tokio::test]
async fn a_deferred_operation_belongs_to_its_queue() {
    use crate::support::{EASILY_STRAINED, Server, Strain};

    let flags = [
        &EASILY_STRAINED[..],
        &["--jwt-enabled", "--jwt-secret", SECRET, "--jwt-skip-paths", "/api/v1/push"],
    ]
    .concat();
    let server = Server::start_with(&flags).await;
    let strain = Strain::on(&server.database, &[&server.url]).await;
    let boss = Signer::secret(SECRET).sign(&claims("admin"));
    let boss = Holder::new(&server, &boss);
    // The first operation of a partition is soon processed and cannot be cancelled; those after it can.
    assert_eq!(boss.push("theirs").await.status, 202);
    let deferred = boss.push("theirs").await;
    assert_eq!(deferred.status, 202, "{}", deferred.text);
    let path = deferred.headers["location"].to_str().unwrap().to_owned();
    let mine = granted("admin", json!([{"queues": ["mine"], "rights": ["push", "pop", "admin"]}]));
    let theirs = granted("admin", json!([{"queues": ["theirs"], "rights": ["push"]}]));
    let (mine, theirs) = (Holder::new(&server, &mine), Holder::new(&server, &theirs));
    assert!(forbidden(&mine.get(&path).await) && forbidden(&mine.delete(&path).await));
    assert_eq!(theirs.get(&path).await.status, 200);
    for holder in [&mine, &theirs] {
        assert_eq!(holder.delete(&path).await.status, 403);
        assert_eq!(holder.post(&format!("{path}/retry"), json!({})).await.status, 403);
    }
    assert_eq!(boss.delete(&path).await.status, 200);
    drop(strain);
}

#[tokio::test]
async fn dead_letters_are_thrown_away_by_admins_of_their_queue() {
    let scene = Scene::new().await;
    let purge = "/api/v1/dlq?queue=mine";
    assert_eq!(scene.limited("admin", &["push", "pop"]).delete(purge).await.status, 403);
    assert_eq!(scene.limited("read-write", &["admin"]).delete(purge).await.status, 403);
    let holder = scene.limited("admin", &["admin"]);
    for path in ["/api/v1/dlq", "/api/v1/dlq?queue=", "/api/v1/dlq?consumerGroup=g"] {
        assert!(forbidden(&holder.delete(path).await), "{path}");
    }
    assert!(holder.delete("/api/v1/dlq?queue=theirs").await.is_error(403, "forbidden"));
    assert_eq!(holder.delete(purge).await.json()["purged"], 1);
    assert_eq!(scene.boss().get("/api/v1/dlq").await.json()["total"], 1);
}

#[tokio::test]
async fn a_wait_is_ended_only_by_whom_it_belongs_to() {
    let scene = Scene::new().await;
    let id = uuid::Uuid::new_v4();
    let bob = with(claims("read-write"), "queen", json!([{"queues": ["mine"], "rights": ["pop"]}]));
    let bob = Signer::secret(SECRET).sign(&with(bob, "sub", json!("bob")));
    let (ann, bob) = (scene.limited("read-write", &["pop"]), Holder::new(&scene.server, &bob));
    let path = format!("/api/v1/pop/queue/mine/partition/empty?wait=true&timeout=30000&waitId={id}");
    let end = format!("/api/v1/pop/waits/{id}");
    let ended = async {
        crate::support::eventually("it waits", async || {
            let metrics = scene.boss().get("/metrics/prometheus").await.text;
            metrics.contains("queen_parked_pops 1\n").then_some(())
        })
        .await;
        assert_eq!(bob.delete(&end).await.json()["ended"], false);
        assert_eq!(ann.delete(&end).await.json()["ended"], true);
    };
    let (reply, ()) = tokio::join!(ann.get(&path), ended);
    assert_eq!(reply.status, 204);
}
