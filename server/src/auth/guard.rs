//! The check in front of every handler: who is the caller, is its role high enough for the route, and are the queues
//! granted. It runs before the body is read.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest::{SHA256, digest};
use axum::extract::{FromRequestParts, RawPathParams, Request, State};
use axum::http::header::{AUTHORIZATION, EXPECT};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use queen_engine::Engine;
use queen_protocol::BadRequest;
use uuid::Uuid;

use super::access::{Access, Scope};
use super::audit::Visit;
use super::keys::{KeyRing, PREFIX, Waiting};
use super::refusal::{Denied, Refusal};
use super::role::Role;
use super::seen::Seen;
use super::token::Tokens;
use super::{Caller, Identity, NOWHERE, Peer, Unknown, forbidden};
use crate::app::App;
use crate::http::error::ApiError;
use crate::http::metrics;
use crate::http::request::{Query, discard};
use crate::routes;

/// How much is read of the body of a refused request, so that the client sees the response and not a broken connection.
const DISCARD_BYTES_MAX: usize = 1 << 20;
const DISCARD_FOR: Duration = Duration::from_secs(1);

pub struct Guard {
    /// `None`: only API keys are accepted.
    pub tokens: Option<Tokens>,
    pub skip: SkipPaths,
    /// Metrics name queues and groups for callers without credentials as well.
    pub open_metrics: bool,
    keys: KeyRing,
    seen: Seen,
}

/// Does not show keys and secrets.
impl fmt::Debug for Guard {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Guard")
    }
}

/// Paths without access control. One that ends in `/` includes all paths below it.
#[derive(Debug, Clone)]
pub struct SkipPaths(pub Vec<String>);

impl SkipPaths {
    fn holds(&self, path: &str) -> bool {
        self.0.iter().any(|skip| match skip.ends_with('/') && skip != "/" {
            true => path.starts_with(skip.as_str()),
            false => path == skip,
        })
    }
}

impl Guard {
    pub fn new(tokens: Option<Tokens>, skip: SkipPaths, open_metrics: bool) -> Self {
        Self { tokens, skip, open_metrics, keys: KeyRing::default(), seen: Seen::default() }
    }

    /// Keeps the keys of the issuer and the API keys up to date while it is polled.
    pub async fn keep_fresh(self: Arc<Self>, engine: Engine) {
        let issuer = async {
            if let Some(jwks) = self.tokens.as_ref().and_then(|tokens| tokens.jwks.as_ref()) {
                jwks.keep_fresh().await;
            }
        };
        tokio::join!(issuer, self.keys.keep_fresh(&engine));
    }

    /// Held by a pop while it waits, so that the pop ends when its API key is revoked.
    pub fn wait(&self) -> Waiting<'_> {
        self.keys.wait()
    }

    async fn identify(
        &self,
        engine: &Engine,
        headers: &HeaderMap,
        address: IpAddr,
    ) -> Result<Arc<Identity>, Refusal> {
        let token = presented(headers)?;
        let now = wall();
        if token.starts_with(PREFIX) {
            return self.keys.check(engine, token, now, address).await;
        }
        let tokens = self.tokens.as_ref().ok_or(Refusal::TokensOff)?;
        let mut key = [0; 32];
        key.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
        if let Some(known) = self.seen.get(&key, Instant::now()) {
            return Ok(known);
        }
        let (mut identity, left) = tokens.verify(token, now).await?;
        identity.until = Instant::now().checked_add(left);
        let identity = Arc::new(identity);
        self.seen.put(key, identity.clone(), left, Instant::now());
        Ok(identity)
    }
}

/// What the check of a route needs to know.
#[derive(Clone)]
pub struct Checkpoint {
    pub app: App,
    pub guard: Arc<Guard>,
    /// The path in `routes.rs`; `None` if no route matches.
    pub route: Option<&'static str>,
}

pub async fn admitted(State(point): State<Checkpoint>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let mut visit = Visit::begin(point.route, &mut parts);
    let admitted = admit(&point.app, &point.guard, point.route, &mut parts).await;
    visit.identify(parts.extensions.get());
    let audit = &point.app.audit;
    let response = match admitted {
        Ok(()) => {
            visit.admit();
            next.run(Request::from_parts(parts, body)).await
        }
        Err(error) => {
            let Ok(caller) = Caller::from_request_parts(&mut parts, &()).await;
            // A failure of the broker does not count against the rate of the caller.
            let paced = match error.status() {
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => point.app.limits.pace_refusal(&caller),
                _ => None,
            };
            // With `Expect: 100-continue`, the client has not sent a body.
            if !parts.headers.contains_key(EXPECT) {
                discard(body.into_data_stream(), DISCARD_BYTES_MAX, DISCARD_FOR).await;
            }
            if paced.is_some()
                && let Some(denied) = error.why_denied()
            {
                audit.count(denied);
            }
            paced.unwrap_or(error).into_response()
        }
    };
    visit.end(audit, &response);
    response
}

async fn admit(app: &App, guard: &Guard, route: Option<&str>, parts: &mut Parts) -> Result<(), ApiError> {
    if guard.skip.holds(parts.uri.path()) {
        if route == Some(metrics::PATH) && parts.headers.contains_key(AUTHORIZATION) {
            recognize(app, guard, parts).await?;
        }
        return Ok(());
    }
    let Access::Needs(role, scope) = routes::access(&parts.method, route) else { return Ok(()) };
    let identity = guard.identify(&app.engine, &parts.headers, address(parts)).await?;
    let restricted = identity.grants.is_some();
    let held = identity.role;
    parts.extensions.insert(identity);
    if held.is_none_or(|held| held < role) {
        return Err(ApiError::denied(Denied::Role, too_low(held, role)));
    }
    if restricted { within_grants(app, scope, parts).await } else { Ok(()) }
}

fn too_low(held: Option<Role>, needed: Role) -> String {
    let held = held
        .map_or("the token names no known role".to_owned(), |held| format!("the role is {}", held.word()));
    format!("Insufficient permissions: {held}, this needs {}", needed.word())
}

/// The metrics page is open, and shows more to callers without grants. Invalid credentials get the open page, and count as a
/// refusal in metrics and in the rate of the caller.
async fn recognize(app: &App, guard: &Guard, parts: &mut Parts) -> Result<(), ApiError> {
    match guard.identify(&app.engine, &parts.headers, address(parts)).await {
        Ok(identity) if identity.role.is_some() && identity.grants.is_none() => {
            parts.extensions.insert(identity);
        }
        Ok(_) => {}
        Err(refusal) => {
            if let Some(denied) = ApiError::from(refusal).why_denied() {
                app.audit.count(denied);
            }
            let Ok(caller) = Caller::from_request_parts(parts, &()).await;
            if let Some(paced) = app.limits.pace_refusal(&caller) {
                return Err(paced);
            }
        }
    }
    Ok(())
}

fn address(parts: &Parts) -> IpAddr {
    parts.extensions.get::<Peer>().map_or(NOWHERE, |peer| peer.0.ip())
}

async fn within_grants(app: &App, scope: Scope, parts: &mut Parts) -> Result<(), ApiError> {
    let Ok(caller) = Caller::from_request_parts(parts, &()).await;
    match scope {
        Scope::Nothing | Scope::Handler => Ok(()),
        Scope::All => {
            Err(forbidden("this route covers all queues, and the caller has grants for some queues only"))
        }
        Scope::Queue(need) => caller.may(need, &segment(parts, "queue").await?),
        Scope::Nameless(need) => caller.may(need, ""),
        Scope::Asked(need) => {
            // The same parser as in handlers: both see the same queue if the query has two.
            let query = Query::from_request_parts(parts, &()).await?;
            match query.filled("queue") {
                Some(queue) => caller.may(need, queue),
                None => Err(forbidden(
                    "`queue` is required (--queue or ?queue=): the caller has grants for some queues only",
                )),
            }
        }
        Scope::Partition(need) => {
            let text = segment(parts, "partition").await?;
            let partition = Uuid::try_parse(&text)
                .map_err(|_| BadRequest(format!("partition id {text:?} is not a UUID")))?;
            caller.may_partitions(&app.engine, need, Unknown::Refused, &[partition]).await
        }
        Scope::Lease(need) => {
            let lease = segment(parts, "lease").await?;
            caller.may_leases(&app.engine, need, std::iter::once(lease.as_str())).await
        }
    }
}

/// A parameter of the path, decoded as the handlers decode it.
async fn segment(parts: &mut Parts, name: &str) -> Result<String, ApiError> {
    let parameters = RawPathParams::from_request_parts(parts, &()).await;
    let parameters = parameters.map_err(|rejection| BadRequest(rejection.body_text()))?;
    let found = parameters.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned());
    found.ok_or_else(|| {
        forbidden("this route covers all queues, and the caller has grants for some queues only")
    })
}

/// `Bearer` and a token, or the token alone.
fn presented(headers: &HeaderMap) -> Result<&str, Refusal> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Err(Refusal::Missing) };
    // With two headers, a proxy may have checked the other one.
    let (None, Ok(text)) = (values.next(), value.to_str()) else { return Err(Refusal::Scheme) };
    let token = match text.trim().split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => token.trim(),
        Some(_) => return Err(Refusal::Scheme),
        None if text.trim().eq_ignore_ascii_case("bearer") => "",
        None => text.trim(),
    };
    match token {
        "" => Err(Refusal::Missing),
        token if token.contains(' ') => Err(Refusal::Scheme),
        token => Ok(token),
    }
}

/// Seconds since 1970.
fn wall() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_may_stand_alone_and_nothing_else_may() {
        let read = |values: &[&str]| {
            let headers: HeaderMap =
                values.iter().map(|value| (AUTHORIZATION, value.parse().unwrap())).collect();
            presented(&headers).map(str::to_owned)
        };
        for good in ["Bearer t.o.k", "bearer  t.o.k", "BEARER t.o.k ", "t.o.k"] {
            assert_eq!(read(&[good]).as_deref(), Ok("t.o.k"), "{good}");
        }
        for missing in [&[][..], &[""], &["Bearer"], &["Bearer  "]] {
            assert_eq!(read(missing), Err(Refusal::Missing));
        }
        for bad in
            [&["Basic dXNlcjpwYXNz"][..], &["Bearer a b"], &["Bearer a", "Bearer a"], &["Bearer \u{e4}"]]
        {
            assert_eq!(read(bad), Err(Refusal::Scheme), "{bad:?}");
        }
    }

    #[test]
    fn a_skip_path_is_one_path_unless_it_ends_in_a_slash() {
        let skip = SkipPaths(["/health", "/", "/docs/"].map(str::to_owned).to_vec());
        assert!(skip.holds("/health") && skip.holds("/") && skip.holds("/docs/") && skip.holds("/docs/a/b"));
        assert!(
            !skip.holds("/health/") && !skip.holds("/api") && !skip.holds("/docs") && !skip.holds("/healthy")
        );
    }
}
