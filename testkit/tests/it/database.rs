//! Tests of databases and clusters.

use queen_testkit::{Database, cluster, empty_database};

#[tokio::test]
async fn a_database_is_empty_and_ones_own() {
    let database = empty_database().await;
    let row = database.client().await.query_one("select current_database()::text", &[]).await.unwrap();
    assert_eq!(row.get::<_, &str>(0), database.name());
}

#[tokio::test]
async fn databases_on_one_cluster_do_not_meet_and_are_dropped() {
    let cluster = cluster().await;
    let url = cluster.maintenance_url();
    let (one, two) = tokio::join!(Database::create(&url), Database::create(&url));
    let still_open = one.client().await;
    still_open.batch_execute("create table t ()").await.unwrap();
    two.client().await.batch_execute("create table t ()").await.unwrap();

    drop(one);
    let count = "select count(*) from pg_database where datname like 'queen_test_%'";
    let count = async || cluster.client().await.query_one(count, &[]).await.unwrap().get::<_, i64>(0);
    assert_eq!(count().await, 1);
    drop(two);
    assert_eq!(count().await, 0);
}

#[tokio::test]
async fn a_cluster_survives_whatever_a_test_does_to_it() {
    let mut cluster = cluster().await;
    cluster.client().await.batch_execute("create table mark (at int)").await.unwrap();
    for at in 1..=3 {
        let before = cluster.pid();
        match at {
            1 => cluster.stop().await,
            2 => cluster.kill9().await,
            _ => cluster.restart_immediate().await,
        }
        if at < 3 {
            assert!(queen_testkit::connect(&cluster.url()).await.is_err());
            cluster.start().await;
        }
        assert_ne!(cluster.pid(), before);
        cluster.client().await.execute("insert into mark values ($1)", &[&at]).await.unwrap();
    }
    let row = cluster.client().await.query_one("select sum(at) from mark", &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 6);
}
