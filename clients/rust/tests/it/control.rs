//! The control plane: every response can be parsed, and every change takes effect.

use std::time::{Duration, SystemTime};

use queen_client::admin::{Position, QueueOptions};
use queen_client::{ErrorKind, Queen};
use serde_json::json;

use crate::stub::Stub;
use crate::support::{PATIENCE, Site};

#[tokio::test]
async fn queues_and_groups_can_be_looked_at_moved_and_removed() {
    let site = Site::start().await;
    let (admin, queue) = (site.queen.admin(), site.queen.queue("shop.orders"));
    let options = QueueOptions { lease_time: Some(77), retry_limit: Some(0), ..QueueOptions::default() };
    let configured = admin.configure("shop.orders", &options).await.unwrap();
    assert_eq!((configured.options.lease_time, configured.queue.as_str()), (Some(77), "shop.orders"));
    queue.partition("a b/c").push_all(&[1, 2, 3]).await.unwrap();

    let list = admin.queues().search("orders").namespace("shop").limit(10).await.unwrap();
    assert_eq!((list.queues.len(), list.queues[0].messages.total), (1, 3));
    let detail = admin.queue("shop.orders").await.unwrap();
    assert_eq!((detail.partitions[0].name.as_str(), detail.totals.pending), ("a b/c", 3));
    assert_eq!(admin.queue("unknown").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(admin.partitions().queue("shop.orders").await.unwrap().partitions[0].pending, 3);
    assert_eq!(admin.overview().await.unwrap().queues, 1);

    let found = site.queen.discover("shop", "orders").group("g").pop::<u32>().await.unwrap();
    found[0].ack().await.unwrap();
    assert_eq!(admin.depth("shop.orders", "g").await.unwrap().pending, 2);
    assert!(admin.groups().await.unwrap().iter().any(|group| group.name == "g"));
    assert_eq!(admin.group("g").await.unwrap()["shop.orders"].partitions[0].offset_lag, 2);
    let lagging = admin.lagging().min_lag_seconds(0).await.unwrap();
    let ours = lagging.iter().find(|one| one.consumer_group == "g" && one.partition_name == "a b/c");
    assert_eq!(ours.map(|one| one.offset_lag), Some(2), "{lagging:?}");
    let forecast = admin.forecast_seek("g", "shop.orders", Position::End).await.unwrap();
    assert_eq!((forecast.messages_replayed, forecast.messages_skipped), (0, 2));
    let forecast = admin.forecast_skip_partition("g", "shop.orders", "a b/c").await.unwrap();
    assert_eq!((forecast.partitions_updated, forecast.messages_skipped), (1, 2));
    assert_eq!(admin.depth("shop.orders", "g").await.unwrap().pending, 2);
    assert!(admin.skip_partition("g", "shop.orders", "a b/c").await.unwrap().updated);
    assert_eq!(admin.depth("shop.orders", "g").await.unwrap().pending, 0);
    let forecast = admin.forecast_seek("g", "shop.orders", Position::Beginning).await.unwrap();
    assert_eq!((forecast.partitions_updated, forecast.messages_replayed), (1, 3));
    assert_eq!(
        admin
            .seek("g", "shop.orders", Position::Time(SystemTime::UNIX_EPOCH))
            .await
            .unwrap()
            .partitions_updated,
        1
    );
    assert_eq!(admin.depth("shop.orders", "g").await.unwrap().pending, 3);
    assert_eq!(admin.subscribe_from("g", SystemTime::UNIX_EPOCH).await.unwrap(), 1);
    assert_eq!(admin.delete_group_in("g", "shop.orders").await.unwrap(), 1);
    assert_eq!(admin.delete_group("g").await.unwrap(), 0);
    assert_eq!(admin.clear_queue("shop.orders", Some("a b/c")).await.unwrap(), 3);
    assert!(admin.delete_queue("shop.orders").await.unwrap());
    assert!(!admin.delete_queue("shop.orders").await.unwrap());
}

#[tokio::test]
async fn a_broker_that_would_move_the_group_is_not_asked_what_a_seek_would_do() {
    let mut stub = Stub::start().await;
    let admin = Queen::connect(&stub.url).unwrap().admin();
    let answered = async {
        let asked = stub.next().await;
        assert_eq!(asked.line, "GET /health");
        asked.answer(200, &json!({"status": "healthy", "version": "0.1.0"}));
    };
    let (forecast, ()) = tokio::join!(admin.forecast_seek("g", "q", Position::End), answered);
    let error = forecast.unwrap_err();
    assert!(error.kind() == ErrorKind::BadUse && error.to_string().contains("0.1.0"), "{error}");
}

#[tokio::test]
async fn single_messages_can_be_followed_buried_replayed_and_deleted() {
    let site = Site::start().await;
    let (admin, queue) = (site.queen.admin(), site.queen.queue("q"));
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let pushed = queue.push(&json!({"a": 1})).transaction_id("t/1").traceparent(parent).await.unwrap();
    let partition = pushed.partition_id.unwrap();
    queue.push(&2).transaction_id("t2").await.unwrap();

    assert_eq!(admin.messages().queue("q").from(SystemTime::UNIX_EPOCH).await.unwrap().total, 2);
    let detail = admin.message(&partition, "t/1").await.unwrap();
    assert_eq!((detail.message.data, detail.message.id), (json!({"a": 1}), pushed.message_id));
    assert_eq!(admin.life(&partition, "t/1").await.unwrap().push["traceparent"], parent);

    let message = queue.group("g").pop::<serde_json::Value>().await.unwrap().remove(0);
    assert_eq!(message.traceparent(), Some(parent));
    message.trace(&json!({"step": "looked"})).name("audit").event("note").await.unwrap();
    let traces = site.queen.traces();
    assert_eq!(traces.of(&message).await.unwrap().traces[0].data, json!({"step": "looked"}));
    assert_eq!(traces.by_name("audit").await.unwrap().traces[0].transaction_id.as_deref(), Some("t/1"));
    assert_eq!(traces.names().await.unwrap().names[0].name, "audit");
    assert!(message.renew(Duration::from_secs(600)).await.unwrap().expires_at.is_some());
    message.ack().await.unwrap();

    let buried = admin.bury_message(&partition, "t2", "g", "by hand").await.unwrap();
    assert_eq!(buried.consumer_group, "g");
    let page = queue.group("g").dead_letters().list::<u32>().error("by hand").limit(5).await.unwrap();
    assert_eq!((page.total, page.letters[0].data), (1, 2));
    assert_eq!(admin.replay_message(&partition, "t2").await.unwrap().queue, "q");
    admin.delete_message(&partition, "t/1").await.unwrap();
    assert_eq!(admin.delete_message(&partition, "no such").await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn dead_letters_can_be_counted_pushed_again_and_the_replay_be_followed() {
    let site = Site::start().await;
    let queue = site.queen.queue("q");
    queue.partition("p").push_all(&[1, 2]).await.unwrap();
    for message in queue.group("g").pop::<u32>().batch(2).await.unwrap() {
        message.dead_letter("no").await.unwrap();
    }
    let letters = queue.group("g").dead_letters();
    assert_eq!(letters.redrive().error("nothing like it").dry_run().await.unwrap(), 0);
    assert_eq!(letters.clone().to(SystemTime::UNIX_EPOCH).redrive().dry_run().await.unwrap(), 0);
    let redrive = letters.redrive().per_second(1_000).await.unwrap().finished(PATIENCE).await.unwrap();
    assert_eq!((redrive.done, redrive.failed), (2, 0));
    let admin = site.queen.admin();
    assert_eq!(admin.redrives(10, 0).await.unwrap().len(), 1);
    assert_eq!(admin.redrive(&redrive.id).await.unwrap().refresh().await.unwrap().done, 2);
    assert_eq!(queue.group("g").pop::<u32>().batch(10).await.unwrap().len(), 2);
}

#[tokio::test]
async fn brokers_tell_how_they_are_and_take_switches() {
    let site = Site::start().await;
    let admin = site.queen.admin();
    assert_eq!(admin.health().await.unwrap().status, "healthy");
    assert!(admin.status().await.unwrap()["queues"].is_array());
    assert!(admin.metrics().await.unwrap()["uptime"].is_number());
    assert!(admin.prometheus().await.unwrap().contains("queen_uptime_seconds"));
    assert!(admin.doctor().await.unwrap().reachable);
    assert!(admin.set_maintenance(true).await.unwrap().maintenance_mode);
    assert_eq!(site.queen.queue("q").push(&1).await.unwrap().status.word(), "buffered");
    assert!(admin.maintenance().await.unwrap().maintenance_mode);
    assert!(!admin.set_maintenance(false).await.unwrap().maintenance_mode);
    assert!(admin.set_pop_maintenance(true).await.unwrap().pop_maintenance_mode);
    assert!(!admin.set_pop_maintenance(false).await.unwrap().pop_maintenance_mode);
    assert_eq!(site.queen.queue("q").pop::<u32>().wait(PATIENCE).await.unwrap().len(), 1);
    assert!(admin.operations().status("pending").queue("q").await.unwrap().operations.is_empty());
    assert_eq!(admin.operation_stats().await.unwrap().system_health.queue_depth, 0);
    let unknown = "01a1dee1-7461-7d02-8a4b-3f1c5f2b8e01";
    assert_eq!(admin.operation(unknown).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(admin.cancel_operation(unknown).await.is_err() && admin.retry_operation(unknown).await.is_err());
}
