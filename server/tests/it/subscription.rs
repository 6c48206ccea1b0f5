//! Where a consumer group that is new to a partition starts.

use serde_json::json;

use crate::support::{Server, numbers};

#[tokio::test]
async fn without_a_word_a_group_starts_at_the_oldest_message() {
    let server = Server::start().await;
    server.push("q", "p", &numbers(0..2)).await;
    assert_eq!(server.pop("/queue/q?consumerGroup=a&batch=10").await.unwrap().data(), [0, 1]);
    for (group, mode) in [("b", "all"), ("c", "from_beginning"), ("d", "whatever")] {
        let path = format!("/queue/q?consumerGroup={group}&subscriptionMode={mode}&batch=10");
        assert_eq!(server.pop(&path).await.unwrap().data(), [0, 1]);
    }
}

#[tokio::test]
async fn new_skips_history_and_later_pops_need_not_repeat_it() {
    let server = Server::start().await;
    server.push("q", "p", &numbers(0..2)).await;
    for (group, how) in
        [("a", "subscriptionMode=new"), ("b", "subscriptionMode=new-only"), ("c", "subscriptionFrom=now")]
    {
        assert!(
            server.pop(&format!("/queue/q?consumerGroup={group}&{how}&batch=10")).await.is_none(),
            "{how}"
        );
    }
    server.push("q", "p", &[json!("later")]).await;
    for group in ["a", "b", "c"] {
        let popped = server.pop(&format!("/queue/q?consumerGroup={group}&batch=10")).await;
        assert_eq!(popped.unwrap().data(), ["later"], "{group}");
    }
}

#[tokio::test]
async fn a_registration_holds_whatever_later_pops_say() {
    let server = Server::start().await;
    server.push("q", "p", &numbers(0..2)).await;
    assert!(server.pop("/queue/q?consumerGroup=g&subscriptionMode=new").await.is_none());
    assert!(server.pop("/queue/q?consumerGroup=g&subscriptionMode=all").await.is_none());
}

#[tokio::test]
async fn a_group_registers_even_when_there_is_nothing_to_read_yet() {
    let server = Server::start().await;
    for queue in ["configured", "unheard-of"] {
        if queue == "configured" {
            server.configure(queue, json!({})).await;
        }
        let path = format!("/queue/{queue}?consumerGroup=g");
        assert!(server.pop(&format!("{path}&subscriptionMode=new")).await.is_none());
        server.push(queue, "p", &[json!("first")]).await;
        let popped = server.pop(&path).await;
        assert_eq!(
            popped.unwrap_or_else(|| panic!("{queue}: the first message was skipped")).data(),
            ["first"]
        );
    }
}

#[tokio::test]
async fn a_partition_born_later_reaches_a_group_that_wanted_only_new_messages() {
    let server = Server::start().await;
    server.push("q", "old", &numbers(0..2)).await;
    assert!(server.pop("/queue/q?consumerGroup=g&subscriptionMode=new").await.is_none());
    server.push("q", "late", &[json!("one")]).await;
    server.push("q", "late", &[json!("two")]).await;
    let popped = server.pop("/queue/q?consumerGroup=g&subscriptionMode=new&batch=10").await.unwrap();
    assert_eq!(popped.data(), ["one", "two"]);
}

#[tokio::test]
async fn a_time_divides_history_from_what_is_read() {
    let server = Server::start().await;
    server.push("q", "p", &[json!("before")]).await;
    let before = server.pop("/queue/q").await.unwrap().messages[0]["createdAt"].as_str().unwrap().to_owned();
    server.push("q", "p", &[json!("after")]).await;
    let path = format!("/queue/q?consumerGroup=g&subscriptionFrom={before}&batch=10");
    assert_eq!(server.pop(&path).await.unwrap().data(), ["after"]);
    let path = "/queue/q?consumerGroup=h&subscriptionFrom=2001-01-01T00:00:00&batch=10";
    assert_eq!(server.pop(path).await.unwrap().data(), ["before", "after"]);
    let future = "/queue/q?consumerGroup=i&subscriptionFrom=2999-01-01T00:00:00%2B02:00&batch=10";
    assert!(server.pop(future).await.is_none());
}

#[tokio::test]
async fn queue_mode_knows_no_subscription() {
    let server = Server::start().await;
    server.push("q", "p", &[json!("old")]).await;
    assert_eq!(server.pop("/queue/q?subscriptionMode=new").await.unwrap().data(), ["old"]);
}

#[tokio::test]
async fn the_default_can_be_configured() {
    let server = Server::start_with(&["--default-subscription-mode", "new"]).await;
    server.push("q", "p", &[json!("old")]).await;
    assert!(server.pop("/queue/q?consumerGroup=g").await.is_none());
    assert_eq!(server.pop("/queue/q?consumerGroup=h&subscriptionMode=all").await.unwrap().data(), ["old"]);
    assert_eq!(server.pop("/queue/q").await.unwrap().data(), ["old"]);
}

#[tokio::test]
async fn a_thousand_partitions_are_registered_in_one_step_and_drained() {
    let server = Server::start().await;
    let items = |round: &str| {
        let item = |n| json!({"queue": "q", "partition": format!("p{n}"), "payload": format!("{round}{n}")});
        (0..1000).map(item).collect::<Vec<_>>()
    };
    server.push_items(json!(items("old"))).await;
    let began = std::time::Instant::now();
    assert!(server.pop("/queue/q?consumerGroup=g&subscriptionMode=new").await.is_none());
    assert!(began.elapsed().as_secs() < 10);
    server.push_items(json!(items("new"))).await;
    let mut seen = std::collections::HashSet::new();
    while let Some(popped) =
        server.pop("/queue/q?consumerGroup=g&batch=100&partitions=100&autoAck=true").await
    {
        for data in popped.data() {
            assert!(seen.insert(data.as_str().unwrap().to_owned()), "{data} came twice");
        }
    }
    assert_eq!(seen.len(), 1000);
    assert!(seen.iter().all(|data| data.starts_with("new")));
}
