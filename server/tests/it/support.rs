//! A server in this process on a free port, with its own database, and helpers for common calls.

use std::sync::Arc;
use std::time::{Duration, Instant};

use queen_engine::{Engine, Tls};
use queen_server::cli::Cli;
use queen_testkit::Database;
use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Long enough for a busy machine; a test that needs all of it has failed.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Server {
    pub url: String,
    pub database: Arc<Database>,
    pub http: reqwest::Client,
    pub shutdown: CancellationToken,
    pub tasks: TaskTracker,
}

pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error} in {:?}", self.text))
    }

    /// An error as documented: JSON with a text and the word of its code.
    pub fn is_error(&self, status: u16, code: &str) -> bool {
        self.status == status
            && self.headers["content-type"] == "application/json"
            && self.json()["code"] == code
            && self.json()["error"].is_string()
    }
}

/// The messages of one pop.
pub struct Popped {
    pub body: Value,
    pub messages: Vec<Value>,
}

impl Popped {
    pub fn data(&self) -> Vec<Value> {
        self.messages.iter().map(|message| message["data"].clone()).collect()
    }
}

impl Server {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts a server with these flags, as on the command line.
    pub async fn start_with(flags: &[&str]) -> Self {
        let database = queen_testkit::database().await;
        let url = database.url().to_owned();
        Self::start_on(database.into(), &url, flags).await
    }

    /// Another broker on the same database.
    pub async fn twin(&self) -> Self {
        Self::start_on(self.database.clone(), self.database.url(), &[]).await
    }

    /// Starts a server on a database that `connection` may reach by another address than its own.
    pub async fn start_on(database: Arc<Database>, connection: &str, flags: &[&str]) -> Self {
        let arguments = ["queen"].iter().chain(flags).copied();
        let settings = Cli::parse_from(arguments).expect("flags are well-formed").settings;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let mut config = settings.engine(connection.to_owned(), Tls::OFF).expect("settings make sense");
        config.name = queen_server::name(address.port());
        let engine = Engine::start(config).await.expect("the engine starts");
        let url = format!("http://{address}");
        let (shutdown, tasks) = (CancellationToken::new(), TaskTracker::new());
        tasks.spawn(queen_server::run(
            listener,
            engine,
            settings.options().expect("usable settings"),
            shutdown.clone(),
        ));
        Self { url, database, http: reqwest::Client::new(), shutdown, tasks }
    }

    pub async fn send(&self, method: Method, path: &str, body: Option<&str>) -> Reply {
        let mut request = self.http.request(method, format!("{}{path}", self.url));
        if let Some(body) = body {
            request = request.body(body.to_owned());
        }
        let response = request.send().await.expect("the server answers");
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Reply { status, headers, text: response.text().await.expect("the body arrives") }
    }

    /// Posts with these headers.
    pub async fn post_with(&self, path: &str, headers: &[(&str, &str)], body: Value) -> Reply {
        let mut request = self.http.post(format!("{}{path}", self.url)).body(body.to_string());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send().await.expect("the server answers");
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Reply { status, headers, text: response.text().await.expect("the body arrives") }
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, None).await
    }

    pub async fn delete(&self, path: &str) -> Reply {
        self.send(Method::DELETE, path, None).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Reply {
        self.send(Method::POST, path, Some(&body.to_string())).await
    }

    /// Posts a request that must succeed with 200.
    pub async fn call(&self, path: &str, body: Value) -> Value {
        let reply = self.post(path, body).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
        reply.json()
    }

    pub async fn configure(&self, queue: &str, options: Value) -> Value {
        self.call("/api/v1/configure", json!({"queue": queue, "options": options})).await
    }

    /// The results of a push that must be accepted.
    pub async fn push_items(&self, items: Value) -> Vec<Value> {
        let reply = self.post("/api/v1/push", json!({ "items": items })).await;
        assert_eq!(reply.status, 201, "{}", reply.text);
        array(reply.json())
    }

    /// Pushes one message per payload; the server generates the ids.
    pub async fn push(&self, queue: &str, partition: &str, payloads: &[Value]) -> Vec<Value> {
        let items: Vec<_> = payloads
            .iter()
            .map(|payload| json!({"queue": queue, "partition": partition, "payload": payload}))
            .collect();
        self.push_items(Value::Array(items)).await
    }

    /// `None` for a 204. The path is what follows `/api/v1/pop`.
    pub async fn pop(&self, path: &str) -> Option<Popped> {
        let reply = self.get(&format!("/api/v1/pop{path}")).await;
        match reply.status {
            204 => None,
            200 => {
                let body = reply.json();
                let messages = array(body["messages"].clone());
                Some(Popped { body, messages })
            }
            status => panic!("{status}: {}", reply.text),
        }
    }

    /// A pop that must find something, perhaps after a moment.
    pub async fn pop_soon(&self, path: &str) -> Popped {
        eventually(path, async || self.pop(path).await).await
    }

    pub async fn ack(&self, message: &Value, status: &str) -> Value {
        let results = array(self.call("/api/v1/ack", ack_of(message, status)).await);
        assert_eq!(results.len(), 1);
        results[0].clone()
    }

    /// Acknowledges messages in one call, each with the status at its position.
    pub async fn ack_all(&self, messages: &[Value], statuses: &[&str]) -> Vec<Value> {
        assert_eq!(messages.len(), statuses.len());
        let items: Vec<_> =
            messages.iter().zip(statuses).map(|(message, status)| ack_of(message, status)).collect();
        let group = messages[0]["consumerGroup"].clone();
        array(self.call("/api/v1/ack/batch", json!({"acknowledgments": items, "consumerGroup": group})).await)
    }

    /// Moves the database's clock forward for every decision that Queen bases on it. A broker's own timers do not move,
    /// and neither does its ready list: pop by the name of the partition afterwards.
    pub async fn travel(&self, interval: &str) {
        let sql = format!(
            "create or replace function queen.now() returns timestamptz language sql volatile parallel safe
             as $$ select clock_timestamp() + interval '{interval}' $$"
        );
        self.database.client().await.batch_execute(&sql).await.expect("the clock can be replaced");
    }

    pub async fn sql(&self, statement: &str) {
        self.database.client().await.batch_execute(statement).await.expect("valid SQL");
    }
}

/// Makes the database fall behind: while this is held, nothing can be added to the log, so pushes wait.
pub struct Strain {
    _session: tokio_postgres::Client,
    _stuck: JoinSet<()>,
}

/// Flags with which a short wait counts as overload, and which let it last on a slow machine: statements that wait for
/// a lock wait until the strain ends.
pub const EASILY_STRAINED: [&str; 6] =
    ["--opq-patience", "100ms", "--db-lock-timeout", "100s", "--db-statement-timeout", "120s"];

impl Strain {
    /// Returns once these brokers defer pushes.
    pub async fn on(database: &Database, brokers: &[&str]) -> Self {
        let session = database.client().await;
        let mut stuck = JoinSet::new();
        session.batch_execute("begin; lock table queen.segments in share mode").await.expect("a lock");
        for (broker, url) in brokers.iter().enumerate() {
            // More than may be in flight at once.
            for n in 0..6 {
                let (url, partition) = ((*url).to_owned(), format!("stuck {broker} {n}"));
                stuck.spawn(async move {
                    push_to(&url, "strain", &partition).await;
                });
            }
            // A probe that is still executed waits, and blocks its partition.
            let mut probes = 0;
            eventually("it defers", async || {
                probes += 1;
                let partition = format!("probe {broker} {probes}");
                let push = push_to(url, "strain", &partition);
                let status = tokio::time::timeout(Duration::from_millis(500), push).await;
                (status == Ok(202)).then_some(())
            })
            .await;
        }
        Self { _session: session, _stuck: stuck }
    }

    /// Like [`Strain::on`] for acknowledgements: those of one queue wait, without a lock on a row. Returns the response
    /// to the first that was deferred, and its message.
    pub async fn on_acks(server: &Server) -> (Self, Reply, Value) {
        let taken = async |queue: &str, n: usize| {
            let partition = format!("p{n}");
            server.push(queue, &partition, &[json!(1), json!(2)]).await;
            server.pop_soon(&format!("/queue/{queue}/partition/{partition}")).await.messages[0].clone()
        };
        let (mut messages, mut probes) = (Vec::new(), Vec::new());
        for n in 0..6 {
            messages.push(taken("stuck", n).await);
        }
        for n in 0..20 {
            probes.push(taken("acks", n).await);
        }
        let session = server.database.client().await;
        let slow = "create function queen.slow() returns trigger language plpgsql as
                    $$ begin perform pg_advisory_xact_lock_shared(77); return new; end $$;
                    do $$ begin execute (
                        select 'create trigger slow before update on queen.consumers for each row when (old.partition_id in ('
                               || string_agg(quote_literal(p.id), ',') || ')) execute function queen.slow()'
                        from queen.partitions p join queen.queues q on q.id = p.queue_id where q.name = 'stuck');
                    end $$";
        session.batch_execute(slow).await.expect("a trigger");
        session.batch_execute("select pg_advisory_lock(77)").await.expect("a lock");
        let waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        let watcher = server.database.client().await;
        let mut stuck = JoinSet::new();
        for (n, message) in (1..).zip(messages) {
            let (http, url) = (server.http.clone(), format!("{}/api/v1/ack", server.url));
            stuck.spawn(async move {
                let _ = http.post(url).body(ack_of(&message, "completed").to_string()).send().await;
            });
            // One after the other, or they would share a flight. As many as may be in flight, and
            // some that wait behind them.
            let flies = async || {
                let flying: i64 = watcher.query_one(waiting, &[]).await.expect("an answer").get(0);
                (flying >= n.min(4)).then_some(())
            };
            eventually("it is stuck", flies).await;
        }
        let (reply, message) = eventually("it defers", async || {
            // An acknowledgement that is still executed waits behind those that are stuck.
            let message = probes.pop().expect("one of them is deferred");
            let ack = server.post("/api/v1/ack", ack_of(&message, "completed"));
            let reply = tokio::time::timeout(Duration::from_millis(500), ack).await.ok()?;
            (reply.status == 202).then_some((reply, message))
        })
        .await;
        (Self { _session: session, _stuck: stuck }, reply, message)
    }

    /// Ends the strain, and waits until the brokers execute pushes again.
    pub async fn off(self, brokers: &[&str]) {
        drop(self);
        for url in brokers {
            let executes = async || (push_to(url, "strain", "calm").await == 201).then_some(());
            eventually("it executes", executes).await;
        }
    }
}

/// The status of a push of one message.
async fn push_to(url: &str, queue: &str, partition: &str) -> u16 {
    let body = json!({"items": [{"queue": queue, "partition": partition, "payload": 1}]}).to_string();
    let request = reqwest::Client::new().post(format!("{url}/api/v1/push")).body(body);
    request.send().await.map_or(0, |response| response.status().as_u16())
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// Everything that the group `check` has not read yet in a partition of queue `q`. The broker
/// may be a process of its own.
pub async fn drained(url: &str, partition: &str) -> Vec<Value> {
    let path =
        format!("{url}/api/v1/pop/queue/q/partition/{partition}?batch=1000&autoAck=true&consumerGroup=check");
    let mut all = Vec::new();
    loop {
        let response = reqwest::get(&path).await.expect("the broker answers");
        if response.status().as_u16() == 204 {
            return all;
        }
        let body: Value = response.json().await.expect("a body");
        all.extend(array(body["messages"].clone()).into_iter().map(|message| message["data"].clone()));
    }
}

pub fn ack_of(message: &Value, status: &str) -> Value {
    json!({
        "transactionId": message["transactionId"],
        "partitionId": message["partitionId"],
        "leaseId": message["leaseId"],
        "consumerGroup": message["consumerGroup"],
        "status": status,
        "error": "because the test says so",
    })
}

pub fn array(value: Value) -> Vec<Value> {
    match value {
        Value::Array(values) => values,
        other => panic!("not an array: {other}"),
    }
}

pub fn numbers(range: std::ops::Range<usize>) -> Vec<Value> {
    range.map(Value::from).collect()
}

/// A name, encoded as a path segment.
pub fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric();
    name.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Tries until there is a value; panics with `what` after `PATIENCE`.
pub async fn eventually<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = attempt().await {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "did not happen: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
