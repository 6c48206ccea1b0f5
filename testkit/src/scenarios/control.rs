//! The control server: the HTTP interface that a scenario runner uses to set faults and read the record.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::proxy::Answer;
use super::stage::{Wanted, pairs};
use super::{Brokers, faults::Armed};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    broker: usize,
}

pub async fn serve(stream: TcpStream, brokers: Arc<Brokers>) {
    let service = service_fn(|request| {
        let brokers = brokers.clone();
        async move { answer(&brokers, request).await }
    });
    // A runner that hangs up needs no response.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(brokers: &Brokers, request: Request<Incoming>) -> Result<Answer> {
    let (status, body) = match told(brokers, request).await {
        Ok(body) => (200, body),
        Err(error) => (400, json!({"error": format!("{error:#}")})),
    };
    let answer = Response::builder().status(status).header(CONTENT_TYPE, "application/json");
    Ok(answer.body(Full::from(body.to_string()))?)
}

async fn told(brokers: &Brokers, request: Request<Incoming>) -> Result<Value> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    match (parts.method, parts.uri.path()) {
        (Method::POST, "/reset") => brokers.reset().await?,
        (Method::POST, "/faults") => {
            let fault: Armed = serde_json::from_slice(&body).context("not a fault")?;
            brokers.arm(fault).await?;
        }
        (Method::POST, "/kill") => brokers.kill(which(&body)?).await?,
        (Method::POST, "/start") => brokers.start(which(&body)?).await?,
        (Method::GET, "/record") => {
            let wanted = wanted(parts.uri.query().unwrap_or_default())?;
            return Ok(serde_json::to_value(brokers.stage.record(&wanted))?);
        }
        (method, path) => bail!("no route {method} {path}"),
    }
    Ok(json!({}))
}

fn which(body: &[u8]) -> Result<usize> {
    let which: Which = serde_json::from_slice(body).context("`broker` is required")?;
    Ok(which.broker)
}

fn wanted(query: &str) -> Result<Wanted> {
    let mut wanted = Wanted::default();
    for (key, value) in pairs(query) {
        match key.as_str() {
            "path" => wanted.paths.push(value),
            "method" => wanted.method = Some(value),
            "broker" => wanted.broker = Some(value.parse().context("a broker is a number")?),
            "clear" => wanted.clear = value == "true",
            _ => bail!("unknown query parameter {key:?}"),
        }
    }
    Ok(wanted)
}
