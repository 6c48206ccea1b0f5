//! Accepts connections and serves HTTP/1.1 on each until shutdown, then lets requests in progress finish. It knows neither routes
//! nor signals.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse;
use hyper::Method;
use hyper::Request;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use queen_engine::Engine;
use queen_protocol::ErrorCode;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::app::{self, App, Options, Parts};
use crate::auth::Peer;
use crate::auth::audit::Audit;
use crate::auth::refusal::Denied;
use crate::http::answer;
use crate::http::error::ApiError;
use crate::http::origins::Origins;
use crate::limits::admission::Permit;
use crate::limits::head::{Answer, Head, HeadReader};
use crate::limits::stream::Patient;
use crate::limits::time::Reading;
use crate::limits::{Limit, Limits};
use crate::meter::Meter;
use crate::routes;
use crate::telemetry::Telemetry;

/// Closes idle connections; a head that has begun has less time (`limits/head.rs`). Published clients close idle connections
/// earlier (90 s), so that they never send a request into a connection that is being closed.
const IDLE_PATIENCE: Duration = Duration::from_secs(120);
/// Enough for the round trips of any client.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);
/// hyper accepts no smaller buffer.
const BUFFER_BYTES_MIN: usize = 8 << 10;
/// Pause when there are no file descriptors left, so that retries do not use up the CPU.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown`, then lets parked pops respond, waits up to `options.drain` for other requests, and
/// stops the engine. When this returns, no request is in progress.
pub async fn run(listener: TcpListener, engine: Engine, options: Options, shutdown: CancellationToken) {
    let (drain, tls) = (options.drain, options.tls.clone());
    let meter = Arc::new(Meter::new(routes::paths()));
    let name: Arc<str> = name(port(&listener)).into();
    let limits = Arc::new(Limits::new(options.bounds.clone()));
    let audit = Arc::<Audit>::default();
    let telemetry = Telemetry::start(options.otlp_endpoint.as_deref(), &name);
    let app = App(Arc::new(Parts {
        engine: engine.clone(),
        options,
        name,
        meter: meter.clone(),
        limits: limits.clone(),
        telemetry: telemetry.clone(),
        waits: Arc::default(),
        audit: audit.clone(),
    }));
    let guard = app.options.guard.clone();
    let origins = Arc::new(Origins::new(&app.options, listener.local_addr().ok()));
    let router = app::router(app);
    let connections = TaskTracker::new();
    if let Some(guard) = guard {
        connections.spawn(shutdown.clone().run_until_cancelled_owned(guard.keep_fresh(engine.clone())));
    }
    let abandoned = CancellationToken::new();
    if let Some(door) = tls.clone() {
        let watch = async move { door.watch().await };
        connections.spawn(shutdown.clone().run_until_cancelled_owned(watch));
    }
    while let Some(accepted) = shutdown.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, address)) => match limits.admission.admit(address.ip()) {
                Ok(permit) => {
                    let inside = Inside {
                        router: router.clone(),
                        meter: meter.clone(),
                        limits: limits.clone(),
                        origins: origins.clone(),
                        audit: audit.clone(),
                    };
                    let acceptor = tls.as_ref().map(|door| door.acceptor());
                    let served = serve(stream, acceptor, Peer(address), permit, inside, shutdown.clone());
                    connections.spawn(abandoned.clone().run_until_cancelled_owned(served));
                }
                Err(limit) => {
                    limits.count(limit);
                    debug!(limit = limit.word(), "connection refused");
                    // A client that expects TLS could not read it.
                    let told = tls.is_none().then(|| limits.admission.farewell(stream)).flatten();
                    if let Some(farewell) = told {
                        connections.spawn(abandoned.clone().run_until_cancelled_owned(farewell));
                    }
                }
            },
            Err(error) => pause(&error).await,
        }
    }
    drop(listener);
    connections.close();
    let finished = async {
        engine.drain();
        connections.wait().await;
        engine.stop().await;
    };
    if timeout(drain, finished).await.is_err() {
        warn!(connections = connections.len(), drain_s = drain.as_secs(), "requests did not finish in time");
        abandoned.cancel();
        connections.wait().await;
    }
    telemetry.stop().await;
}

/// What a connection needs.
struct Inside {
    router: Router,
    meter: Arc<Meter>,
    limits: Arc<Limits>,
    origins: Arc<Origins>,
    audit: Arc<Audit>,
}

async fn serve(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    peer: Peer,
    _permit: Permit,
    inside: Inside,
    shutdown: CancellationToken,
) {
    // Answers are small and written whole; waiting for more to send would only add 40 ms.
    _ = stream.set_nodelay(true);
    let Some(acceptor) = acceptor else { return speak(stream, peer, inside, shutdown).await };
    // The handshake is here, not in the accept loop, so that a client that is slow or speaks no TLS delays only itself.
    let shaken = timeout(HANDSHAKE_PATIENCE, acceptor.accept(stream));
    match shutdown.run_until_cancelled(shaken).await {
        Some(Ok(Ok(stream))) => Box::pin(speak(stream, peer, inside, shutdown)).await,
        Some(Ok(Err(error))) => debug!(%error, peer = %peer.0, "TLS handshake failed"),
        Some(Err(_)) => debug!(peer = %peer.0, "TLS handshake timed out"),
        None => {}
    }
}

/// # Cancel safety
/// A client that goes away ends its handler at the next await: a parked pop is cancelled and takes no lease.
async fn speak(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    inside: Inside,
    shutdown: CancellationToken,
) {
    let Inside { router, meter, limits, origins, audit } = inside;
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(IDLE_PATIENCE);
    // Twice the limit, because hyper refuses larger heads without a body. Up to that size,
    // the refusal has our own body.
    http.max_header_size(limits.bounds.header_bytes * 2);
    // The read buffer, which also holds bodies. A connection keeps it while it is idle.
    http.max_buf_size((limits.bounds.header_bytes * 2).max(BUFFER_BYTES_MIN));
    let _open = meter.connected();
    let service = TowerToHyperService::new(router);
    // Measured out here and not in a layer, which would cost every request an allocation or two.
    let (limits, reading, head) = (&*limits, Reading::new(), Head::new(&limits.heads));
    let reader = HeadReader::new(head.clone(), limits.bounds.header_time);
    let service = service_fn(|mut request: Request<Incoming>| {
        head.complete(request.body().size_hint().exact());
        let head = head.clone();
        let measure = meter.begin(request.uri().path());
        let head_too_large = head_bytes(&request) > limits.bounds.header_bytes;
        let visit = origins.visit(&request);
        let is_preflight = request.method() == Method::OPTIONS;
        if let (false, false, Some(why)) = (head_too_large, is_preflight, visit.refused) {
            audit.turned_away(request.method(), request.uri(), peer.0.ip(), why);
        }
        // Pops enforce their own time limit.
        let is_pop = request.uri().path().starts_with("/api/v1/pop");
        let reading = (!request.body().is_end_stream()).then(|| reading.clone());
        if let Some(reading) = &reading {
            reading.begin();
            request.extensions_mut().insert(reading.clone());
        }
        request.extensions_mut().insert(peer);
        let answer = service.call(request);
        async move {
            let answer = match (head_too_large, visit.refused) {
                (true, _) => Ok(too_large(limits)),
                _ if is_preflight => Ok(answer::nothing()),
                (false, Some(why)) => Ok(ApiError::denied(Denied::Origin, why).into_response()),
                (false, None) if is_pop => answer.await,
                (false, None) => limits.within(reading.as_ref(), answer).await,
            };
            let answer = answer.map(|response| visit.finish(response));
            if let Ok(response) = &answer {
                measure.end(response.status());
            }
            answer.map(|response| response.map(|body| Answer::new(body, head)))
        }
    });
    let mut stream = Patient::new(stream, limits.bounds.write_idle, reader);
    let served = {
        let connection = http.serve_connection(TokioIo::new(&mut stream), service);
        let mut connection = std::pin::pin!(connection);
        match shutdown.run_until_cancelled(connection.as_mut()).await {
            Some(served) => served,
            None => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    if let Err(error) = served {
        debug!(%error, "connection ended");
        if error.is_parse_too_large() {
            limits.count(Limit::Headers);
        }
        if let Some(limit) = stream.exceeded() {
            limits.count(limit);
        }
        if error.is_parse() {
            stream.linger().await;
        }
    }
}

/// The approximate size of the head as it was sent.
fn head_bytes(request: &Request<Incoming>) -> usize {
    let line = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    let headers = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
    line + headers.sum::<usize>()
}

fn too_large(limits: &Limits) -> axum::response::Response {
    limits.count(Limit::Headers);
    let text = format!("path and headers have more than {} bytes", limits.bounds.header_bytes);
    ApiError::new(ErrorCode::HeadersTooLarge, text).into_response()
}

async fn pause(error: &io::Error) {
    if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
        return;
    }
    warn!(%error, "cannot accept connections");
    sleep(ACCEPT_PAUSE).await;
}

pub fn port(listener: &TcpListener) -> u16 {
    listener.local_addr().map_or(0, |address| address.port())
}

/// `host:port`, which names this broker.
pub fn name(port: u16) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}:{port}")
}
