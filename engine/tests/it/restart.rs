//! Outages under traffic: of PostgreSQL, of the network, of the engine itself. Everything
//! that was confirmed stays true.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use queen_engine::{Config, Engine};
use queen_protocol::AckStatus;
use queen_testkit::{Proxy, cluster, database};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::support::{Ask, ack_of, any, config, drain, engine, engine_with, eventually, pop, push, send};

const PRODUCERS: usize = 4;

/// Producers that push numbered messages in sequence, and consumers that read them, until stopped.
struct Traffic {
    stop: Arc<AtomicBool>,
    broker: watch::Sender<Engine>,
    pushed: Arc<AtomicUsize>,
    popped: Arc<AtomicUsize>,
    producers: JoinSet<(usize, Vec<(usize, bool)>)>,
    consumers: JoinSet<()>,
}

impl Traffic {
    fn start(broker: &Engine) -> Self {
        let (sender, _) = watch::channel(broker.clone());
        let mut traffic = Self {
            stop: Arc::default(),
            broker: sender,
            pushed: Arc::default(),
            popped: Arc::default(),
            producers: JoinSet::new(),
            consumers: JoinSet::new(),
        };
        for producer in 0..PRODUCERS {
            let (stop, broker) = (traffic.stop.clone(), traffic.broker.subscribe());
            let pushed = traffic.pushed.clone();
            traffic.producers.spawn(async move {
                let mut answers = Vec::new();
                while !stop.load(Ordering::SeqCst) {
                    let n = answers.len();
                    // Two producers share a partition. One sends ids, the other one lets the engine generate them.
                    let mut item =
                        json!({"queue": "q", "partition": format!("p{}", producer / 2), "payload": [producer, n]});
                    if producer % 2 == 0 {
                        item["transactionId"] = json!(format!("{producer}-{n}"));
                    }
                    let now = broker.borrow().clone();
                    let accepted = send(&now, &json!([item])).await.is_ok();
                    answers.push((n, accepted));
                    pushed.fetch_add(usize::from(accepted), Ordering::SeqCst);
                    // A stopped engine refuses at once, so the task that starts its successor must get a turn.
                    tokio::task::yield_now().await;
                }
                (producer, answers)
            });
        }
        for _ in 0..2 {
            let (stop, broker) = (traffic.stop.clone(), traffic.broker.subscribe());
            let popped = traffic.popped.clone();
            traffic.consumers.spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let now = broker.borrow().clone();
                    let request = any("q").group("live").batch(10).wait(Duration::from_millis(200));
                    let Ok(Some(body)) = now.pop(request).await else {
                        tokio::task::yield_now().await;
                        continue;
                    };
                    let answer = crate::support::read(&body);
                    popped.fetch_add(answer.messages.len(), Ordering::SeqCst);
                    let last = answer.messages.last().expect("an answer is not empty");
                    let item = ack_of(last, AckStatus::Completed);
                    // Like a client: an ack that the engine refuses goes to its successor.
                    loop {
                        let now = broker.borrow().clone();
                        if now.ack(vec![item.clone()]).await.is_ok() || stop.load(Ordering::SeqCst) {
                            break;
                        }
                        tokio::task::yield_now().await;
                    }
                }
            });
        }
        traffic
    }

    /// Waits until this many more pushes were confirmed and messages were delivered.
    async fn flows(&self, messages: usize) {
        let (pushed, popped) =
            (self.pushed.load(Ordering::SeqCst) + messages, self.popped.load(Ordering::SeqCst) + messages);
        eventually("traffic flows", async || {
            let flowing =
                self.pushed.load(Ordering::SeqCst) >= pushed && self.popped.load(Ordering::SeqCst) >= popped;
            flowing.then_some(())
        })
        .await;
    }

    /// Ends the traffic, and compares the log with the responses.
    async fn check(mut self, fresh: &Engine) {
        self.stop.store(true, Ordering::SeqCst);
        while self.consumers.join_next().await.is_some() {}
        let answers: HashMap<usize, Vec<(usize, bool)>> =
            self.producers.join_all().await.into_iter().collect();
        let mut stored: HashMap<usize, Vec<usize>> = HashMap::new();
        for partition in 0..PRODUCERS / 2 {
            for message in drain(fresh, "q", &format!("p{partition}"), "check").await {
                let Value::Array(pair) = message.json() else { panic!("a pair") };
                let number = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
                stored.entry(number(&pair[0])).or_default().push(number(&pair[1]));
            }
        }
        for (producer, answers) in answers {
            let stored = stored.remove(&producer).unwrap_or_default();
            assert!(
                stored.is_sorted_by(|a, b| a < b),
                "producer {producer}: out of order or twice: {stored:?}"
            );
            for (n, accepted) in answers {
                assert!(!accepted || stored.contains(&n), "producer {producer} was told that {n} is stored");
            }
        }
    }
}

/// Patient enough for a restart, so that callers do not notice it.
fn patient(url: &str) -> Config {
    Config { retry_for: Duration::from_secs(20), ..config(url) }
}

#[tokio::test]
async fn what_was_answered_survives_a_crash_of_postgresql_and_traffic_goes_on() {
    let mut cluster = cluster().await;
    let broker = engine_with(patient(&cluster.url())).await;
    let traffic = Traffic::start(&broker);
    traffic.flows(50).await;
    cluster.restart_immediate().await;
    traffic.flows(50).await;
    cluster.kill9().await;
    cluster.start().await;
    traffic.flows(50).await;
    cluster.stop().await;
    cluster.start().await;
    traffic.flows(50).await;
    traffic.check(&engine(&cluster.url()).await).await;
}

/// The situation after a failover to a standby that did not have the end of the log.
#[tokio::test]
async fn numbers_of_partitions_that_a_new_server_has_given_away_again_are_looked_up_again() {
    let mut cluster = cluster().await;
    let broker = engine(&cluster.url()).await;
    for queue in ["a", "b"] {
        push(&broker, queue, queue, 0..1).await;
    }
    let sql = cluster.client().await;
    let number = "select p.number from queen.partitions p where p.name = 'a'";
    let number: i64 = sql.query_one(number, &[]).await.unwrap().get(0);
    assert_eq!(broker.owners_of_numbers(&[number]).await.unwrap(), [Some("a".into())]);
    let swap = "update queen.partitions p set queue_id = q.id from queen.queues q where q.name <> p.name";
    assert_eq!(sql.execute(swap, &[]).await.unwrap(), 2);
    assert_eq!(broker.owners_of_numbers(&[number]).await.unwrap(), [Some("a".into())], "it is remembered");
    cluster.restart_immediate().await;
    eventually("it is looked up again", async || {
        let _ = send(&broker, &json!([{"queue": "probe", "payload": 1}])).await;
        let owners = broker.owners_of_numbers(&[number]).await.ok()?;
        (owners == [Some("b".into())]).then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_was_answered_survives_restarts_of_the_engine() {
    let db = database().await;
    let mut broker = engine(db.url()).await;
    let traffic = Traffic::start(&broker);
    for _ in 0..3 {
        traffic.flows(30).await;
        let next = engine(db.url()).await;
        let old = std::mem::replace(&mut broker, next);
        // Traffic reaches the stopping engine first, and its successor afterwards.
        let (stopped, ()) = tokio::join!(tokio::time::timeout(Duration::from_secs(10), old.stop()), async {
            tokio::task::yield_now().await;
            traffic.broker.send_replace(broker.clone());
        });
        stopped.expect("an engine stops while it is used");
    }
    traffic.flows(30).await;
    traffic.check(&engine(db.url()).await).await;
}

#[tokio::test]
async fn an_engine_stops_during_calls() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "p", 0..5).await;
    let popped = pop(&broker, any("q").batch(5)).await.unwrap();
    let mut callers = JoinSet::new();
    for caller in 0..6 {
        let (broker, message) = (broker.clone(), popped.messages[0].clone());
        callers.spawn(async move {
            // Whatever the callers get, late ones must not keep the engine running.
            loop {
                match caller % 3 {
                    0 => drop(broker.ack(vec![ack_of(&message, AckStatus::Completed)]).await),
                    1 => drop(send(&broker, &json!([{"queue": "q", "partition": "p", "payload": 9}])).await),
                    _ => drop(broker.pop(any("q").group("g")).await),
                }
                tokio::task::yield_now().await;
            }
        });
    }
    let ended = tokio::time::timeout(Duration::from_secs(4), broker.stop()).await;
    assert!(ended.is_ok(), "it is still running");
}

#[tokio::test]
async fn pushes_and_pops_go_on_over_connections_that_are_cut() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let broker = engine_with(patient(proxy.url())).await;
    let traffic = Traffic::start(&broker);
    for _ in 0..8 {
        traffic.flows(20).await;
        proxy.cut();
    }
    for pattern in ["p0", "p1", "live"] {
        proxy.cut_before_reply(Some(pattern.as_bytes()));
        traffic.flows(20).await;
    }
    traffic.check(&engine(db.url()).await).await;
}

#[tokio::test]
async fn pushes_and_pops_go_on_after_a_network_that_swallows_everything() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    // A connection without a response for this time plus 5 s counts as lost.
    let broker = engine_with(patient(proxy.url())).await;
    let traffic = Traffic::start(&broker);
    traffic.flows(20).await;
    for _ in 0..3 {
        proxy.black_hole(true);
        // Until all producers are stuck in it.
        eventually("the engine is stuck", async || (broker.stats().connections_busy > 1).then_some(())).await;
        proxy.cut();
        proxy.black_hole(false);
        traffic.flows(20).await;
    }
    proxy.black_hole(true);
    eventually("the engine is stuck", async || (broker.stats().connections_busy > 1).then_some(())).await;
    proxy.black_hole(false);
    traffic.flows(20).await;
    proxy.delay(Duration::from_millis(20));
    traffic.flows(10).await;
    proxy.delay(Duration::ZERO);
    traffic.check(&engine(db.url()).await).await;
}

#[tokio::test]
async fn an_engine_without_its_database_says_so_and_recovers_by_itself() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let settings = Config {
        retry_for: Duration::from_millis(300),
        connect_timeout: Duration::from_secs(1),
        ..config(proxy.url())
    };
    let broker = engine_with(settings).await;
    assert!(broker.ready().await);
    send(&broker, &json!([{"queue": "q", "partition": "p", "payload": 0}])).await.unwrap();
    proxy.refuse(true);
    proxy.cut();
    eventually("it says so", async || (!broker.ready().await).then_some(())).await;
    let pushed = send(&broker, &json!([{"queue": "q", "partition": "p", "payload": 1}])).await;
    assert_eq!(pushed.unwrap_err().code(), queen_protocol::ErrorCode::Unavailable);
    let popped = broker.pop(any("q")).await;
    assert_eq!(popped.unwrap_err().code(), queen_protocol::ErrorCode::Unavailable);
    proxy.refuse(false);
    eventually("it is ready again", async || broker.ready().await.then_some(())).await;
    send(&broker, &json!([{"queue": "q", "partition": "p", "payload": 2}])).await.unwrap();
    let popped = pop(&broker, any("q").batch(10)).await.unwrap();
    assert_eq!(popped.data(), [0, 2]);
}

#[tokio::test]
async fn a_host_that_never_answers_does_not_keep_from_the_next() {
    let db = database().await;
    let silent = Proxy::to_postgres(db.url()).await;
    silent.black_hole(true);
    let parsed = |url: &str| url.parse::<tokio_postgres::Config>().unwrap();
    let (first, second) = (parsed(silent.url()), parsed(db.url()));
    let host = |config: &tokio_postgres::Config| match &config.get_hosts()[0] {
        tokio_postgres::config::Host::Tcp(name) => name.clone(),
        tokio_postgres::config::Host::Unix(path) => path.to_str().unwrap().to_owned(),
    };
    let port = |config: &tokio_postgres::Config| config.get_ports().first().copied().unwrap_or(5432);
    let both = format!(
        "user={} dbname={} host={},{} port={},{} target_session_attrs=read-write",
        second.get_user().unwrap(),
        second.get_dbname().unwrap(),
        host(&first),
        host(&second),
        port(&first),
        port(&second)
    );
    let broker =
        engine_with(Config { connect_timeout: Duration::from_secs(1), connections: 2, ..config(&both) })
            .await;
    push(&broker, "q", "p", 0..1).await;
    assert_eq!(drain(&broker, "q", "p", "g").await.len(), 1);
}
