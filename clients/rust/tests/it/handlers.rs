//! Handlers that acknowledge themselves, fail in unusual ways, or lose their lease.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queen_client::admin::Position;
use queen_client::{Consume, Context, Message, Queen};
use tokio::time::{sleep, timeout};

use crate::support::{PATIENCE, Site};

/// A consumer of the group `g`, and the errors passed to `on_error`.
fn listening(queen: &Queen) -> (Consume, Arc<Mutex<Vec<String>>>) {
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    let hears = heard.clone();
    let consume = queen.queue("q").group("g").consume();
    (consume.on_error(move |error| hears.lock().expect("nobody panics here").push(error.to_string())), heard)
}

fn nothing(heard: &Mutex<Vec<String>>) {
    assert_eq!(*heard.lock().expect("nobody panics here"), Vec::<String>::new());
}

#[tokio::test]
async fn a_dead_letter_in_the_middle_of_a_batch_strands_nothing() {
    let site = Site::start().await;
    site.queen.queue("q").partition("p").push_all(&(0..10).collect::<Vec<u32>>()).await.unwrap();
    let (consume, heard) = listening(&site.queen);
    let consuming = consume.batch(10).limit(10).batches(|messages: Vec<Message<u32>>, _| async move {
        messages[3].dead_letter("bad").await.map(drop)
    });
    let summary = timeout(PATIENCE, consuming.into_future()).await.unwrap().unwrap();
    assert_eq!((summary.handled, summary.failed), (10, 0));
    assert_eq!(site.depth("q", "g").await, 0);
    let letters = site.queen.queue("q").dead_letters().list::<u32>().await.unwrap().letters;
    assert_eq!(letters.iter().map(|letter| letter.data).collect::<Vec<_>>(), [3]);
    // The partition is free.
    site.queen.queue("q").partition("p").push(&10).await.unwrap();
    assert_eq!(site.queen.queue("q").group("g").pop::<u32>().await.unwrap()[0].data, 10);
    nothing(&heard);
}

#[tokio::test]
async fn a_batch_of_which_the_handler_gave_something_back_comes_again_at_once() {
    let site = Site::start().await;
    site.queen.queue("q").partition("p").push_all(&[0, 1, 2, 3]).await.unwrap();
    let (consume, heard) = listening(&site.queen);
    let again = AtomicU32::new(0);
    let consuming = consume.batch(4).limit(8).batches(move |messages: Vec<Message<u32>>, _| {
        let first = again.fetch_add(1, SeqCst) == 0;
        async move { if first { messages[1].nack("not yet").await.map(drop) } else { Ok(()) } }
    });
    let summary = timeout(PATIENCE, consuming.into_future()).await.unwrap().unwrap();
    assert_eq!((summary.handled, summary.batches), (8, 2));
    assert_eq!(site.depth("q", "g").await, 0);
    nothing(&heard);
}

#[tokio::test]
async fn what_is_handled_before_a_message_that_its_handler_gives_back_does_not_come_again() {
    let site = Site::start().await;
    site.queen.queue("q").partition("p").push_all(&[0, 1]).await.unwrap();
    let (consume, heard) = listening(&site.queen);
    let (seen, again) = (Arc::<Mutex<Vec<u32>>>::default(), Arc::new(AtomicU32::new(0)));
    let sees = seen.clone();
    let consuming = consume.batch(2).limit(3).each(move |message: Message<u32>, _| {
        sees.lock().unwrap().push(message.data);
        let first = message.data == 1 && again.fetch_add(1, SeqCst) == 0;
        async move { if first { message.retry().await.map(drop) } else { Ok(()) } }
    });
    timeout(PATIENCE, consuming.into_future()).await.unwrap().unwrap();
    assert_eq!(*seen.lock().unwrap(), [0, 1, 1]);
    assert_eq!(site.depth("q", "g").await, 0);
    nothing(&heard);
}

#[tokio::test]
async fn a_handler_that_fails_after_it_has_acknowledged_is_not_corrected() {
    let site = Site::start().await;
    site.queen.queue("q").partition("p").push_all(&[0, 1, 2]).await.unwrap();
    let (consume, heard) = listening(&site.queen);
    let consuming = consume.batch(3).limit(3).batches(|messages: Vec<Message<u32>>, _| async move {
        messages[2].ack().await.map_err(|error| error.to_string())?;
        Err("too late".to_owned())
    });
    let summary = timeout(PATIENCE, consuming.into_future()).await.unwrap().unwrap();
    assert_eq!((summary.handled, summary.failed), (0, 3));
    assert_eq!(site.depth("q", "g").await, 0);
    nothing(&heard);
}

#[tokio::test]
async fn a_handler_of_batches_that_panics_at_once_has_failed_and_the_consumer_goes_on() {
    let site = Site::start().await;
    site.queen.queue("q").partition("p").push_all(&[1, 2]).await.unwrap();
    let (consume, _) = listening(&site.queen);
    let consuming = consume.batch(2).limit(4).batches(|messages: Vec<Message<u32>>, _| {
        assert!(messages[0].retry_count() > 0, "the first time");
        async { Ok::<_, String>(()) }
    });
    let summary = timeout(PATIENCE, consuming.into_future()).await.unwrap().unwrap();
    assert_eq!((summary.handled, summary.failed), (2, 2));
    assert_eq!(site.depth("q", "g").await, 0);
}

#[tokio::test]
async fn a_worker_whose_acknowledgement_is_refused_leaves_the_rest_of_the_partition_alone() {
    let site = Site::start().await;
    site.queen.queue("q").partition("p").push_all(&[0, 1, 2]).await.unwrap();
    let (consume, heard) = listening(&site.queen);
    let (seen, queen) = (Arc::<Mutex<Vec<u32>>>::default(), site.queen.clone());
    let sees = seen.clone();
    let consuming = consume.batch(3).limit(4).each(move |message: Message<u32>, _| {
        let (seen, queen) = (sees.clone(), queen.clone());
        async move {
            let count = {
                let mut seen = seen.lock().unwrap();
                seen.push(message.data);
                seen.len()
            };
            if count == 1 {
                // An operator takes the partition away, and the handler is slow enough for the worker to acknowledge what is done so far.
                queen.admin().seek("g", "q", Position::Beginning).await.map_err(|error| error.to_string())?;
                sleep(Duration::from_millis(1_100)).await;
            }
            Ok::<_, String>(())
        }
    });
    let summary = timeout(PATIENCE, consuming.into_future()).await.unwrap().unwrap();
    assert_eq!(*seen.lock().unwrap(), [0, 0, 1, 2]);
    assert_eq!(summary.handled, 4);
    assert_eq!(site.depth("q", "g").await, 0);
    assert_eq!(heard.lock().unwrap().len(), 1, "{heard:?}");
}

#[tokio::test]
async fn a_lease_that_ended_with_the_handlers_own_acknowledgement_is_not_lost() {
    let site = Site::start().await;
    site.queen.queue("q").partition("p").push(&1).await.unwrap();
    let (consume, heard) = listening(&site.queen);
    let consume = consume.auto_ack(false).lease(Duration::from_secs(1)).limit(1);
    let consuming = consume.each(|message: Message<u32>, context: Context| async move {
        message.ack().await.map_err(|error| error.to_string())?;
        // Long enough for renewals of a lease that no longer exists.
        sleep(Duration::from_millis(1_500)).await;
        if context.is_lease_lost() { Err("it was told so".to_owned()) } else { Ok(()) }
    });
    let summary = timeout(PATIENCE, consuming.into_future()).await.unwrap().unwrap();
    assert_eq!((summary.handled, summary.failed), (1, 0));
    nothing(&heard);
}
