//! A client that calls everything the broker offers and never waits for the response.
//!
//! Every route of the broker's own OpenAPI document is called, and canceled after some milliseconds. The calls use a queue of their own,
//! so they lose nothing that is checked; but a connection, a lock, a lease or a transaction that such a call leaves behind would affect
//! all clients. Before each call that changes something, a patient client creates new bait: a message, a lease on it, and a dead
//! letter.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use queen_testkit::Random;
use serde_json::{Value, json};
use uuid::Uuid;

use super::caller::{Run, parse};
use crate::client::Client;

const QUEUE: &str = "bait";
const GROUP: &str = "bait-group";
/// Upper bound of the time until a call is canceled. Some are canceled before the request arrives, others
/// after the response is sent.
const PATIENCE_MS: u32 = 25;
/// Timeout of the client that creates the bait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// A method and a path, as in the document.
#[derive(Clone, Debug, PartialEq)]
struct Route {
    method: String,
    path: String,
}

/// The bait. What could not be created because of a fault has made-up ids.
#[derive(Clone, Debug, Default)]
struct Bait {
    partition: String,
    partition_id: Uuid,
    lease: Uuid,
    /// Under the lease.
    held: String,
    /// A dead letter.
    dead: String,
    redrive: Uuid,
}

pub struct HangUps {
    run: Arc<Run>,
    random: Random,
    bait: Bait,
    laid: u32,
}

impl HangUps {
    pub fn new(run: &Arc<Run>, seed: u64) -> HangUps {
        HangUps { run: Arc::clone(run), random: Random::seeded(seed), bait: Bait::default(), laid: 0 }
    }

    pub async fn work(mut self) -> Result<()> {
        let routes = self.routes().await?;
        self.run.history().hang_ups = routes.iter().map(|route| (route.words(), 0)).collect();
        let mut at = 0;
        while self.run.is_loading() {
            let route = &routes[at % routes.len()];
            at += 1;
            if route.method != "get" {
                self.lay_out().await;
            }
            self.give_up(route).await;
            self.run.pause(Duration::from_millis(self.random.below(20))).await;
        }
        Ok(())
    }

    async fn routes(&mut self) -> Result<Vec<Route>> {
        loop {
            match self.patient().get("/openapi.json").await {
                Ok(reply) if reply.status == 200 => return routes(&reply.body),
                // A fault is in the way.
                _ => self.run.pause(Duration::from_millis(100)).await,
            }
        }
    }

    fn patient(&mut self) -> Client {
        let target = self.random.below(self.run.targets.len());
        let mut client = Client::new(self.run.targets[target].clone());
        client.answer_timeout = ANSWER_TIMEOUT;
        client
    }

    async fn lay_out(&mut self) {
        self.laid += 1;
        let laid = self.laid;
        let mut bait = Bait {
            partition: laid.to_string(),
            held: format!("held-{laid}"),
            dead: format!("dead-{laid}"),
            ..Bait::default()
        };
        let mut client = self.patient();
        // This may fail because of a fault, or because the last canceled call has deleted the queue or stopped
        // delivery.
        let _ = fill(&mut client, &mut bait).await;
        self.bait = bait;
    }

    async fn give_up(&mut self, route: &Route) {
        let mut client = self.patient();
        let patience = Duration::from_millis((1 + self.random.below(PATIENCE_MS)).into());
        let (path, body) = (self.bait.path(&route.path), self.bait.body(&route.path).to_string());
        let call = async {
            match &*route.method {
                "get" => client.get(&path).await,
                "delete" => client.delete(&path).await,
                _ => client.post(&path, body.as_bytes()).await,
            }
        };
        let answered = tokio::time::timeout(patience, call).await.ok().and_then(Result::ok);
        if answered.is_none() {
            *self.run.history().hang_ups.entry(route.words()).or_default() += 1;
        }
        self.run.statuses().add("hang-up", answered.map(|reply| reply.status));
    }
}

/// Pushes two messages; the first fails and is dead-lettered, the second stays under a lease.
async fn fill(client: &mut Client, bait: &mut Bait) -> Result<()> {
    let options = json!({"leaseTime": 1, "retryLimit": 0, "dedupWindowSeconds": 0});
    post(client, "/api/v1/configure", json!({"queue": QUEUE, "options": options})).await?;
    let items = [&bait.dead, &bait.held].map(|transaction| bait.item(transaction));
    post(client, "/api/v1/push", json!({"items": items})).await?;
    let pop = format!("/api/v1/pop/queue/{QUEUE}/partition/{}?consumerGroup={GROUP}&batch=1", bait.partition);
    for transaction in [&bait.dead, &bait.held] {
        let reply = client.get(&pop).await?;
        ensure!(reply.status == 200, "{} to a pop of bait", reply.status);
        let popped: Value = parse(&reply.body)?;
        let id = |value: &Value| value.as_str().and_then(|id| id.parse::<Uuid>().ok()).context("no id");
        bait.partition_id = id(&popped["messages"][0]["partitionId"])?;
        bait.lease = id(&popped["leaseId"])?;
        if *transaction == bait.dead {
            post(client, "/api/v1/ack", bait.ack(transaction, "failed")).await?;
        }
    }
    // A redrive of a message other than the one that remains a dead letter.
    let started = post(client, "/api/v1/dlq/redrive", json!({"queue": QUEUE, "partition": "0"})).await?;
    if let Some(redrive) = started["id"].as_str() {
        bait.redrive = redrive.parse()?;
    }
    Ok(())
}

async fn post(client: &mut Client, path: &str, body: Value) -> Result<Value> {
    let reply = client.post(path, body.to_string().as_bytes()).await?;
    ensure!((200..300).contains(&reply.status), "{} to {path}", reply.status);
    parse(&reply.body)
}

impl Route {
    fn words(&self) -> String {
        format!("{} {}", self.method.to_uppercase(), self.path)
    }
}

impl Bait {
    fn item(&self, transaction: &str) -> Value {
        json!({"queue": QUEUE, "partition": self.partition, "payload": {}, "transactionId": transaction})
    }

    fn ack(&self, transaction: &str, status: &str) -> Value {
        json!({
            "transactionId": transaction, "partitionId": self.partition_id, "leaseId": self.lease,
            "status": status, "consumerGroup": GROUP,
        })
    }

    fn path(&self, path: &str) -> String {
        // In a path with a queue, a partition is a name, in others an id.
        let partition_id = self.partition_id.to_string();
        let partition = if path.contains("{queue}") { &self.partition } else { &partition_id };
        let is_of_letter = path.ends_with("/retry") || path.ends_with("{transaction}");
        let nothing = Uuid::nil().to_string();
        let filled = path
            .replace("{queue}", QUEUE)
            .replace("{group}", GROUP)
            .replace("{partition}", partition)
            .replace("{transaction}", if is_of_letter { &self.dead } else { &self.held })
            .replace("{lease}", &self.lease.to_string())
            .replace("{redrive}", &self.redrive.to_string())
            // Neither exists, unless a fault creates one.
            .replace("{wait}", &nothing)
            .replace("{operation}", &nothing)
            .replace("{name}", "bait-trace");
        match path {
            "/api/v1/pop" => format!("{filled}?namespace=bait&wait=true&timeout=1000"),
            _ if path.contains("/pop/queue/") => {
                format!("{filled}?consumerGroup={GROUP}&wait=true&timeout=1000")
            }
            // Only of our own queue.
            "/api/v1/dlq" => format!("{filled}?queue={QUEUE}"),
            _ => filled,
        }
    }

    fn body(&self, path: &str) -> Value {
        let item = self.item("more");
        let ack = self.ack(&self.held, "completed");
        match path {
            "/api/v1/push" => json!({"items": [item]}),
            "/api/v1/ack" => ack,
            "/api/v1/ack/batch" => json!({"acknowledgments": [ack], "consumerGroup": GROUP}),
            "/api/v1/transaction" => {
                let ack = json!({
                    "type": "ack", "transactionId": self.held, "partitionId": self.partition_id,
                    "consumerGroup": GROUP, "status": "completed",
                });
                let push = json!({"type": "push", "items": [item]});
                json!({"operations": [ack, push], "requiredLeases": [self.lease]})
            }
            "/api/v1/configure" => {
                json!({"queue": QUEUE, "options": {"leaseTime": 1, "retryLimit": 0, "dedupWindowSeconds": 0}})
            }
            "/api/v1/dlq/redrive" | "/internal/api/notify" => json!({"queue": QUEUE}),
            "/api/v1/traces" => json!({
                "transactionId": self.held, "partitionId": self.partition_id, "traceNames": ["bait-trace"],
                "data": {"text": "bait"},
            }),
            // Maintenance is off, and must stay off.
            _ if path.contains("/system/maintenance") => json!({"enabled": false}),
            _ if path.ends_with("/extend") => json!({"seconds": 1}),
            _ if path.ends_with("/seek") => json!({"timestamp": "1970-01-01T00:00:00Z", "create": true}),
            _ if path.ends_with("/subscription") => json!({"subscriptionTimestamp": "1970-01-01T00:00:00Z"}),
            _ => json!({}),
        }
    }
}

fn routes(document: &[u8]) -> Result<Vec<Route>> {
    let document: Value = serde_json::from_slice(document)?;
    let paths = document["paths"].as_object().context("the document lists no paths")?;
    let routes = paths.iter().flat_map(|(path, methods)| {
        let methods = methods.as_object().into_iter().flatten().map(|(method, _)| method.clone());
        methods.map(move |method| Route { method, path: path.clone() })
    });
    Ok(routes.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_of_the_document_is_called() {
        let document = json!({"paths": {
            "/api/v1/system/maintenance": {"get": {}, "post": {}},
            "/api/v1/resources/queues/{queue}": {"delete": {}},
        }});
        let found = routes(document.to_string().as_bytes()).unwrap();
        let mut found: Vec<String> = found.iter().map(Route::words).collect();
        found.sort();
        assert_eq!(
            found,
            [
                "DELETE /api/v1/resources/queues/{queue}",
                "GET /api/v1/system/maintenance",
                "POST /api/v1/system/maintenance",
            ]
        );
    }

    #[test]
    fn a_call_asks_for_bait_and_for_nothing_that_is_judged() {
        let (partition_id, lease) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let (partition, held, dead) = ("7".into(), "held-7".into(), "dead-7".into());
        let bait = Bait { partition, partition_id, lease, held, dead, redrive: Uuid::from_u128(3) };
        for (path, filled) in [
            ("/api/v1/queues/{queue}/clear", "/api/v1/queues/bait/clear".to_owned()),
            ("/api/v1/dlq", "/api/v1/dlq?queue=bait".to_owned()),
            (
                "/api/v1/messages/{partition}/{transaction}/retry",
                format!("/api/v1/messages/{partition_id}/dead-7/retry"),
            ),
            (
                "/api/v1/messages/{partition}/{transaction}/dlq",
                format!("/api/v1/messages/{partition_id}/held-7/dlq"),
            ),
            ("/api/v1/lease/{lease}/extend", format!("/api/v1/lease/{lease}/extend")),
            (
                "/api/v1/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek",
                "/api/v1/consumer-groups/bait-group/queues/bait/partitions/7/seek".to_owned(),
            ),
        ] {
            assert_eq!(bait.path(path), filled);
        }
        assert_eq!(bait.body("/api/v1/ack")["leaseId"], json!(lease));
        assert_eq!(bait.body("/api/v1/system/maintenance/pop"), json!({"enabled": false}));
    }
}
