//! Closing a client: nothing new starts, and what is in progress completes.

use std::time::Duration;

use queen_client::{ErrorKind, Message, Queen};
use serde_json::json;
use tokio::time::timeout;

use crate::stub::Stub;
use crate::support::{PATIENCE, Site};

#[tokio::test]
async fn a_call_that_is_under_way_is_tried_again_after_the_close() {
    let mut stub = Stub::start().await;
    let queen = Queen::builder().url(&stub.url).retry_delay(Duration::from_millis(1)).build().unwrap();
    let queue = queen.queue("q");
    let (pushed, ()) = tokio::join!(queue.push(&1).into_future(), async {
        let first = stub.next().await;
        queen.close();
        first.answer(503, &json!({"error": "not now", "code": "unavailable"}));
        stub.next().await.store();
    });
    assert_eq!(pushed.unwrap().status.word(), "queued");
    assert_eq!(queue.push(&2).await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(queen.admin().health().await.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn closing_the_client_stops_a_consumer_and_its_handler_can_finish() {
    let site = Site::start().await;
    site.queen.queue("q").partition("p").push_all(&[1, 2, 3]).await.unwrap();
    let queen = Queen::connect(site.broker.url()).unwrap();
    let own = queen.clone();
    let consuming = queen.queue("q").group("g").consume().batch(3).each(move |message: Message<u32>, _| {
        let queen = own.clone();
        async move {
            queen.close();
            queen.queue("next").push(&message.data).await.map(drop)
        }
    });
    let summary = timeout(PATIENCE, consuming.into_future()).await.unwrap().unwrap();
    assert_eq!((summary.handled, summary.failed), (1, 0));
    // Immediately: the lease would last for minutes.
    let rest = site.queen.queue("q").group("g").pop::<u32>().batch(10).await.unwrap();
    assert_eq!(rest.iter().map(|message| message.data).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(site.queen.queue("next").pop::<u32>().await.unwrap()[0].data, 1);
    assert_eq!(queen.queue("q").push(&4).await.unwrap_err().kind(), ErrorKind::Closed);
    let another = queen.queue("q").consume().each(|_: Message<u32>, _| async { Ok::<_, String>(()) });
    assert_eq!(another.start().unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn a_consumer_that_waits_does_not_wait_any_longer() {
    let site = Site::start().await;
    let queen = Queen::connect(site.broker.url()).unwrap();
    let consume = queen.queue("q").group("g").consume().wait(Duration::from_secs(600));
    let consumer = consume.each(|_: Message<u32>, _| async { Ok::<_, String>(()) }).start().unwrap();
    site.parked(1).await;
    queen.close();
    assert_eq!(timeout(PATIENCE, consumer.finished()).await.unwrap().unwrap().batches, 0);
}

#[tokio::test]
async fn a_buffer_takes_nothing_more_and_delivers_what_it_holds() {
    let site = Site::start().await;
    let queen = Queen::connect(site.broker.url()).unwrap();
    let buffer = queen.queue("q").buffer().linger(Duration::MAX).start().unwrap();
    let receipt = buffer.push(&1).await.unwrap();
    queen.close();
    assert_eq!(buffer.push(&2).await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(queen.queue("q").buffer().start().unwrap_err().kind(), ErrorKind::Closed);
    buffer.close().await.unwrap();
    assert_eq!(receipt.result().await.unwrap().status.word(), "queued");
    assert_eq!(site.queen.queue("q").pop::<u32>().batch(10).await.unwrap().len(), 1);
}
