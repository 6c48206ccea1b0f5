//! A client that asks for everything the broker offers and never waits for the answer.
//!
//! Every route of the broker's own OpenAPI document is called, and given up after some milliseconds. What it asks for
//! concerns a queue of its own, so nothing that is judged is lost by it; but a connection, a lock, a lease or a
//! transaction that such a call leaves behind hits everybody.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::caller::Run;
use crate::client::Client;
use crate::wire::Random;

const QUEUE: &str = "bait";
const GROUP: &str = "bait-group";
const TRANSACTION: &str = "bait-1";
/// From before the request has arrived to after the answer has left.
const PATIENCE_MS: u32 = 25;
/// They concern all queues, or the brokers themselves.
const SPARED: [&str; 3] =
    ["/api/v1/system/maintenance", "/api/v1/system/maintenance/pop", "/internal/api/notify"];

/// A request that is never answered.
#[derive(Clone, Debug)]
struct Route {
    method: String,
    path: String,
}

pub struct HangUps {
    run: Arc<Run>,
    random: Random,
}

impl HangUps {
    pub fn new(run: &Arc<Run>, seed: u64) -> HangUps {
        HangUps { run: Arc::clone(run), random: Random::seeded(seed) }
    }

    pub async fn work(mut self) -> Result<()> {
        let routes = self.routes().await?;
        let mut at = 0;
        while self.run.is_loading() {
            let route = &routes[at % routes.len()];
            at += 1;
            self.give_up(route).await;
            self.run.pause(Duration::from_millis(self.random.below(20).into())).await;
        }
        Ok(())
    }

    async fn routes(&mut self) -> Result<Vec<Route>> {
        loop {
            let mut client = Client::new(self.run.targets[0].clone());
            client.answer_timeout = Duration::from_secs(2);
            match client.get("/openapi.json").await {
                Ok(reply) if reply.status == 200 => return routes(&reply.body),
                // A fault came first.
                _ => self.run.pause(Duration::from_millis(100)).await,
            }
        }
    }

    async fn give_up(&mut self, route: &Route) {
        let target = self.random.below(self.run.targets.len() as u32) as usize;
        let mut client = Client::new(self.run.targets[target].clone());
        let patience = Duration::from_millis((1 + self.random.below(PATIENCE_MS)).into());
        let body = body(&route.path).to_string();
        let call = async {
            match &*route.method {
                "get" => client.get(&route.path).await,
                "delete" => client.delete(&route.path).await,
                _ => client.post(&route.path, body.as_bytes()).await,
            }
        };
        let answered = tokio::time::timeout(patience, call).await.ok().and_then(Result::ok);
        self.run.statuses().add("hang-up", answered.map(|reply| reply.status));
    }
}

fn routes(document: &[u8]) -> Result<Vec<Route>> {
    let document: Value = serde_json::from_slice(document)?;
    let paths = document["paths"].as_object().context("the document lists no paths")?;
    let routes = paths.iter().filter(|(path, _)| !SPARED.contains(&&***path)).flat_map(|(path, methods)| {
        let methods = methods.as_object().into_iter().flatten().map(|(method, _)| method.clone());
        methods.map(move |method| Route { method, path: filled(path) })
    });
    Ok(routes.collect())
}

/// The path of something that exists, where that is known beforehand.
fn filled(path: &str) -> String {
    let mut filled =
        path.replace("{queue}", QUEUE).replace("{group}", GROUP).replace("{transaction}", TRANSACTION);
    let id = "00000000-0000-7000-8000-000000000000";
    // In a path with a queue a partition is named, in others it is an id.
    filled = filled.replace("{partition}", if path.contains("{queue}") { "0" } else { id });
    for name in ["{lease}", "{wait}", "{operation}", "{redrive}"] {
        filled = filled.replace(name, id);
    }
    filled = filled.replace("{name}", "bait-trace");
    match path {
        "/api/v1/pop" => format!("{filled}?namespace=bait&wait=true&timeout=1000"),
        _ if path.contains("/pop/queue/") => format!("{filled}?consumerGroup={GROUP}&wait=true&timeout=1000"),
        // Only of our own queue.
        "/api/v1/dlq" => format!("{filled}?queue={QUEUE}"),
        _ => filled,
    }
}

fn body(path: &str) -> Value {
    let item = json!({"queue": QUEUE, "partition": "0", "payload": {}, "transactionId": TRANSACTION});
    match path {
        "/api/v1/push" => json!({"items": [item]}),
        "/api/v1/transaction" => json!({"operations": [{"type": "push", "items": [item]}]}),
        "/api/v1/configure" => {
            json!({"queue": QUEUE, "options": {"leaseTime": 1, "retryLimit": 0, "dedupWindowSeconds": 0}})
        }
        "/api/v1/dlq/redrive" => json!({"queue": QUEUE}),
        _ if path.ends_with("/seek") => json!({"timestamp": "1970-01-01T00:00:00Z", "create": true}),
        _ if path.ends_with("/subscription") => json!({"subscriptionTimestamp": "1970-01-01T00:00:00Z"}),
        _ => json!({}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_but_the_spared_is_called_and_none_touches_what_is_judged() {
        let document = json!({"paths": {
            "/api/v1/system/maintenance": {"post": {}},
            "/api/v1/resources/queues/{queue}": {"get": {}, "delete": {}},
            "/api/v1/messages/{partition}/{transaction}/retry": {"post": {}},
            "/api/v1/dlq": {"delete": {}},
        }});
        let mut found: Vec<String> = routes(document.to_string().as_bytes())
            .unwrap()
            .iter()
            .map(|route| format!("{} {}", route.method, route.path))
            .collect();
        found.sort();
        assert_eq!(
            found,
            [
                "delete /api/v1/dlq?queue=bait",
                "delete /api/v1/resources/queues/bait",
                "get /api/v1/resources/queues/bait",
                "post /api/v1/messages/00000000-0000-7000-8000-000000000000/bait-1/retry",
            ]
        );
    }
}
