//! An HTTP proxy in front of a broker, so that faults apply to requests and not to bytes.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION,
    RETRY_AFTER, TRANSFER_ENCODING,
};
use hyper::http::request::Parts;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::deferral::{self, Lane};
use super::door::Door;
use super::faults::{Fault, Form, RetryAfter, State};
use super::stage::Stage;

const OPERATIONS: &str = "/api/v1/operations/";
const OPERATION_ID: HeaderName = HeaderName::from_static("x-queen-operation-id");

pub type Answer = Response<Full<Bytes>>;

/// Closed until it is opened, and without a broker until it is given one.
#[derive(Debug)]
pub struct FaultProxy {
    door: Door,
    inside: Arc<Inside>,
}

#[derive(Debug)]
struct Inside {
    number: usize,
    stage: Arc<Stage>,
    upstream: Mutex<Option<SocketAddr>>,
}

impl FaultProxy {
    pub fn new(number: usize, stage: Arc<Stage>) -> Result<Self> {
        let inside = Inside { number, stage, upstream: Mutex::default() };
        Ok(Self { door: Door::new()?, inside: inside.into() })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.door.address())
    }

    pub fn stand_before(&self, upstream: SocketAddr) {
        *self.inside.upstream.lock().expect("never poisoned") = Some(upstream);
    }

    pub async fn open(&self) -> Result<()> {
        let inside = self.inside.clone();
        self.door.open(move |stream| serve(stream, inside.clone())).await
    }

    /// Closes all connections and refuses new ones.
    pub async fn close(&self) -> Result<()> {
        self.door.close().await
    }

    /// Queries the broker directly, past all faults.
    pub async fn get(&self, path: &str) -> Result<StatusCode> {
        let request = Request::get(path).header(HOST, "localhost").body(())?;
        Ok(self.inside.forward(request.into_parts().0, Bytes::new()).await?.status())
    }
}

async fn serve(stream: TcpStream, inside: Arc<Inside>) {
    let service = service_fn(|request| {
        let inside = inside.clone();
        async move { inside.handle(request).await }
    });
    // An error of the service closes the connection without a response, which is how faults do it.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

impl Inside {
    async fn handle(&self, request: Request<Incoming>) -> Result<Answer> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let number = self.stage.came(self.number, &parts, &body);
        let answer = self.answer(parts, body).await?;
        self.stage.answered(number, answer.status().as_u16());
        Ok(answer)
    }

    async fn answer(&self, parts: Parts, body: Bytes) -> Result<Answer> {
        match self.stage.take(self.number, parts.method.as_str(), parts.uri.path()) {
            None => {}
            Some(Fault::Answer { status, retry_after, body }) => return written(status, retry_after, body),
            Some(Fault::CloseBeforeForward) => bail!("closed before forwarding"),
            Some(Fault::CloseAfterAnswer) => {
                self.forward(parts, body).await?;
                bail!("closed instead of a response")
            }
            Some(Fault::BlackHole) => {
                self.stage.is_reset().await;
                bail!("held until the reset")
            }
            Some(Fault::Delay { ms }) => tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(ms)) => {}
                () = self.stage.is_reset() => bail!("held until the reset"),
            },
            Some(Fault::Accepted { states, form }) => {
                let answer = self.forward(parts, body.clone()).await?;
                return self.accepted(&body, answer, &states, form).await;
            }
            Some(Fault::Refuse) => bail!("refuse applies to a port, not to a request"),
        }
        let asked = parts.uri.path().strip_prefix(OPERATIONS).and_then(|id| Uuid::try_parse(id).ok());
        match asked.and_then(|id| self.stage.operation(id)) {
            Some(operation) => written(200, None, Some(operation)),
            None => self.forward(parts, body).await,
        }
    }

    /// Executes the request at once and reports it as deferred.
    async fn accepted(&self, asked: &[u8], answer: Answer, states: &[State], form: Form) -> Result<Answer> {
        if !answer.status().is_success() {
            return Ok(answer);
        }
        let (mut parts, body) = answer.into_parts();
        let results: Vec<Value> = serde_json::from_slice(&body.collect().await?.to_bytes())?;
        let asked: Value = serde_json::from_slice(asked)?;
        let kind = if asked["items"].is_array() { "PUSH" } else { "ACK_BATCH" };
        let lanes = deferral::lanes(&asked, &results);
        let defer = |lane: Lane| (self.stage.defer(kind, states.to_vec(), lane.results(&results)), lane);
        let operations: Vec<(Uuid, Lane)> = lanes.into_iter().map(defer).collect();
        let (first, _) = operations.first().context("the request is empty")?;
        parts.status = StatusCode::ACCEPTED;
        parts.headers.insert(LOCATION, HeaderValue::try_from(format!("{OPERATIONS}{first}"))?);
        parts.headers.insert(OPERATION_ID, HeaderValue::try_from(first.to_string())?);
        let body = deferral::body(form, &results, &operations).to_string();
        Ok(Response::from_parts(parts, Full::from(body)))
    }

    /// Uses a connection of its own, which ends with this future, so that the broker sees a client hang up.
    async fn forward(&self, mut parts: Parts, body: Bytes) -> Result<Answer> {
        let upstream = *self.upstream.lock().expect("never poisoned");
        let stream = TcpStream::connect(upstream.context("no broker is set")?).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.context("not HTTP")?;
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        strip(&mut parts.headers);
        let response = sender.send_request(Request::from_parts(parts, Full::new(body))).await?;
        let (mut parts, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        strip(&mut parts.headers);
        Ok(Response::from_parts(parts, Full::new(body)))
    }
}

/// Headers of one hop, or of a body that is sent differently.
fn strip(headers: &mut HeaderMap) {
    for name in [CONNECTION, TRANSFER_ENCODING, CONTENT_LENGTH, EXPECT] {
        headers.remove(name);
    }
}

fn written(status: u16, retry_after: Option<RetryAfter>, body: Option<Value>) -> Result<Answer> {
    let body = body.unwrap_or_else(|| json!({"error": "made up by the test", "code": code(status)}));
    let mut answer = Response::builder().status(status);
    match retry_after {
        Some(RetryAfter::Seconds(seconds)) => answer = answer.header(RETRY_AFTER, seconds),
        Some(RetryAfter::DateIn(seconds)) => answer = answer.header(RETRY_AFTER, date_in(seconds)?),
        None => {}
    }
    match status {
        204 => Ok(answer.body(Full::default())?),
        _ => Ok(answer.header(CONTENT_TYPE, "application/json").body(Full::from(body.to_string()))?),
    }
}

fn date_in(seconds: u64) -> Result<String> {
    let at = jiff::Timestamp::try_from(SystemTime::now() + Duration::from_secs(seconds))?;
    Ok(at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string())
}

/// The error code that a broker uses for this status.
fn code(status: u16) -> &'static str {
    match status {
        400 => "bad_request",
        401 => "unauthorized",
        403 => "forbidden",
        404 => "not_found",
        408 => "request_timeout",
        409 => "conflict",
        413 => "payload_too_large",
        429 => "rate_limited",
        503 => "unavailable",
        504 => "timeout",
        _ => "internal",
    }
}
