//! Access control: tokens, roles, grants, API keys.

mod audit;
mod grants;
mod issuer;
mod jwks;
mod keys;
mod open;
mod rights;
mod table;
mod tokens;
mod whoami;

use std::time::{SystemTime, UNIX_EPOCH};

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Reply, Server};
use issuer::Signer;

const SECRET: &str = "a secret that is only used here, and long enough";
const ISSUER: &str = "https://issuer.test";
const AUDIENCE: &str = "queen";

/// A server that takes tokens signed with `SECRET`.
async fn server() -> Server {
    Server::start_with(&["--jwt-enabled", "--jwt-secret", SECRET]).await
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64
}

/// Claims with this role, for the next minutes.
fn claims(role: &str) -> Value {
    json!({"sub": "ann", "role": role, "iat": now(), "exp": now() + 600, "iss": ISSUER, "aud": AUDIENCE})
}

fn with(mut claims: Value, name: &str, value: Value) -> Value {
    claims[name] = value;
    claims
}

/// A token that is limited to these queues.
fn granted(role: &str, grants: Value) -> String {
    Signer::secret(SECRET).sign(&with(claims(role), "queen", grants))
}

/// Sends with this in the `Authorization` header.
async fn send(
    server: &Server,
    authorization: Option<&str>,
    method: &str,
    path: &str,
    body: Option<Value>,
) -> Reply {
    let method: Method = method.parse().unwrap();
    let mut request = server.http.request(method, format!("{}{path}", server.url));
    if let Some(value) = authorization {
        request = request.header("Authorization", value);
    }
    if let Some(body) = body {
        request = request.body(body.to_string());
    }
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Reply { status, headers, text: response.text().await.unwrap() }
}

/// A caller with a token or a key.
struct Holder<'a> {
    server: &'a Server,
    authorization: String,
}

impl<'a> Holder<'a> {
    fn new(server: &'a Server, token: &str) -> Self {
        Self { server, authorization: format!("Bearer {token}") }
    }

    async fn get(&self, path: &str) -> Reply {
        send(self.server, Some(&self.authorization), "GET", path, None).await
    }

    async fn post(&self, path: &str, body: Value) -> Reply {
        send(self.server, Some(&self.authorization), "POST", path, Some(body)).await
    }

    async fn delete(&self, path: &str) -> Reply {
        send(self.server, Some(&self.authorization), "DELETE", path, None).await
    }

    async fn push(&self, queue: &str) -> Reply {
        self.post("/api/v1/push", json!({"items": [{"queue": queue, "payload": 1}]})).await
    }
}
