//! Messages in transit: payloads, tokens, timeouts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use queen_client::admin::QueueOptions;
use queen_client::{Error, ErrorKind, Item, Message, Queen, QueuedOperation, Taken};
use serde_json::json;
use serde_json::value::RawValue;

use crate::stub::{Nobody, Stub};
use crate::support::{PATIENCE, Site};

fn texts(messages: &[Message<Box<RawValue>>]) -> Vec<&str> {
    messages.iter().map(|message| message.data.get()).collect()
}

#[tokio::test]
async fn a_pop_of_something_else_gives_everything_back_and_loses_nothing() {
    let site = Site::start().await;
    // Without retries, a nacked message becomes a dead letter.
    let options = QueueOptions { retry_limit: Some(0), ..QueueOptions::default() };
    site.queen.admin().configure("q", &options).await.unwrap();
    let (queue, group) = (site.queen.queue("q"), site.queen.queue("q").group("g"));
    queue.partition("p").push_all([Item::new(&1), Item::new("two"), Item::new(&3)]).await.unwrap();
    let error = group.pop::<u32>().batch(3).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Decode && error.text().contains("RawValue"), "{error}");
    assert_eq!(texts(error.messages()), ["1", "\"two\"", "3"]);
    // In the middle of a batch it is only returned: a dead letter would complete what is before it.
    let raw = group.pop::<Box<RawValue>>().batch(3).await.unwrap();
    assert_eq!((texts(&raw), raw[0].retry_count()), (vec!["1", "\"two\"", "3"], 0));
    assert_eq!(raw[1].decode::<String>().unwrap().data, "two");
    assert_eq!(raw[1].decode::<u32>().unwrap_err().kind(), ErrorKind::Decode);
    raw[0].ack().await.unwrap();
    raw[1].retry().await.unwrap();
    // As the first of its partition it is nacked, and what is behind it becomes free at once.
    assert_eq!(group.pop::<u32>().batch(3).await.unwrap_err().kind(), ErrorKind::Decode);
    let letters = group.dead_letters().deadline(PATIENCE).list::<String>().await.unwrap().letters;
    assert_eq!(letters.iter().map(|letter| letter.data.as_str()).collect::<Vec<_>>(), ["two"]);
    assert_eq!(group.pop::<u32>().batch(3).await.unwrap()[0].data, 3);
}

#[tokio::test]
async fn what_was_acknowledged_at_delivery_is_handed_over_even_if_it_cannot_be_decoded() {
    let site = Site::start().await;
    let queue = site.queen.queue("q");
    queue.partition("p").push_all([Item::new(&1), Item::new("two")]).await.unwrap();
    let error = queue.pop::<u32>().batch(2).auto_ack().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Decode);
    assert_eq!(texts(error.messages()), ["1", "\"two\""]);
}

#[tokio::test]
async fn one_request_may_hold_messages_of_many_partitions() {
    let site = Site::start().await;
    let queue = site.queen.queue("q");
    let items = (0..100).map(|n| Item::new(&n).partition(format!("p{}", n % 10)));
    assert_eq!(queue.push_all(items).await.unwrap().len(), 100);
    assert!(queue.push_all(Vec::<Item>::new()).await.unwrap().is_empty());
    let mut third = Vec::new();
    for message in queue.partition("p3").group("g").pop::<u32>().batch(100).await.unwrap() {
        assert_eq!((message.queue(), message.partition(), message.group()), ("q", "p3", "g"));
        third.push(message.data);
    }
    assert_eq!(third, (0..10).map(|n| n * 10 + 3).collect::<Vec<_>>());
}

#[tokio::test]
async fn every_attempt_gets_its_own_token_and_waits_for_one_until_the_deadline() {
    let site = Site::start().await;
    let asked = Arc::new(AtomicU32::new(0));
    let counts = asked.clone();
    let queen = Queen::builder().url(site.broker.url()).max_retry_delay(Duration::from_millis(10));
    let queen = queen.token_with(move || {
        let counts = counts.clone();
        async move {
            match counts.fetch_add(1, SeqCst) {
                0 | 2 => Ok("token".to_owned()),
                _ => Err("the vault is closed"),
            }
        }
    });
    let queen = queen.build().unwrap();
    queen.queue("q").push(&1).await.unwrap();
    queen.queue("q").push(&2).await.unwrap();
    assert_eq!(asked.load(SeqCst), 3, "for a moment there was none");
    let error = queen.queue("q").push(&3).deadline(Duration::from_millis(500)).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Network && error.text().contains("the vault is closed"), "{error}");
    assert!(error.attempts() > 1);
    assert_eq!(site.queen.admin().queue("q").await.unwrap().totals.total, 2);
}

#[tokio::test]
async fn a_broker_that_is_not_there_is_an_error_of_the_network_in_time() {
    let nobody = Nobody::new();
    let queen = Queen::builder().url(&nobody.url).max_retry_delay(Duration::from_millis(10));
    let queen = queen.deadline(Duration::from_millis(500)).build().unwrap();
    let error = queen.queue("q").push(&1).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Network && error.attempts() > 1, "{error}");
    assert!(std::error::Error::source(&error).is_some());
}

#[tokio::test]
async fn a_deadline_may_be_for_ever() {
    let site = Site::start().await;
    let (queue, ever) = (site.queen.queue("q"), Duration::MAX);
    queue.push(&1).deadline(ever).await.unwrap();
    let message = queue.pop::<u32>().deadline(ever).await.unwrap().remove(0);
    message.renew(Duration::from_secs(60)).deadline(ever).await.unwrap();
    message.trace(&1).deadline(ever).await.unwrap();
    message.ack().deadline(ever).await.unwrap();
    assert_eq!(site.queen.admin().deadline(ever).queue("q").await.unwrap().totals.total, 1);
}

#[tokio::test]
async fn a_message_popped_elsewhere_can_be_acknowledged_without_its_lease() {
    let site = Site::start().await;
    let queue = site.queen.queue("q");
    queue.partition("p").push_all(&[1, 2]).await.unwrap();
    let theirs = queue.group("g").pop::<u32>().batch(2).await.unwrap();
    let taken = |message: &Message<u32>| {
        site.queen.taken(Taken {
            id: None,
            transaction_id: message.transaction_id().to_owned(),
            partition_id: message.partition_id().to_owned(),
            lease_id: None,
            group: Some("g".to_owned()),
        })
    };
    taken(&theirs[0]).ack().await.unwrap();
    let transaction = site.queen.transaction().ack(&taken(&theirs[1])).push("next", "p", &2);
    transaction.commit().await.unwrap();
    assert_eq!(site.depth("q", "g").await, 0);
    assert_eq!(queue_of(&site, "next").await, [2]);
}

async fn queue_of(site: &Site, queue: &str) -> Vec<u32> {
    let messages = site.queen.queue(queue).pop::<u32>().batch(10).await.expect("a pop");
    messages.into_iter().map(Message::into_data).collect()
}

#[tokio::test]
async fn a_transaction_whose_commit_was_dropped_is_not_reported_as_rolled_back() {
    let mut stub = Stub::start().await;
    let queen = Queen::connect(&stub.url).unwrap();
    let popped = json!({"success": true, "leaseId": "L", "messages": [
        {"id": "1", "transactionId": "t", "data": 1, "partitionId": "p", "consumerGroup": "g"}]});
    let group = queen.queue("q").group("g");
    let (messages, ()) =
        tokio::join!(group.pop::<u32>().into_future(), async { stub.next().await.answer(200, &popped) });
    let transaction = queen.transaction().ack(&messages.unwrap()[0]).push("next", "p", &1);
    let kept = tokio::select! {
        _ = transaction.commit() => panic!("nobody has answered"),
        asked = stub.next() => asked,
    };
    let refused = json!({"success": false, "error": "Invalid or expired lease"});
    let (again, ()) = tokio::join!(transaction.commit(), async { stub.next().await.answer(200, &refused) });
    assert_eq!(again.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
    assert_eq!(kept.line, "POST /api/v1/transaction");
}

#[tokio::test]
async fn acknowledgements_of_two_groups_are_two_requests() {
    let site = Site::start().await;
    let queue = site.queen.queue("q");
    queue.push(&1).await.unwrap();
    let (a, b) = (queue.group("a").pop::<u32>().await.unwrap(), queue.group("b").pop::<u32>().await.unwrap());
    let error = site.queen.acks().ack_all(&a).ack_all(&b).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadUse);
    assert!(site.queen.acks().await.unwrap().is_empty());
    let acked = a[0].ack().await.unwrap();
    assert!(acked.success && acked.lease_released && !acked.noop);
    assert!(a[0].ack().await.unwrap().noop, "again is harmless");
    let error = a[0].nack("too late").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
}

#[tokio::test]
async fn a_transaction_may_be_committed_again() -> Result<(), Error> {
    let site = Site::start().await;
    let transaction = site.queen.transaction().push("a", "p", &1).push("b", "p", &2);
    let first = transaction.commit().await?;
    let again = transaction.commit().await?;
    let statuses =
        |pushed: &[queen_client::Pushed]| pushed.iter().map(|one| one.status.word()).collect::<Vec<_>>();
    assert_eq!(statuses(&first.pushed), ["queued", "queued"]);
    assert_eq!(statuses(&again.pushed), ["duplicate", "duplicate"]);
    assert_eq!(first.pushed[0].message_id, again.pushed[0].message_id);
    Ok(())
}

#[tokio::test]
async fn who_wants_to_wait_for_operations_is_not_held_up_without_one() {
    let site = Site::start().await;
    let builder = Queen::builder().url(site.broker.url());
    let queen = builder.queued_operation_behavior(QueuedOperation::Poll).build().unwrap();
    let pushed = queen
        .queue("q")
        .push(&1)
        .traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
        .await;
    assert!(pushed.unwrap().operation.is_none());
}
