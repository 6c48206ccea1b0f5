//! Synchronous standbys: nothing that only the primary has is confirmed.

use queen_protocol::AckStatus;
use queen_testkit::{Cluster, cluster};
use tokio_postgres::Client;

use crate::support::{Ask, ack_items, any, data, engine, eventually, leaseless, pop, push, read};

/// Makes commits wait for a standby of this name. There is no standby, so they wait forever; with an
/// empty name, they do not wait.
async fn wait_for(sql: &Client, standby: &str) {
    sql.batch_execute(&format!("alter system set synchronous_standby_names = '{standby}'")).await.unwrap();
    sql.batch_execute("select pg_reload_conf()").await.unwrap();
}

/// The session of a commit that waits, other than `not`.
async fn waiting(sql: &Client, not: i32) -> i32 {
    eventually("a commit waits for the standby", async || {
        let query = "select pid from pg_stat_activity
            where wait_event = 'SyncRep' and application_name = 'queen' and pid <> $1 and query like '%queen.push%'";
        sql.query_opt(query, &[&not]).await.unwrap().map(|row| row.get(0))
    })
    .await
}

/// Returns once commits do wait, because settings are reloaded in the background.
async fn waits(cluster: &Cluster, sql: &Client) {
    eventually("commits wait for the standby", async || {
        let probe = cluster.client().await;
        let pid: i32 = probe.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
        let is_waiting = eventually("the probe waits or is done", async || {
            let query = "select wait_event is not distinct from 'SyncRep' from pg_stat_activity
                where pid = $1 and (wait_event = 'SyncRep' or state = 'idle' and query like '%probe%')";
            sql.query_opt(query, &[&pid]).await.unwrap().map(|row| row.get::<_, bool>(0))
        });
        let commit = async {
            let _ = probe.batch_execute("select pg_logical_emit_message(true, 'probe', '')").await;
            std::future::pending::<()>().await;
        };
        let waits = tokio::select! {
            () = commit => false,
            waits = is_waiting => waits,
        };
        sql.query_one("select pg_terminate_backend($1)", &[&pid]).await.unwrap();
        waits.then_some(())
    })
    .await;
}

async fn session(cluster: &Cluster) -> Client {
    let sql = cluster.client().await;
    // Commits of this session must not wait.
    sql.batch_execute("set synchronous_commit = local").await.unwrap();
    sql
}

#[tokio::test]
async fn a_commit_whose_wait_for_the_standby_was_canceled_is_not_reported_as_success() {
    let cluster = cluster().await;
    let sql = session(&cluster).await;
    let broker = engine(&cluster.url()).await;
    push(&broker, "orders", "p", 0..1).await;
    wait_for(&sql, "nobody").await;
    waits(&cluster, &sql).await;
    let pushed = push(&broker, "orders", "p", 1..2);
    tokio::pin!(pushed);
    let cancelled = async {
        let first = waiting(&sql, 0).await;
        sql.query_one("select pg_cancel_backend($1)", &[&first]).await.unwrap();
        // To find out whether the push is stored, the engine sends another commit, which waits as well.
        waiting(&sql, first).await
    };
    tokio::select! {
        _ = &mut pushed => panic!("answered, although no standby knows of it"),
        _ = cancelled => {}
    }
    wait_for(&sql, "").await;
    pushed.await;
    assert_eq!(data(&broker, any("orders").batch(10)).await, [0, 1]);
}

/// A standby that was not synchronous may take over without the last messages, and reuse their offsets.
#[tokio::test]
async fn what_a_broker_remembers_of_a_log_that_was_lost_is_not_delivered() {
    let cluster = cluster().await;
    let sql = cluster.client().await;
    let broker = engine(&cluster.url()).await;
    push(&broker, "orders", "p", 7..8).await;
    // The same offset on another server, with another message at it.
    sql.batch_execute(
        "update queen.segments set frames = replace(frames, '\"payload\":7', '\"payload\":8');
         select pg_stat_reset_shared('bgwriter');
         select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'queen'",
    )
    .await
    .unwrap();
    let delivered = eventually("the broker is back", async || {
        let answer = broker.pop(any("orders")).await.ok()??;
        Some(read(&answer).data())
    })
    .await;
    assert_eq!(delivered, [8]);
}

#[tokio::test]
async fn an_ack_of_what_was_lost_moves_nothing() {
    let cluster = cluster().await;
    let sql = cluster.client().await;
    let broker = engine(&cluster.url()).await;
    push(&broker, "orders", "p", 0..2).await;
    let lost = pop(&broker, any("orders").batch(2)).await.unwrap();
    // The state of a standby that had received none of this.
    sql.batch_execute(
        "delete from queen.segments;
         update queen.heads set head = 0;
         update queen.consumers set cursor = 0, lease_id = null, lease_until = null, lease_end = null;
         select pg_stat_reset_shared('bgwriter');
         select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'queen'",
    )
    .await
    .unwrap();
    let late = leaseless(&lost.messages[1], AckStatus::Completed);
    let results = ack_items(&broker, vec![late]).await;
    assert!(!results[0].success, "{results:?}");
    push(&broker, "orders", "p", 5..8).await;
    // The broker believes in its old lease until it has examined the log.
    let delivered =
        eventually("what was pushed since comes", async || pop(&broker, any("orders").batch(9)).await);
    assert_eq!(delivered.await.data(), [5, 6, 7]);
}
