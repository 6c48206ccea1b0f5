//! Accepts connections and serves HTTP/1.1 on each until told to stop, then lets what is in flight finish.
//! It knows neither routes nor signals.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use queen_engine::Engine;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::app::{self, App, Options};
use crate::auth::Peer;
use crate::meter::Meter;
use crate::telemetry::Telemetry;

/// Also ends idle connections. Longer than any published client keeps one (90 s), so that the client lets go
/// first and never sends into a closing door.
const HEADER_PATIENCE: Duration = Duration::from_secs(120);
/// Out of file descriptors: trying at once again would only burn the processor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown`, then has parked pops answered, waits for the rest as long as `options.drain` says, and
/// stops the engine. When this returns, no request is being worked on.
pub async fn run(listener: TcpListener, engine: Engine, options: Options, shutdown: CancellationToken) {
    let drain = options.drain;
    let meter = Arc::new(Meter::new(app::routes().iter().map(|(path, _)| *path)));
    let name: Arc<str> = name(port(&listener)).into();
    let telemetry = Telemetry::start(options.otlp_endpoint.as_deref(), &name);
    let app = App {
        engine: engine.clone(),
        options: options.into(),
        name,
        meter: meter.clone(),
        telemetry: telemetry.clone(),
    };
    let router = app::router(app);
    let connections = TaskTracker::new();
    let abandoned = CancellationToken::new();
    while let Some(accepted) = shutdown.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, address)) => {
                let served = serve(stream, Peer(address), router.clone(), meter.clone(), shutdown.clone());
                connections.spawn(abandoned.clone().run_until_cancelled_owned(served));
            }
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

/// # Cancel safety
/// A client that goes away ends its handler at the next await: a parked pop is cancelled, and no lease taken.
async fn serve(
    stream: TcpStream,
    peer: Peer,
    router: Router,
    meter: Arc<Meter>,
    shutdown: CancellationToken,
) {
    // Answers are small and written whole; waiting for more to send would only add 40 ms.
    _ = stream.set_nodelay(true);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_PATIENCE);
    let _open = meter.connected();
    let service = TowerToHyperService::new(router);
    // Measured out here and not in a layer, which would cost every request an allocation or two.
    let service = service_fn(|mut request: Request<Incoming>| {
        let measure = meter.begin(request.uri().path());
        request.extensions_mut().insert(peer);
        let answer = service.call(request);
        async move {
            let answer = answer.await;
            if let Ok(response) = &answer {
                measure.end(response.status());
            }
            answer
        }
    });
    let connection = http.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let served = match shutdown.run_until_cancelled(connection.as_mut()).await {
        Some(served) => served,
        None => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        debug!(%error, "connection ended");
    }
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

/// `host:port`, for people who run several.
pub fn name(port: u16) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}:{port}")
}
