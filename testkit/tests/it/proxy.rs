//! Each way the network can break, as seen by a client.

use std::time::{Duration, Instant};

use queen_testkit::{Database, Proxy, connect, database};
use tokio::time::timeout;
use tokio_postgres::Client;

struct Setup {
    database: Database,
    proxy: Proxy,
    client: Client,
}

async fn setup() -> Setup {
    let database = database().await;
    database.client().await.batch_execute("create table t (name text)").await.unwrap();
    let proxy = Proxy::to_postgres(database.url()).await;
    let client = connect(proxy.url()).await.unwrap();
    Setup { database, proxy, client }
}

impl Setup {
    /// What the server stores, whatever the client believes.
    async fn names(&self) -> Vec<String> {
        let rows = self.database.client().await.query("select name from t order by name", &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }
}

async fn works(client: &Client) -> bool {
    client.simple_query("select 1").await.is_ok()
}

#[tokio::test]
async fn a_cut_ends_open_connections_and_only_those() {
    let Setup { database: _database, proxy, client } = setup().await;
    assert!(works(&client).await);
    proxy.cut();
    assert!(!works(&client).await);
    assert!(works(&connect(proxy.url()).await.unwrap()).await);
}

#[tokio::test]
async fn a_refusing_proxy_keeps_what_it_has() {
    let Setup { database: _database, proxy, client } = setup().await;
    proxy.refuse(true);
    assert!(connect(proxy.url()).await.is_err());
    assert!(works(&client).await);
    proxy.refuse(false);
    assert!(connect(proxy.url()).await.is_ok());
}

#[tokio::test]
async fn a_delay_holds_both_directions() {
    let Setup { database: _database, proxy, client } = setup().await;
    proxy.delay(Duration::from_millis(100));
    let began = Instant::now();
    assert!(works(&client).await);
    assert!(began.elapsed() >= Duration::from_millis(200));
}

#[tokio::test]
async fn a_black_hole_swallows_nothing_for_good() {
    let Setup { database: _database, proxy, client } = setup().await;
    proxy.black_hole(true);
    let mut query = Box::pin(works(&client));
    assert!(timeout(Duration::from_millis(200), &mut query).await.is_err());
    proxy.black_hole(false);
    assert!(query.await);
}

#[tokio::test]
async fn a_black_hole_can_be_cut() {
    let Setup { database: _database, proxy, client } = setup().await;
    proxy.black_hole(true);
    let (answered, ()) = tokio::join!(works(&client), async { proxy.cut() });
    assert!(!answered);
}

#[tokio::test]
async fn a_withheld_reply_is_committed_on_the_server_and_unknown_to_the_client() {
    let setup = setup().await;
    let insert = setup.client.prepare("insert into t values ($1)").await.unwrap();
    setup.proxy.cut_before_reply(None);
    assert!(setup.client.execute(&insert, &[&"lost answer"]).await.is_err());
    assert_eq!(setup.proxy.replies_withheld(), 1);
    assert_eq!(setup.names().await, ["lost answer"]);
    // The fault applied once.
    let client = connect(setup.proxy.url()).await.unwrap();
    client.execute("insert into t values ('second')", &[]).await.unwrap();
}

#[tokio::test]
async fn a_pattern_picks_its_request_among_others_in_the_same_pipe() {
    let setup = setup().await;
    let client = &setup.client;
    let other = connect(setup.proxy.url()).await.unwrap();
    let insert = client.prepare("insert into t values ($1)").await.unwrap();
    setup.proxy.cut_before_reply(Some(b"needle"));
    assert!(works(&other).await);
    let first = client.execute(&insert, &[&"a"]);
    let second = client.execute(&insert, &[&"b"]);
    let third = client.execute(&insert, &[&"c needle"]);
    let (first, second, third) = tokio::join!(first, second, third);
    assert!(first.is_ok() && second.is_ok() && third.is_err());
    assert_eq!(setup.names().await, ["a", "b", "c needle"]);
    assert!(works(&other).await);
}
