//! One connection to PostgreSQL: how it is made, and what it knows from the start.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::config::{Host, LoadBalanceHosts, SslMode};
use tokio_postgres::error::DbError;
use tokio_postgres::{AsyncMessage, Client, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;
use uuid::Uuid;

use super::{Error, tls};
use crate::config::{Config, Tls, TlsMode};
use crate::error::StartError;
use crate::tasks::Tasks;

/// Everything needed to open a connection, read and checked once.
#[derive(Clone)]
pub struct Connector {
    postgres: tokio_postgres::Config,
    tls: Option<MakeRustlsConnect>,
    session: Arc<str>,
    timeout: Duration,
    pub tasks: Tasks,
}

/// Unqualified names are looked up among PostgreSQL's own and nowhere else. Otherwise any user who may create a
/// function in schema `public` could make the broker call it, by giving it the name of a built-in and types that fit
/// better.
const SEARCH_PATH: &str = "set search_path = pg_catalog, pg_temp";

/// The half of a connection that must be polled. Boxed, because it has two types: with and without TLS.
pub type Driver =
    std::pin::Pin<Box<dyn futures_util::Stream<Item = Result<AsyncMessage, tokio_postgres::Error>> + Send>>;

impl Connector {
    pub fn new(config: &Config, tasks: Tasks) -> Result<Self, StartError> {
        let mut postgres = tokio_postgres::Config::from_str(&config.database)
            .map_err(|error| StartError::Settings(error_chain(&error)))?;
        let keepalive = config.keepalive;
        postgres.application_name("queen").connect_timeout(config.connect_timeout).keepalives(true);
        postgres.keepalives_idle(keepalive.idle).keepalives_interval(keepalive.interval);
        postgres.keepalives_retries(keepalive.count);
        if !keepalive.user_timeout.is_zero() {
            postgres.tcp_user_timeout(keepalive.user_timeout);
        }
        let wanted = match (config.tls.mode, postgres.get_ssl_mode()) {
            (TlsMode::Off, SslMode::Require) => Tls { mode: TlsMode::Unverified, ..config.tls.clone() },
            _ => config.tls.clone(),
        };
        let tls = match wanted.mode {
            TlsMode::Off => None,
            mode => {
                // Anything but "prefer" ends the connection when the server has no TLS.
                let prefer = mode == TlsMode::Prefer;
                postgres.ssl_mode(if prefer { SslMode::Prefer } else { SslMode::Require });
                Some(MakeRustlsConnect::new(tls::client(&wanted)?))
            }
        };
        // Every hot statement probes an index with keys from an array. The planner must not change its mind about
        // that when statistics are missing or old.
        let session = format!(
            "set plan_cache_mode = force_generic_plan; set enable_seqscan = off; set enable_bitmapscan = off; \
             set enable_indexonlyscan = off; set enable_hashjoin = off; set enable_mergejoin = off; set jit = off; set timezone = 'UTC'; set statement_timeout = {}; \
             set lock_timeout = {}; set idle_in_transaction_session_timeout = {}; set queen.max_partitions = {}; \
             set queen.max_queues = {}; set queen.auto_create = {}",
            config.statement_timeout.as_millis(),
            config.lock_timeout.as_millis(),
            config.statement_timeout.as_millis() * 2,
            config.partitions_max,
            config.queues_max,
            config.auto_create,
        );
        Ok(Self { postgres, tls, session: session.into(), timeout: config.connect_timeout, tasks })
    }

    /// Where the database is, for people. Never a password.
    pub fn location(&self) -> String {
        let hosts = self.postgres.get_hosts().iter().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        });
        let hosts = hosts.collect::<Vec<_>>().join(",");
        let port = self.postgres.get_ports().first().copied().unwrap_or(5432);
        format!("{hosts}:{port}/{}", self.postgres.get_dbname().unwrap_or_else(|| self.user()))
    }

    pub fn user(&self) -> &str {
        self.postgres.get_user().unwrap_or("postgres")
    }

    /// A connection whose driver runs by itself, with our session settings.
    pub async fn client(&self) -> Result<Client, Error> {
        self.client_hearing(|| {}).await
    }

    /// The same, but calls `heard` for every notification.
    pub async fn client_hearing(&self, heard: impl Fn() + Send + 'static) -> Result<Client, Error> {
        let (client, mut driver) = self.raw().await?;
        self.tasks.spawn_driver(async move {
            while let Some(Ok(message)) = futures_util::StreamExt::next(&mut driver).await {
                match message {
                    AsyncMessage::Notification(_) => heard(),
                    // This notice precedes the success that it invalidates: end the connection, with the outcome
                    // unknown.
                    AsyncMessage::Notice(notice) if is_unreplicated(&notice) => break,
                    _ => {}
                }
            }
        });
        client.batch_execute(&self.session).await.map_err(|error| Error::Unreachable(error_chain(&error)))?;
        Ok(client)
    }

    /// A connection whose driver the caller polls, to hear notifications.
    pub async fn raw(&self) -> Result<(Client, Driver), Error> {
        self.connect().await.map_err(|error| Error::Unreachable(error_chain(&error)))
    }

    /// The same with the driver's own error, for start-up to explain. Each host has its own timeout: a silent one must
    /// not use up the time of the next.
    pub async fn connect(&self) -> Result<(Client, Driver), ConnectError> {
        let hosts = hosts(&self.postgres);
        let (last, before) = hosts.split_last().unwrap_or((&self.postgres, &[]));
        for host in before {
            if let Ok(connected) = self.connect_to(host).await {
                return Ok(connected);
            }
        }
        self.connect_to(last).await
    }

    async fn connect_to(&self, host: &tokio_postgres::Config) -> Result<(Client, Driver), ConnectError> {
        let attempt = async {
            let (client, mut driver): (_, Driver) = match &self.tls {
                Some(tls) => {
                    let (client, mut connection) = host.connect(tls.clone()).await?;
                    (client, Box::pin(futures_util::stream::poll_fn(move |cx| connection.poll_message(cx))))
                }
                None => {
                    let (client, mut connection) = host.connect(NoTls).await?;
                    (client, Box::pin(futures_util::stream::poll_fn(move |cx| connection.poll_message(cx))))
                }
            };
            pin_search_path(&client, &mut driver).await?;
            Ok((client, driver))
        };
        match tokio::time::timeout(self.timeout.max(Duration::from_secs(1)), attempt).await {
            Ok(result) => result.map_err(ConnectError::Postgres),
            Err(_) => Err(ConnectError::Timeout(self.timeout)),
        }
    }
}

/// The first statement of every session. Not a parameter of the connection, because poolers refuse those.
async fn pin_search_path(client: &Client, driver: &mut Driver) -> Result<(), tokio_postgres::Error> {
    let pinned = client.batch_execute(SEARCH_PATH);
    tokio::pin!(pinned);
    loop {
        tokio::select! {
            result = &mut pinned => return result,
            Some(message) = futures_util::StreamExt::next(driver) => {
                message?;
            }
        }
    }
}

/// One for each host, in the order to try them. Settings that the driver will refuse stay whole, so that it can say
/// why.
fn hosts(postgres: &tokio_postgres::Config) -> Vec<tokio_postgres::Config> {
    let (names, addresses) = (postgres.get_hosts(), postgres.get_hostaddrs());
    let (count, ports) = (names.len().max(addresses.len()), postgres.get_ports().len());
    let fits = |listed: usize| listed == 0 || listed == count;
    if count < 2 || !fits(names.len()) || !fits(addresses.len()) || !(ports == 1 || fits(ports)) {
        return vec![postgres.clone()];
    }
    let mut hosts: Vec<_> = (0..count).map(|index| alone(postgres, index)).collect();
    if postgres.get_load_balance_hosts() == LoadBalanceHosts::Random {
        hosts.sort_by_cached_key(|_| Uuid::new_v4());
    }
    hosts
}

/// The same settings with one of the hosts. The driver can add a host to its settings, but not take one away.
fn alone(postgres: &tokio_postgres::Config, index: usize) -> tokio_postgres::Config {
    let mut host = tokio_postgres::Config::new();
    match postgres.get_hosts().get(index) {
        Some(Host::Tcp(name)) => _ = host.host(name),
        Some(Host::Unix(path)) => _ = host.host_path(path),
        None => {}
    }
    postgres.get_hostaddrs().get(index).map(|address| host.hostaddr(*address));
    let ports = postgres.get_ports();
    ports.get(index).or(ports.first()).map(|port| host.port(*port));
    postgres.get_user().map(|user| host.user(user));
    postgres.get_password().map(|password| host.password(password));
    postgres.get_dbname().map(|name| host.dbname(name));
    postgres.get_options().map(|options| host.options(options));
    postgres.get_application_name().map(|name| host.application_name(name));
    postgres.get_connect_timeout().map(|timeout| host.connect_timeout(*timeout));
    postgres.get_tcp_user_timeout().map(|timeout| host.tcp_user_timeout(*timeout));
    postgres.get_keepalives_interval().map(|interval| host.keepalives_interval(interval));
    postgres.get_keepalives_retries().map(|retries| host.keepalives_retries(retries));
    host.keepalives(postgres.get_keepalives()).keepalives_idle(postgres.get_keepalives_idle());
    host.ssl_mode(postgres.get_ssl_mode()).ssl_negotiation(postgres.get_ssl_negotiation());
    host.channel_binding(postgres.get_channel_binding());
    host.target_session_attrs(postgres.get_target_session_attrs());
    host.load_balance_hosts(postgres.get_load_balance_hosts());
    host
}

/// Whether the wait for a synchronous standby was canceled. PostgreSQL reports success, but the commit is lost if the
/// standby takes over now. Recognized by the name of the function, since the text may be in any language.
fn is_unreplicated(notice: &DbError) -> bool {
    notice.routine() == Some("SyncRepWaitForLSN")
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("{}", error_chain(.0))]
    Postgres(tokio_postgres::Error),
    #[error("no answer within {0:?}")]
    Timeout(Duration),
}

pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_alone_keeps_all_that_was_said() {
        let config = |text: String| tokio_postgres::Config::from_str(&text).unwrap();
        let common = "user=u password=p dbname=d options='-c x=1' application_name=n sslmode=require \
                      sslnegotiation=direct channel_binding=require connect_timeout=3 tcp_user_timeout=4 keepalives=0 \
                      keepalives_idle=5 keepalives_interval=6 keepalives_retries=7 target_session_attrs=read-write";
        let several = config(format!("host=a,/b hostaddr=127.0.0.1,127.0.0.2 port=1,2 {common}"));
        let first = config(format!("host=a hostaddr=127.0.0.1 port=1 {common}"));
        let second = config(format!("host=/b hostaddr=127.0.0.2 port=2 {common}"));
        assert_eq!(hosts(&several), [first, second]);

        let shared = config(format!("host=a,b port=9 load_balance_hosts=random {common}"));
        let each =
            ["a", "b"].map(|name| config(format!("host={name} port=9 load_balance_hosts=random {common}")));
        let found = hosts(&shared);
        assert!(found.len() == 2 && each.iter().all(|host| found.contains(host)));
        for whole in ["host=a,b hostaddr=127.0.0.1", "host=a,b,c port=1,2", "host=a", "user=u"] {
            let whole = config(whole.to_owned());
            assert_eq!(hosts(&whole), [whole]);
        }
    }
}
