//! The spool: pushes are accepted while the database is unavailable, and stored exactly once and in order afterwards.

use std::path::Path;
use std::time::Duration;

use queen_engine::{Config, Engine, Error, SpoolConfig};
use queen_protocol::{ErrorCode, PopRequest, PushStatus};
use queen_testkit::{Proxy, database};
use serde_json::json;
use tempfile::TempDir;
use tokio::time::timeout;

use crate::support::*;

pub fn spooling(url: &str, dir: &Path) -> Config {
    let spool =
        SpoolConfig { dir: dir.to_owned(), bytes_max: 1 << 20, file_bytes: 4_000, file_records: 1_000 };
    Config { spool: Some(spool), ..config(url) }
}

pub fn cut_off(proxy: &Proxy) {
    proxy.refuse(true);
    proxy.cut();
}

/// Waits until pushes go to the spool.
pub async fn buffered(engine: &Engine) {
    eventually("pushes are buffered", async || {
        let pushed = send(engine, &json!([{"queue": "probe", "payload": 1}])).await.ok()?;
        (pushed[0].status == PushStatus::Buffered).then_some(())
    })
    .await;
}

pub async fn emptied(engine: &Engine) {
    eventually("the spool is empty", async || (engine.spool_stats().unwrap().messages == 0).then_some(()))
        .await;
}

#[tokio::test]
async fn pushes_are_accepted_while_the_database_is_away_and_keep_their_order_and_ids() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let dir = TempDir::new().unwrap();
    let broker = engine_with(spooling(proxy.url(), dir.path())).await;
    push(&broker, "q", "p", 0..2).await;
    cut_off(&proxy);
    buffered(&broker).await;
    let away = push(&broker, "q", "p", 2..4).await;
    assert!(away.iter().all(|result| result.status == PushStatus::Buffered && !result.message_id.is_nil()));
    let fresh = push(&broker, "new", "p", 0..1).await;
    assert_eq!(fresh[0].status, PushStatus::Buffered, "a queue may be new");
    let refused = broker.pop(named("q", "p")).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Unavailable);
    proxy.refuse(false);
    push(&broker, "q", "p", 4..5).await;
    emptied(&broker).await;
    assert_eq!(push(&broker, "q", "p", 5..6).await[0].status, PushStatus::Queued);
    let messages = drain(&broker, "q", "p", "g").await;
    assert_eq!(messages.iter().map(Message::json).collect::<Vec<_>>(), numbers(0..6));
    assert_eq!([messages[2].id, messages[3].id], [away[0].message_id, away[1].message_id]);
    assert_eq!(drain(&broker, "new", "p", "g").await.len(), 1);
}

#[tokio::test]
async fn a_client_that_repeats_itself_during_an_outage_is_heard_once() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let dir = TempDir::new().unwrap();
    let broker = engine_with(spooling(proxy.url(), dir.path())).await;
    push_ids(&broker, "q", "p", &["before"]).await;
    cut_off(&proxy);
    buffered(&broker).await;
    push_ids(&broker, "q", "p", &["before", "x"]).await;
    push_ids(&broker, "q", "p", &["x", "y"]).await;
    proxy.refuse(false);
    emptied(&broker).await;
    let ids: Vec<_> = drain(&broker, "q", "p", "g").await.into_iter().map(|m| m.transaction_id).collect();
    assert_eq!(ids, ["before", "x", "y"]);
}

#[tokio::test]
async fn a_request_that_finds_the_database_back_halfway_goes_behind_its_own_beginning() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let dir = TempDir::new().unwrap();
    // Long enough to break the network before a flight and to restore it before the next one.
    let mut config = Config { linger: Duration::from_millis(300), ..spooling(proxy.url(), dir.path()) };
    config.spool.as_mut().unwrap().bytes_max = 16 << 20;
    let broker = engine_with(config).await;
    push(&broker, "q", "p", 0..1).await;
    let items = large("q", "p", 4);
    let network = async {
        eventually("the request waits for its flight", async || {
            broker.waiting().contains(&("push", 4)).then_some(())
        })
        .await;
        cut_off(&proxy);
        eventually("its first part cannot be sent", async || {
            (lane(&broker, "push").errors > 0).then_some(())
        })
        .await;
        proxy.refuse(false);
    };
    let (pushed, ()) = tokio::join!(send(&broker, &items), network);
    assert!(pushed.unwrap().iter().all(|result| result.status == PushStatus::Buffered));
    emptied(&broker).await;
    let found: Vec<_> = drain(&broker, "q", "p", "g").await.iter().map(|m| m.json()["n"].clone()).collect();
    assert_eq!(found, [json!(null), json!(0), json!(1), json!(2), json!(3)]);
}

/// The window counts from the time when a push was accepted, not from the time when the database was back.
#[tokio::test]
async fn a_client_that_repeats_itself_within_the_window_is_heard_once_however_long_the_outage() {
    let db = database().await;
    let sql = db.client().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let dir = TempDir::new().unwrap();
    let broker = engine_with(spooling(proxy.url(), dir.path())).await;
    configure(&broker, "q", json!({"dedupWindowSeconds": 3600})).await;
    push_ids(&broker, "q", "late", &["x"]).await;
    sql.batch_execute("update queen.segments set created_at = created_at - interval '61 minutes'")
        .await
        .unwrap();
    push_ids(&broker, "q", "p", &["x"]).await;
    cut_off(&proxy);
    buffered(&broker).await;
    push_ids(&broker, "q", "late", &["x"]).await;
    push_ids(&broker, "q", "p", &["x", "y"]).await;
    travel(&sql, "2 hours").await;
    proxy.refuse(false);
    emptied(&broker).await;
    let ids = async |partition| -> Vec<_> {
        drain(&broker, "q", partition, "g").await.into_iter().map(|message| message.transaction_id).collect()
    };
    assert_eq!(ids("p").await, ["x", "y"]);
    assert_eq!(ids("late").await, ["x", "x"], "its window was over when it came again");
}

/// After a process has died between the commit and the removal of the file, the file must not be stored again.
#[tokio::test]
async fn what_was_handed_in_is_not_handed_in_again_by_the_next_process() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let (dir, copy) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let broker = engine_with(spooling(proxy.url(), dir.path())).await;
    cut_off(&proxy);
    buffered(&broker).await;
    for n in 0..50 {
        push(&broker, "q", "p", n..n + 1).await;
    }
    copy_files(&dir.path().join("0"), &copy.path().join("0"));
    proxy.refuse(false);
    emptied(&broker).await;
    broker.stop().await;
    // The state of the disk before anything was stored.
    let next = engine_with(spooling(proxy.url(), copy.path())).await;
    assert!(next.spool_stats().unwrap().messages >= 50, "it found the files");
    emptied(&next).await;
    let data: Vec<_> = drain(&next, "q", "p", "g").await.iter().map(Message::json).collect();
    assert_eq!(data, numbers(0..50));
    cut_off(&proxy);
    buffered(&next).await;
    push(&next, "q", "p", 50..51).await;
    proxy.refuse(false);
    emptied(&next).await;
    let data: Vec<_> = drain(&next, "q", "p", "g").await.iter().map(Message::json).collect();
    assert_eq!(data, numbers(50..51));
}

fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[tokio::test]
async fn a_full_spool_turns_pushes_away_and_takes_them_again_when_it_is_empty() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let dir = TempDir::new().unwrap();
    let mut config = spooling(proxy.url(), dir.path());
    config.spool.as_mut().unwrap().bytes_max = 5_000;
    let broker = engine_with(config).await;
    cut_off(&proxy);
    buffered(&broker).await;
    let mut accepted = 0;
    let refused = loop {
        match send(&broker, &json!([{"queue": "q", "partition": "p", "payload": accepted}])).await {
            Ok(_) => accepted += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.code(), ErrorCode::RateLimited, "{refused}");
    assert!(refused.to_string().contains("spool is full"), "{refused}");
    proxy.refuse(false);
    emptied(&broker).await;
    push(&broker, "q", "p", accepted..accepted + 1).await;
    let data: Vec<_> = drain(&broker, "q", "p", "g").await.iter().map(Message::json).collect();
    assert_eq!(data, numbers(0..accepted + 1), "every push that was accepted is there");
}

#[tokio::test]
async fn maintenance_sends_pushes_to_the_spool_of_every_broker_until_it_is_over() {
    let db = database().await;
    let dir = TempDir::new().unwrap();
    let (a, b) = (
        engine_with(spooling(db.url(), dir.path())).await,
        engine_with(spooling(db.url(), dir.path())).await,
    );
    push(&a, "q", "p", 0..1).await;
    assert!(a.set_push_maintenance(true).await.unwrap().push);
    assert_eq!(push(&a, "q", "p", 1..2).await[0].status, PushStatus::Buffered);
    eventually("the other broker hears of it", async || b.maintenance().push.then_some(())).await;
    assert_eq!(push(&b, "q", "other", 0..1).await[0].status, PushStatus::Buffered);
    assert_eq!(data(&a, named("q", "p").group("early")).await, numbers(0..1), "pops go on");
    a.stop().await;
    let a = engine_with(spooling(db.url(), dir.path())).await;
    assert_eq!(push(&a, "q", "p", 2..3).await[0].status, PushStatus::Buffered, "it survives a restart");
    assert!(!a.set_push_maintenance(false).await.unwrap().push);
    emptied(&a).await;
    emptied(&b).await;
    let found: Vec<_> = drain(&a, "q", "p", "g").await.iter().map(Message::json).collect();
    assert_eq!(found, numbers(0..3));
    assert_eq!(drain(&a, "q", "other", "g").await.len(), 1);
}

#[tokio::test]
async fn pop_maintenance_lets_pops_find_nothing_and_pushes_go_on() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "p", 0..1).await;
    assert!(broker.set_pop_maintenance(true).await.unwrap().pop);
    let waiting = any("q").wait(Duration::from_secs(60));
    assert!(pop(&broker, waiting).await.is_none(), "at once, also for one that would wait");
    assert!(push(&broker, "q", "p", 1..2).await[0].ticket.is_none());
    broker.set_pop_maintenance(false).await.unwrap();
    assert_eq!(data(&broker, any("q").batch(2)).await, numbers(0..2));
    let refused = broker.set_push_maintenance(true).await;
    assert!(matches!(refused, Err(Error::Spool(_))), "there is nowhere to put pushes");
}

/// The push was sent and stored, and its response was lost. Spooling it as well would store it twice.
#[tokio::test]
async fn a_push_that_may_be_stored_is_not_spooled_as_well() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let dir = TempDir::new().unwrap();
    let patience = Duration::from_secs(1);
    let broker = engine_with(Config { retry_for: patience, ..spooling(proxy.url(), dir.path()) }).await;
    push(&broker, "q", "p", 0..1).await;
    proxy.cut_before_reply(Some(b"the last word"));
    let item = json!([{"queue": "q", "partition": "p", "payload": "the last word"}]);
    // This refuses only new connections; the push is sent on an open one.
    proxy.refuse(true);
    let others = async {
        while proxy.replies_withheld() == 0 {
            tokio::task::yield_now().await;
        }
        proxy.cut();
    };
    let (answer, ()) = tokio::join!(send(&broker, &item), others);
    let refused = answer.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Unavailable, "{refused}");
    proxy.cut_before_reply(None);
    proxy.refuse(false);
    emptied(&broker).await;
    let found = eventually("the database is back", async || {
        broker.pop(PopRequest { auto_ack: true, ..named("q", "p").batch(10) }).await.ok()?
    });
    assert_eq!(read(&found.await).data(), [json!(0), json!("the last word")]);
}

/// Messages behind a part with an unknown outcome would overtake it if the client sent the request again.
#[tokio::test]
async fn a_request_whose_beginning_may_be_stored_is_not_spooled_from_there_on() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let dir = TempDir::new().unwrap();
    let mut config = Config { retry_for: Duration::from_secs(1), ..spooling(proxy.url(), dir.path()) };
    config.spool.as_mut().unwrap().bytes_max = 16 << 20;
    let broker = engine_with(config).await;
    push(&broker, "q", "p", 0..1).await;
    proxy.cut_before_reply(Some(b"xxxxxxxx"));
    proxy.refuse(true);
    let others = async {
        while proxy.replies_withheld() == 0 {
            tokio::task::yield_now().await;
        }
        proxy.cut();
    };
    let items = large("q", "p", 3);
    let (answer, ()) = tokio::join!(send(&broker, &items), others);
    let refused = answer.expect_err("all of it has failed");
    assert_eq!(refused.code(), ErrorCode::Unavailable, "{refused}");
    proxy.cut_before_reply(None);
    proxy.refuse(false);
    emptied(&broker).await;
    let found = eventually("the database is back", async || {
        broker.pop(PopRequest { auto_ack: true, ..named("q", "p").batch(10) }).await.ok()?
    });
    let found: Vec<_> = read(&found.await).messages.iter().map(|m| m.json()["n"].clone()).collect();
    assert_eq!(found, [json!(null), json!(0)], "nothing of what came behind it");
}

/// Messages that are moved together lock all of their partitions.
#[tokio::test]
async fn a_locked_partition_of_the_spool_does_not_block_pushes_to_other_partitions() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let dir = TempDir::new().unwrap();
    let (a, b) = (engine_with(spooling(proxy.url(), dir.path())).await, engine(db.url()).await);
    for partition in ["free", "held"] {
        push(&b, "q", partition, 0..1).await;
    }
    cut_off(&proxy);
    buffered(&a).await;
    push(&a, "q", "free", 1..2).await;
    push(&a, "q", "held", 1..2).await;
    let sql = db.client().await;
    let lock = "begin; select from queen.heads h join queen.partitions p on p.id = h.partition_id
                where p.name = 'held' for update of h";
    sql.batch_execute(lock).await.unwrap();
    let watcher = db.client().await;
    proxy.refuse(false);
    let waits = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    eventually("the spool meets the lock", async || (number(&watcher, waits).await > 0).then_some(())).await;
    for n in 2..6 {
        let pushed = timeout(Duration::from_secs(3), push(&b, "q", "free", n..n + 1)).await;
        assert_eq!(pushed.expect("as soon as usual")[0].status, PushStatus::Queued);
    }
    sql.batch_execute("rollback").await.unwrap();
    emptied(&a).await;
    assert_eq!(drain(&b, "q", "free", "g").await.len(), 6);
    assert_eq!(drain(&b, "q", "held", "g").await.len(), 2);
}

#[tokio::test]
async fn what_a_broker_of_this_machine_has_left_behind_is_handed_in_by_another() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let dir = TempDir::new().unwrap();
    let first = engine_with(spooling(proxy.url(), dir.path())).await;
    let second = engine_with(spooling(db.url(), dir.path())).await;
    cut_off(&proxy);
    buffered(&first).await;
    push(&first, "q", "p", 0..5).await;
    first.stop().await;
    assert!(drain(&second, "q", "p", "early").await.is_empty());
    let found = eventually("it is handed in", async || {
        Some(drain(&second, "q", "p", "g").await).filter(|found| found.len() == 5)
    });
    assert_eq!(found.await.iter().map(Message::json).collect::<Vec<_>>(), numbers(0..5));
}

#[tokio::test]
async fn a_transaction_does_not_overtake_what_is_in_the_spool() {
    let db = database().await;
    let dir = TempDir::new().unwrap();
    let broker = engine_with(spooling(db.url(), dir.path())).await;
    broker.set_push_maintenance(true).await.unwrap();
    push(&broker, "q", "p", 0..1).await;
    let body = json!({"operations": [
        {"type": "push", "items": [{"queue": "q", "partition": "p", "payload": 1}]}]});
    let (outcome, _) = tokio::join!(transact(&broker, &body), broker.set_push_maintenance(false));
    assert!(outcome.success, "{outcome:?}");
    let data: Vec<_> = drain(&broker, "q", "p", "g").await.iter().map(Message::json).collect();
    assert_eq!(data, numbers(0..2));
}

#[tokio::test]
async fn a_failing_disk_is_reported_and_loses_no_accepted_message() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let dir = TempDir::new().unwrap();
    let mut config = spooling(proxy.url(), dir.path());
    // Every request starts a new file.
    config.spool.as_mut().unwrap().file_records = 1;
    let broker = engine_with(config).await;
    cut_off(&proxy);
    buffered(&broker).await;
    push(&broker, "q", "p", 0..1).await;
    let (folder, away) = (dir.path().join("0"), dir.path().join("away"));
    std::fs::rename(&folder, &away).unwrap();
    let refused = send(&broker, &json!([{"queue": "q", "partition": "p", "payload": 1}])).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Unavailable);
    assert!(refused.to_string().contains("spool cannot be written"), "{refused}");
    assert!(!broker.spool_stats().unwrap().healthy);
    std::fs::rename(&away, &folder).unwrap();
    push(&broker, "q", "p", 2..3).await;
    assert!(broker.spool_stats().unwrap().healthy);
    proxy.refuse(false);
    emptied(&broker).await;
    let data: Vec<_> = drain(&broker, "q", "p", "g").await.iter().map(Message::json).collect();
    assert_eq!(data, [json!(0), json!(2)]);
}
