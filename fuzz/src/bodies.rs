//! Request bodies: whatever is refused has an error message, and whatever is accepted keeps the limits that storage relies on.

use queen_protocol::{
    AckBatchBody, AckBody, AckItem, Configure, Operation, PopFilter, PushBody, PushItem, QueueOptions,
    RenewBody, TransactionBody,
};
use queen_server::fuzzing::{
    BATCH_MAX, LEASE_SECONDS_MAX, PARTITIONS_MAX, WAIT_MAX, pop_query as read_pop, redrive_body, seek_body,
    trace_body,
};
use serde_json::{Value, json};

use crate::{Input, frames};

/// The limits of the contract, restated.
pub fn is_name(name: &str) -> bool {
    name.chars().count() <= 255 && !name.contains('\0')
}

pub fn push(data: &[u8]) {
    let Ok(body) = PushBody::parse(data) else { return };
    assert!(body.items.len() <= 50_000);
    body.items.iter().for_each(check_item);
}

fn check_item(item: &PushItem<'_>) {
    assert!(is_name(&item.queue) && is_name(item.partition()) && !item.partition().is_empty());
    assert!(item.namespace.as_deref().is_none_or(is_name) && item.task.as_deref().is_none_or(is_name));
    let id = item.transaction_id.as_deref();
    assert!(id.is_none_or(|id| is_name(id) && !id.is_empty()));
    assert!(item.trace().and_then(|trace| trace.state).is_none_or(|state| state.len() <= 512));
    let frame = frames::Parts {
        transaction_id: id.unwrap_or("minted"),
        message_id: None,
        trace_id: item.trace_id(),
        trace: item.trace(),
        producer_sub: None,
        key_id: None,
        payload: item.payload(),
    };
    frames::check_round_trip(&frame);
}

fn check_ack(item: &AckItem) {
    assert!(is_name(&item.transaction_id) && is_name(&item.group) && !item.group.is_empty());
    assert!(item.lease_id.as_deref() != Some(""));
    assert!(item.error.as_deref().is_none_or(|text| !text.contains('\0')));
}

pub fn ack(data: &[u8]) {
    if let Ok(item) = AckBody::parse(data) {
        check_ack(&item);
        // A single item is a batch of one. Bytes, because unknown fields are not checked for UTF-8.
        let batch = AckBatchBody::parse(&[b"{\"acknowledgments\":[".as_slice(), data, b"]}"].concat());
        // Close to the nesting limit of the parser, the two extra levels of a batch exceed it.
        if batch.is_err() && data.iter().filter(|byte| b"[{".contains(byte)).count() > 100 {
            return;
        }
        let [same] = batch.expect("an item is an item").try_into().expect("one item");
        assert_eq!(
            (same.transaction_id, same.lease_id, same.group),
            (item.transaction_id, item.lease_id, item.group)
        );
        assert_eq!(
            (same.status, same.partition_id, same.error),
            (item.status, item.partition_id, item.error)
        );
    }
    if let Ok(items) = AckBatchBody::parse(data) {
        assert!(items.len() <= 50_000);
        items.iter().for_each(check_ack);
    }
}

pub fn transaction(data: &[u8]) {
    let Ok(mut body) = TransactionBody::parse(data) else { return };
    assert!(!body.operations.is_empty());
    for operation in &body.operations {
        match operation {
            Operation::Push(items) => items.iter().for_each(check_item),
            Operation::Ack(item) => check_ack(item),
            Operation::Unknown(kind) => assert!(kind != "push" && kind != "ack"),
        }
    }
    let (read, write) = (body.pushes().count(), body.pushes_mut().count());
    assert_eq!(read, write);
}

pub fn configure(data: &[u8]) {
    let Ok(configure) = Configure::parse(data) else { return };
    assert!(is_name(&configure.queue));
    assert!(
        configure.namespace.as_deref().is_none_or(is_name) && configure.task.as_deref().is_none_or(is_name)
    );
    let mut options = QueueOptions::default();
    options.merge(&configure.changes).expect("what was parsed can be merged");
    let mut again = options.clone();
    again.merge(&configure.changes).expect("and merged again");
    assert_eq!(options, again, "a repeated request changes nothing");
    // Options that are returned can be sent again.
    let told = serde_json::to_value(&options).expect("options are JSON");
    let echo = json!({ "queue": configure.queue, "options": told }).to_string();
    let echo = Configure::parse(echo.as_bytes()).expect("an echo is a request");
    let mut echoed = QueueOptions { lease_time: 7, priority: 9, ttl: 1, ..QueueOptions::default() };
    echoed.merge(&echo.changes).expect("an echo can be merged");
    assert_eq!(options, echoed);
    let Value::Object(told) = told else { panic!("options are an object") };
    for (name, value) in told {
        assert!(name == "priority" || value.as_i64().is_none_or(|value| value >= 0), "{name}");
    }
    assert!(options.min_pop_wait_time <= 60_000);
}

pub fn admin(data: &[u8]) {
    if let Ok(trace) = trace_body(data) {
        assert!(is_name(&trace.transaction_id) && is_name(&trace.event) && !trace.event.is_empty());
        assert!(trace.group.as_deref().is_none_or(is_name) && trace.worker.as_deref().is_none_or(is_name));
        assert!(trace.names.len() <= 100 && trace.names.is_sorted());
        assert!(trace.names.iter().all(|name| is_name(name) && !name.is_empty()));
        assert!(serde_json::from_str::<&serde_json::value::RawValue>(&trace.data).is_ok());
    }
    if let Ok(ask) = redrive_body(data) {
        let names = [&ask.partition, &ask.group, &ask.target_queue, &ask.error];
        assert!(is_name(&ask.queue) && names.into_iter().flatten().all(|name| is_name(name)));
        assert!((1..=10_000).contains(&ask.per_second));
    }
    let _ = seek_body(data);
    if let Ok(renew) = RenewBody::parse(data) {
        assert!((1..=86_400).contains(&renew.seconds()));
    }
}

pub fn pop_query(data: &[u8]) {
    let mut input = Input::new(data);
    let filter = match input.byte() % 3 {
        0 => PopFilter::Queue { queue: input.text() },
        1 => PopFilter::Partition { queue: input.text(), partition: input.text() },
        _ => PopFilter::Labels { namespace: Some(input.text()), task: input.flag().then(|| input.text()) },
    };
    let query = String::from_utf8_lossy(input.rest());
    let one = matches!(filter, PopFilter::Partition { .. });
    let Some(Ok(pop)) = read_pop(filter, &query) else { return };
    let names: &[Option<&str>] = match &pop.filter {
        PopFilter::Queue { queue } => &[Some(queue), None],
        PopFilter::Partition { queue, partition } => &[Some(queue), Some(partition)],
        PopFilter::Labels { namespace, task } => &[namespace.as_deref(), task.as_deref()],
    };
    assert!(names.iter().flatten().all(|name| is_name(name)));
    assert!(is_name(&pop.group) && !pop.group.is_empty());
    assert!((1..=BATCH_MAX).contains(&pop.batch));
    assert!((1..=PARTITIONS_MAX).contains(&i64::from(pop.partitions)) && (!one || pop.partitions == 1));
    assert!((0..=LEASE_SECONDS_MAX).contains(&i64::from(pop.lease_seconds)));
    assert!(pop.wait.is_none_or(|wait| wait <= WAIT_MAX));
}
