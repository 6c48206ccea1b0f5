//! Tests of buffers with a real broker.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use queen_client::{BufferBuilder, ErrorKind, Queen};
use serde_json::json;
use tokio::time::timeout;

use crate::stub::{Nobody, Stub};
use crate::support::{PATIENCE, Site};

#[tokio::test]
async fn a_buffer_delivers_everything_in_order_and_a_receipt_has_the_result() {
    let site = Site::start().await;
    let queue = site.queen.queue("q");
    let buffer = queue.buffer().batch_messages(50).max_messages(100).start().unwrap();
    for n in 0..1_000 {
        buffer.partition(&format!("p{}", n % 7)).push(&n).await.unwrap();
    }
    let last = buffer.push(&-1).await.unwrap();
    assert_eq!(last.result().await.unwrap().status.word(), "queued");
    buffer.close().await.unwrap();
    assert_eq!(buffer.push(&-2).await.unwrap_err().kind(), ErrorKind::Closed);
    buffer.close().await.unwrap();
    for partition in 0..7 {
        let messages = queue.partition(format!("p{partition}")).pop::<i32>().batch(1_000).await.unwrap();
        let data: Vec<_> = messages.iter().map(|message| message.data).collect();
        assert_eq!(data, (0..1_000).filter(|n| n % 7 == partition).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_buffer_that_is_dropped_goes_on_to_deliver() {
    let site = Site::start().await;
    let queue = site.queen.queue("q");
    let buffer = queue.buffer().linger(Duration::from_secs(60)).start().unwrap();
    buffer.push(&1).await.unwrap();
    drop(buffer);
    assert_eq!(queue.pop::<u32>().wait(PATIENCE).await.unwrap().len(), 1);
}

/// The payloads passed to `on_error`.
fn listening(buffer: BufferBuilder) -> (BufferBuilder, Arc<Mutex<Vec<String>>>) {
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    let hears = heard.clone();
    let buffer = buffer.on_error(move |error| {
        let payloads = error.undelivered().iter().map(|message| message.payload.get().to_owned());
        hears.lock().expect("nobody panics here").extend(payloads);
    });
    (buffer, heard)
}

#[tokio::test]
async fn a_failure_is_reported_even_if_its_receipt_was_dropped() {
    let mut stub = Stub::start().await;
    let queen = Queen::connect(&stub.url).unwrap();
    let (buffer, heard) = listening(queen.queue("q").partition("p").buffer());
    let buffer = buffer.start().unwrap();
    let receipt = buffer.push(&1).await.unwrap();
    // A caller with a short deadline, or a dropped request.
    let asked = tokio::select! {
        result = receipt.result() => panic!("{result:?}"),
        asked = stub.next() => asked,
    };
    asked.refuse();
    let error = timeout(PATIENCE, buffer.flush()).await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.undelivered().len()), (ErrorKind::BadRequest, 1));
    assert_eq!(*heard.lock().unwrap(), ["1"]);
}

#[tokio::test]
async fn what_could_not_be_delivered_is_bounded_in_bytes_and_handed_out_by_a_flush() {
    let mut stub = Stub::start().await;
    let queen = Queen::connect(&stub.url).unwrap();
    let (sender, mut failed) = tokio::sync::mpsc::channel(100);
    let buffer = queen.queue("q").partition("p").buffer().max_bytes(10_000).linger(Duration::ZERO);
    let buffer = buffer.on_error(move |_| sender.try_send(()).unwrap()).start().unwrap();
    let large = "x".repeat(4_000);
    for _ in 0..3 {
        drop(buffer.push(&large).await.unwrap());
        stub.next().await.refuse();
        timeout(PATIENCE, failed.recv()).await.unwrap().unwrap();
    }
    let error = buffer.push(&large).await.unwrap_err();
    assert!(error.kind() == ErrorKind::BufferFull && error.text().contains("flush"), "{error}");
    assert_eq!(buffer.flush().await.unwrap_err().undelivered().len(), 3);
    let receipt = buffer.push(&large).await.unwrap();
    stub.next().await.store();
    assert_eq!(receipt.result().await.unwrap().status.word(), "queued");
}

#[tokio::test]
async fn a_listener_that_panics_does_not_block_receipts() {
    let mut stub = Stub::start().await;
    let queen = Queen::connect(&stub.url).unwrap();
    let buffer = queen.queue("q").partition("p").buffer().on_error(|_| panic!("it does not want to know"));
    let buffer = buffer.start().unwrap();
    drop(buffer.push(&1).await.unwrap());
    stub.next().await.refuse();
    let error = timeout(PATIENCE, buffer.flush()).await.unwrap().unwrap_err();
    assert_eq!(error.undelivered().len(), 1);
    let receipt = buffer.push(&2).await.unwrap();
    let asked = stub.next().await;
    assert_eq!(asked.payloads(), [2]);
    asked.store();
    assert!(timeout(PATIENCE, receipt.result()).await.unwrap().is_ok());
}

#[tokio::test]
async fn a_buffer_may_linger_for_ever() {
    let site = Site::start().await;
    let queue = site.queen.queue("q");
    let buffer = queue.buffer().linger(Duration::MAX).start().unwrap();
    let receipt = buffer.push(&1).await.unwrap();
    timeout(PATIENCE, buffer.flush()).await.unwrap().unwrap();
    assert_eq!(receipt.result().await.unwrap().status.word(), "queued");
}

/// On a runtime that ends, like that of a program.
#[test]
fn a_buffer_whose_runtime_has_ended_fails_receipts_and_returns_its_messages() {
    let run = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let nobody = Nobody::new();
    let queen = Queen::connect(&nobody.url).unwrap();
    let (buffer, heard) = listening(queen.queue("q").partition("p").buffer().linger(Duration::MAX));
    let first = run();
    let (buffer, receipt) = first.block_on(async {
        let buffer = buffer.start().unwrap();
        let receipt = buffer.push(&1).await.unwrap();
        drop(buffer.push(&2).await.unwrap());
        (buffer, receipt)
    });
    drop(first);
    run().block_on(async {
        let error = timeout(PATIENCE, buffer.close()).await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.undelivered().len()), (ErrorKind::Closed, 2));
        let error = timeout(PATIENCE, receipt.result()).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
        assert_eq!(buffer.push(&3).await.unwrap_err().kind(), ErrorKind::Closed);
    });
    assert_eq!(*heard.lock().unwrap(), ["1", "2"]);
}

#[tokio::test]
async fn what_a_gateway_refuses_as_a_whole_is_not_sent_by_halves() {
    let mut stub = Stub::start().await;
    let queen = Queen::connect(&stub.url).unwrap();
    let buffer = queen.queue("q").partition("p").buffer().linger(Duration::MAX).start().unwrap();
    for n in 0..4 {
        drop(buffer.push(&n).await.unwrap());
    }
    let (flushed, ()) = tokio::join!(buffer.flush(), async {
        stub.next().await.answer(405, &json!({"error": "not here"}));
    });
    assert_eq!(flushed.unwrap_err().undelivered().len(), 4);
    for n in 4..6 {
        drop(buffer.push(&n).await.unwrap());
    }
    let (flushed, ()) = tokio::join!(buffer.flush(), async {
        stub.next().await.answer(413, &json!({"error": "too large"}));
        stub.next().await.store();
        stub.next().await.store();
    });
    flushed.unwrap();
}

#[tokio::test]
async fn undelivered_messages_are_reported_to_the_listener() {
    let nobody = Nobody::new();
    let queen = Queen::builder().url(&nobody.url).deadline(Duration::from_millis(100)).build().unwrap();
    let (buffer, heard) = listening(queen.queue("q").partition("p").buffer());
    let buffer = buffer.start().unwrap();
    // One is awaited, one is dropped.
    let watched = buffer.push(&"watched").await.unwrap();
    let error = watched.result().await.unwrap_err();
    assert_eq!((error.kind(), error.undelivered().len()), (ErrorKind::Network, 1));
    buffer.flush().await.expect("it was told already");
    drop(buffer.push(&"forgotten").await.unwrap());
    let error = buffer.close().await.unwrap_err();
    let kept = &error.undelivered()[0];
    assert_eq!((&*kept.queue, &*kept.partition, kept.payload.get()), ("q", "p", "\"forgotten\""));
    assert_eq!(*heard.lock().unwrap(), ["\"forgotten\""]);
    buffer.close().await.expect("it is told once");
}
