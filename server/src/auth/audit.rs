//! The audit log: a line, with target `audit`, for every request that changes a queue or the broker, for every refusal, and
//! for API keys that come, are first used, and end. It records names, addresses and outcomes; never a token or a payload.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{Method, Uri};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use queen_protocol::OPTIONS;
use serde_json::{Map, Value};
use tracing::info;

use super::access::{Access, Scope};
use super::refusal::{Denial, Denied};
use super::{Identity, Kind, Peer};
use crate::app::App;
use crate::http::request::{Query, decoded};
use crate::routes;

const TARGET: &str = "audit";

/// Clients decide how many refusals there are. Those beyond this limit are counted, and reported with the next line.
const REFUSALS_PER_SECOND: u32 = 100;

/// Longer than any name. A longer text, which a client may put in the place of a name, is cut.
const TEXT_CHARS_MAX: usize = 300;

/// Fields of a query or a body that tell one act from another, in addition to the options of queues. Never a payload.
const DETAILS: [&str; 20] = [
    "enabled",
    "create",
    "toEnd",
    "timestamp",
    "dryRun",
    "subscriptionTimestamp",
    "deleteMetadata",
    "mode",
    "namespace",
    "task",
    "partition",
    "consumerGroup",
    "targetQueue",
    "perSecond",
    "from",
    "to",
    "error",
    "shape",
    "queue",
    "group",
];

const NAMES: [&str; 4] = ["queue", "partition", "consumerGroup", "group"];
const LABELS: [&str; 2] = ["namespace", "task"];

/// The only route that reads options of queues, both in `options` and next to it.
const CONFIGURE: &str = "/api/v1/configure";

#[derive(Default)]
pub struct Audit {
    refused: [AtomicU64; Denied::ALL.len()],
    lines: Mutex<Lines>,
}

/// How many refusals were logged in the current second, and how many were not.
#[derive(Default)]
struct Lines {
    second: Option<Instant>,
    logged: u32,
    dropped: u64,
}

/// A request, from before its check until its response.
pub struct Visit {
    method: Method,
    uri: Uri,
    route: Option<&'static str>,
    address: IpAddr,
    identity: Option<Arc<Identity>>,
    /// Only for a request that goes to the audit log.
    body: Option<Sent>,
    /// It has passed the check, so it may take effect.
    admitted: bool,
    ended: bool,
}

/// The body of a request that goes to the audit log, kept by the extractor that reads it.
#[derive(Clone, Default)]
pub struct Sent(Arc<OnceLock<Bytes>>);

/// For changes at a broker without access control.
#[derive(Clone)]
pub struct Witness {
    pub app: App,
    pub route: &'static str,
}

pub async fn witnessed(State(witness): State<Witness>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let mut visit = Visit::begin(Some(witness.route), &mut parts);
    visit.admit();
    let response = next.run(Request::from_parts(parts, body)).await;
    visit.end(&witness.app.audit, &response);
    response
}

impl Audit {
    pub fn refused(&self, denied: Denied) -> u64 {
        self.refused[denied as usize].load(Relaxed)
    }

    pub fn count(&self, denied: Denied) {
        self.refused[denied as usize].fetch_add(1, Relaxed);
    }

    /// A request from a web page of another origin, which was refused before anything else.
    pub fn turned_away(&self, method: &Method, uri: &Uri, address: IpAddr, why: &str) {
        let mut visit = Visit {
            method: method.clone(),
            uri: uri.clone(),
            route: None,
            address,
            identity: None,
            body: None,
            admitted: false,
            ended: false,
        };
        visit.refused(self, &Denial { denied: Denied::Origin, text: why.to_owned() }, 403);
    }

    fn log_refusal(&self) -> Option<u64> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now())
    }
}

impl Lines {
    /// Reserves a line. Returns how many were dropped before it, or `None` if there is no room in this second.
    fn take(&mut self, now: Instant) -> Option<u64> {
        if self.second.is_none_or(|second| now - second >= Duration::from_secs(1)) {
            (self.second, self.logged) = (Some(now), 0);
        }
        if self.logged >= REFUSALS_PER_SECOND {
            self.dropped += 1;
            return None;
        }
        self.logged += 1;
        Some(std::mem::take(&mut self.dropped))
    }
}

impl Visit {
    pub fn begin(route: Option<&'static str>, parts: &mut Parts) -> Self {
        let body = routes::is_act(&parts.method, route).then(Sent::default);
        if let Some(body) = &body {
            parts.extensions.insert(body.clone());
        }
        let address = parts.extensions.get::<Peer>().map_or(super::NOWHERE, |peer| peer.0.ip());
        let (method, uri) = (parts.method.clone(), parts.uri.clone());
        Self { method, uri, route, address, identity: None, body, admitted: false, ended: false }
    }

    pub fn identify(&mut self, identity: Option<&Arc<Identity>>) {
        self.identity = identity.cloned();
    }

    /// Called when the check is passed.
    pub fn admit(&mut self) {
        self.admitted = true;
    }

    pub fn end(mut self, audit: &Audit, response: &Response) {
        let status = response.status().as_u16();
        match response.extensions().get::<Denial>() {
            Some(denial) => self.refused(audit, denial, status),
            None => self.done(Some(status)),
        }
    }

    fn refused(&mut self, audit: &Audit, denial: &Denial, status: u16) {
        self.ended = true;
        audit.count(denial.denied);
        let Some(unlogged) = audit.log_refusal() else { return };
        let (who, about) = (Who::of(self.identity.as_deref()), self.about());
        info!(
            target: TARGET,
            event = "refused",
            who = who.name,
            kind = who.kind,
            key = who.key,
            address = %self.address.to_canonical(),
            method = %self.method,
            route = self.route,
            path = self.route.is_none().then(|| shortened(self.uri.path())),
            queue = about.queue,
            partition = about.partition,
            group = about.group,
            transaction = about.transaction,
            id = about.id,
            status,
            reason = denial.denied.word(),
            error = shortened(&denial.text),
            unlogged = (unlogged > 0).then_some(unlogged),
            "request refused"
        );
    }

    /// `None`: the client went away, and the outcome is not known.
    fn done(&mut self, status: Option<u16>) {
        self.ended = true;
        if self.body.is_none() {
            return;
        }
        let (who, about) = (Who::of(self.identity.as_deref()), self.about());
        info!(
            target: TARGET,
            event = "act",
            who = who.name,
            kind = who.kind,
            key = who.key,
            address = %self.address.to_canonical(),
            method = %self.method,
            route = self.route,
            queue = about.queue,
            partition = about.partition,
            group = about.group,
            transaction = about.transaction,
            id = about.id,
            details = about.details,
            status,
            "request handled"
        );
    }

    fn about(&self) -> About {
        let mut about = About::default();
        about.read_path(self.route, self.uri.path());
        let mut details = Map::new();
        match self.body.as_ref().and_then(|body| body.0.get()) {
            Some(body) => {
                if let Ok(Value::Object(body)) = serde_json::from_slice(body) {
                    self.keep_body(&body, &mut details);
                }
            }
            None => self.keep_query(&mut details),
        }
        let mut text = |name: &str| match details.remove(name) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        };
        let group =
            [text("consumerGroup"), text("group")].into_iter().flatten().find(|group| !group.is_empty());
        about.queue = about.queue.or_else(|| text("queue"));
        about.partition = about.partition.or_else(|| text("partition"));
        about.group = about.group.or(group);
        about.details = (!details.is_empty()).then(|| Value::Object(details).to_string());
        about
    }

    /// As handlers read it: `options` take precedence over fields beside them, except for labels.
    fn keep_body(&self, body: &Map<String, Value>, details: &mut Map<String, Value>) {
        let nested = body.get("options").filter(|_| self.route == Some(CONFIGURE)).and_then(Value::as_object);
        let options = || nested.into_iter().flatten();
        for (name, value) in options().filter(|(name, _)| is_option(name)).chain(body) {
            keep(details, name, value);
        }
        for (name, value) in options().filter(|(name, _)| LABELS.contains(&name.as_str())) {
            keep(details, name, value);
        }
    }

    /// Handlers of routes with a body ignore the query. Names of queues, partitions and groups in a query are kept only
    /// if the route reads them.
    fn keep_query(&self, details: &mut Map<String, Value>) {
        if self.method == Method::POST {
            return;
        }
        let asked = matches!(routes::access(&self.method, self.route), Access::Needs(_, Scope::Asked(_)));
        let named = asked || self.method == Method::GET || self.method == Method::HEAD;
        let Some(query) = self.uri.query().and_then(Query::read) else { return };
        for (name, value) in query.pairs().filter(|(name, _)| named || !NAMES.contains(name)) {
            keep(details, name, &Value::from(value));
        }
    }
}

/// A client that goes away ends its request at the next await, which may be after the commit.
impl Drop for Visit {
    fn drop(&mut self) {
        if self.admitted && !self.ended {
            self.done(None);
        }
    }
}

impl Sent {
    pub fn keep(&self, body: &Bytes) {
        _ = self.0.set(body.clone());
    }
}

/// The first request with a key since this broker started.
pub fn key_used(identity: &Identity, address: IpAddr) {
    let who = Who::of(Some(identity));
    let address = address.to_canonical();
    info!(target: TARGET, event = "key_used", who = who.name, kind = who.kind, key = who.key, %address, "API key used for the first time");
}

/// A key that was not there at the previous read. Keys are created and revoked in the database, without the broker.
pub fn key_added(identity: &Identity) {
    let who = Who::of(Some(identity));
    let role = identity.role.map(super::role::Role::word);
    info!(target: TARGET, event = "key_added", who = who.name, kind = who.kind, key = who.key, role, "API key added");
}

/// It was revoked, or has expired.
pub fn key_ended(identity: &Identity) {
    let who = Who::of(Some(identity));
    info!(target: TARGET, event = "key_ended", who = who.name, kind = who.kind, key = who.key, "API key ended");
}

struct Who<'a> {
    name: &'a str,
    kind: Option<&'static str>,
    /// The id of an API key: several may have the same name.
    key: Option<&'a str>,
}

impl<'a> Who<'a> {
    fn of(identity: Option<&'a Identity>) -> Self {
        let kind = identity.map(|identity| match identity.kind {
            Kind::Token => "token",
            Kind::Key => "key",
        });
        let name = identity.and_then(|identity| identity.subject.as_deref()).unwrap_or("anonymous");
        Self { name, kind, key: identity.and_then(|identity| identity.key.as_deref()) }
    }
}

/// The queue, partition and so on of a request, as far as it names them.
#[derive(Default)]
struct About {
    queue: Option<String>,
    partition: Option<String>,
    group: Option<String>,
    transaction: Option<String>,
    /// Of an operation, a redrive, a lease or a wait.
    id: Option<String>,
    details: Option<String>,
}

impl About {
    fn read_path(&mut self, route: Option<&str>, path: &str) {
        for (segment, value) in route.unwrap_or_default().split('/').zip(path.split('/')) {
            let field = match segment {
                "{queue}" => &mut self.queue,
                "{partition}" => &mut self.partition,
                "{group}" => &mut self.group,
                "{transaction}" => &mut self.transaction,
                "{operation}" | "{redrive}" | "{lease}" | "{wait}" => &mut self.id,
                _ => continue,
            };
            *field = Some(shortened(&decoded(value)));
        }
    }
}

fn is_option(name: &str) -> bool {
    OPTIONS.iter().any(|option| option.name == name)
}

fn keep(details: &mut Map<String, Value>, name: &str, value: &Value) {
    if !DETAILS.contains(&name) && !is_option(name) {
        return;
    }
    let value = match value {
        Value::String(text) => Value::from(shortened(text)),
        Value::Bool(_) | Value::Number(_) => value.clone(),
        _ => return,
    };
    details.entry(name).or_insert(value);
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_fills_no_log_and_is_counted() {
        let (mut lines, start) = (Lines::default(), Instant::now());
        let logged = (0..1_000).filter(|_| lines.take(start).is_some()).count();
        assert_eq!(logged, REFUSALS_PER_SECOND as usize);
        assert_eq!(lines.take(start + Duration::from_millis(999)), None);
        assert_eq!(lines.take(start + Duration::from_secs(1)), Some(901));
        assert_eq!(lines.take(start + Duration::from_secs(1)), Some(0));
    }

    #[test]
    fn only_details_that_are_known_are_kept_and_never_whole_values() {
        let mut details = Map::new();
        let body = serde_json::json!({
            "enabled": true, "retentionSeconds": 60, "payload": "secret", "token": "secret", "error": ["secret"],
            "consumerGroup": "x".repeat(5_000),
        });
        for (name, value) in body.as_object().unwrap() {
            keep(&mut details, name, value);
        }
        let text = Value::Object(details).to_string();
        assert!(text.contains(r#""enabled":true"#) && text.contains(r#""retentionSeconds":60"#), "{text}");
        assert!(!text.contains("secret") && text.len() < 500, "{text}");
    }
}
