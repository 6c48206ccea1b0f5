//! The verbs of a scenario, each as a call of the client.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use queen_client::admin::{Position, QueueOptions};
use queen_client::{Buffer, DeadLetters, Discover, Error, Item, Message, Pop, Subscription, WhenFull};
use serde_json::{Value, json};

use crate::fields::Fields;
use crate::{Seen, World, consume};

/// An error of the client is an observation. Other failures are errors of the runner.
pub async fn perform(world: &World, verb: &str, mut fields: Fields) -> Result<Seen> {
    match verb {
        "configure" => {
            let (queue, options) = (fields.need("queue")?, fields.take("options").unwrap_or(json!({})));
            fields.finish()?;
            let options: QueueOptions = serde_json::from_value(options)?;
            Ok(seen(world.queen.admin().configure(&queue, &options).await.map(|_| json!({}))))
        }
        "push" => push(world, fields).await,
        "buffer" => buffer(world, fields).await,
        "pop" => pop(world, fields).await,
        "ack" => ack(world, fields).await,
        "renew" => {
            let (messages, seconds) = (world.saved(&fields.need("messages")?)?, fields.number("seconds")?);
            fields.finish()?;
            let time = Duration::from_secs(seconds.context("seconds is missing")?);
            Ok(seen(messages[0].renew(time).await.map(|_| json!({}))))
        }
        "transaction" => transaction(world, fields).await,
        "consume" => consume::perform(world, fields).await,
        "deadLetters" => {
            let letters = dead_letters(world, &mut fields)?;
            fields.finish()?;
            let page = letters.list::<Value>().limit(1_000).await;
            Ok(seen(page.map(|page| {
                let data: Vec<_> = page.letters.iter().map(|letter| letter.data.clone()).collect();
                let errors: Vec<_> = page.letters.iter().map(|letter| letter.error.clone()).collect();
                json!({"count": data.len(), "data": data, "errors": errors})
            })))
        }
        "redrive" => {
            let letters = dead_letters(world, &mut fields)?;
            let dry_run = fields.flag("dryRun")?.unwrap_or_default();
            fields.finish()?;
            let count = match dry_run {
                true => letters.redrive().dry_run().await,
                false => match letters.redrive().await {
                    Ok(redrive) => {
                        redrive.finished(Duration::from_secs(20)).await.map(|redrive| redrive.done)
                    }
                    Err(error) => Err(error),
                },
            };
            Ok(seen(count.map(|count| json!({"count": count}))))
        }
        "purge" => {
            let letters = dead_letters(world, &mut fields)?;
            fields.finish()?;
            Ok(seen(letters.purge().await.map(|count| json!({"count": count}))))
        }
        "seek" => {
            let (queue, group, to) = (fields.need("queue")?, fields.need("group")?, fields.need("to")?);
            fields.finish()?;
            let to = match to.as_str() {
                "beginning" => Position::Beginning,
                "end" => Position::End,
                other => bail!("no such place: {other:?}"),
            };
            Ok(seen(world.queen.admin().seek(&group, &queue, to).await.map(|_| json!({}))))
        }
        "depth" => {
            let (queue, group) = (fields.need("queue")?, fields.need("group")?);
            fields.finish()?;
            let depth = world.queen.admin().depth(&queue, &group).await;
            Ok(seen(depth.map(|depth| json!({"depth": depth.pending}))))
        }
        "close" => {
            fields.finish()?;
            world.queen.close();
            Ok(Seen::default())
        }
        "fault" => control(world, "/faults", fields).await,
        "kill" => control(world, "/kill", fields).await,
        "start" => control(world, "/start", fields).await,
        "record" => record(world, fields).await,
        other => bail!("unknown verb {other:?}"),
    }
}

fn seen(result: Result<Value, Error>) -> Seen {
    result.map_or_else(Seen::from, Seen::new)
}

/// A payload, or an object that contains one with more fields.
fn item(message: Value) -> Result<Item> {
    if !message.as_object().is_some_and(|object| object.contains_key("payload")) {
        return Ok(Item::new(&message));
    }
    let mut fields = Fields::new(message)?;
    let mut item = Item::new(&fields.take("payload").unwrap_or_default());
    if let Some(id) = fields.text("transactionId")? {
        item = item.transaction_id(id);
    }
    if let Some(traceparent) = fields.text("traceparent")? {
        item = item.traceparent(traceparent);
    }
    if let Some(partition) = fields.text("partition")? {
        item = item.partition(partition);
    }
    fields.finish()?;
    Ok(item)
}

async fn push(world: &World, mut fields: Fields) -> Result<Seen> {
    let queue = world.queen.queue(fields.need("queue")?);
    let (partition, deadline) = (fields.text("partition")?, fields.duration("deadline")?);
    let mut items = fields.list("messages")?.into_iter().map(item).collect::<Result<Vec<_>>>()?;
    fields.finish()?;
    let results = if items.len() == 1 {
        let item = items.remove(0);
        let mut push = match partition {
            Some(name) => queue.partition(name).push(item),
            None => queue.push(item),
        };
        if let Some(deadline) = deadline {
            push = push.deadline(deadline);
        }
        push.await.map(|result| vec![result])
    } else {
        let mut push = match partition {
            Some(name) => queue.partition(name).push_all(items),
            None => queue.push_all(items),
        };
        if let Some(deadline) = deadline {
            push = push.deadline(deadline);
        }
        push.await
    };
    Ok(seen(results.map(|results| {
        let statuses: Vec<_> = results.iter().map(|result| result.status.word()).collect();
        let operations: Vec<_> = results.iter().map(|result| result.operation.is_some()).collect();
        json!({"statuses": statuses, "operations": operations})
    })))
}

async fn buffer(world: &World, mut fields: Fields) -> Result<Seen> {
    let queue = world.queen.queue(fields.need("queue")?);
    let mut builder = match fields.text("partition")? {
        Some(name) => queue.partition(name).buffer(),
        None => queue.buffer(),
    };
    let mut options = Fields::new(fields.take("options").unwrap_or(json!({})))?;
    if let Some(time) = options.duration("linger")? {
        builder = builder.linger(time);
    }
    if let Some(messages) = options.number("maxMessages")? {
        builder = builder.max_messages(usize::try_from(messages)?);
    }
    if let Some(bytes) = options.number("maxBytes")? {
        builder = builder.max_bytes(usize::try_from(bytes)?);
    }
    match options.text("whenFull")?.as_deref() {
        None => {}
        Some("wait") => builder = builder.when_full(WhenFull::Wait),
        Some("reject") => builder = builder.when_full(WhenFull::Reject),
        Some(other) => bail!("unknown whenFull {other:?}"),
    }
    options.finish()?;
    let messages = fields.list("messages")?.into_iter().map(item).collect::<Result<Vec<_>>>()?;
    let after = fields.list("afterClose")?.into_iter().map(item).collect::<Result<Vec<_>>>()?;
    let close = fields.flag("close")?.unwrap_or_default();
    fields.finish()?;

    let buffer: Buffer = builder.start()?;
    let (mut receipts, mut errors) = (Vec::new(), Vec::new());
    for message in messages {
        match buffer.push(message).await {
            Ok(receipt) => receipts.push(receipt),
            Err(error) => {
                errors.push(error);
                break;
            }
        }
    }
    let flushed = if close { buffer.close().await } else { buffer.flush().await };
    errors.extend(flushed.err());
    for message in after {
        match buffer.push(message).await {
            Ok(receipt) => receipts.push(receipt),
            Err(error) => errors.push(error),
        }
    }
    let mut statuses = Vec::new();
    for receipt in receipts {
        statuses.push(receipt.result().await.map_or("failed", |result| result.status.word()));
    }
    let mut seen = Seen::new(json!({"statuses": statuses}));
    seen.error = errors.into_iter().next();
    Ok(seen)
}

/// The source of a pop or a consumer.
pub enum Place {
    Queue(queen_client::Queue),
    Partition(queen_client::Partition),
    Group(queen_client::Group),
    Labels(Discover),
}

impl Place {
    pub fn take(world: &World, fields: &mut Fields) -> Result<Self> {
        let (queue, partition, group) =
            (fields.text("queue")?, fields.text("partition")?, fields.text("group")?);
        let (namespace, task) = (fields.text("namespace")?, fields.text("task")?);
        Ok(match (queue.map(|name| world.queen.queue(name)), partition, group) {
            (Some(queue), None, None) => Self::Queue(queue),
            (Some(queue), Some(partition), None) => Self::Partition(queue.partition(partition)),
            (Some(queue), None, Some(group)) => Self::Group(queue.group(group)),
            (Some(queue), Some(partition), Some(group)) => {
                Self::Group(queue.partition(partition).group(group))
            }
            (None, None, group) => {
                let labels = world.queen.discover(namespace.as_deref(), task.as_deref());
                Self::Labels(group.map_or(labels.clone(), |group| labels.group(group)))
            }
            (None, Some(_), _) => bail!("a partition without a queue"),
        })
    }
}

pub fn subscription(text: &str) -> Result<Subscription> {
    Ok(match text {
        "all" => Subscription::All,
        "new" => Subscription::New,
        time => Subscription::From(time.parse::<jiff::Timestamp>()?.into()),
    })
}

async fn pop(world: &World, mut fields: Fields) -> Result<Seen> {
    let mut pop: Pop<Value> = match Place::take(world, &mut fields)? {
        Place::Queue(queue) => queue.pop(),
        Place::Partition(partition) => partition.pop(),
        Place::Group(group) => group.pop(),
        Place::Labels(labels) => labels.pop(),
    };
    if let Some(batch) = fields.number("batch")? {
        pop = pop.batch(u32::try_from(batch)?);
    }
    if let Some(partitions) = fields.number("partitions")? {
        pop = pop.partitions(u32::try_from(partitions)?);
    }
    if let Some(wait) = fields.duration("wait")? {
        pop = pop.wait(wait);
    }
    if let Some(lease) = fields.duration("lease")? {
        pop = pop.lease(lease);
    }
    if fields.flag("autoAck")?.unwrap_or_default() {
        pop = pop.auto_ack();
    }
    if let Some(text) = fields.text("subscription")? {
        pop = pop.subscription(subscription(&text)?);
    }
    fields.finish()?;
    let messages = match pop.await {
        Ok(messages) => messages,
        Err(error) => return Ok(error.into()),
    };
    let data: Vec<_> = messages.iter().map(|message| message.data.clone()).collect();
    let partitions: Vec<_> = messages.iter().map(Message::partition).collect();
    let traceparents: Vec<_> = messages.iter().map(Message::traceparent).collect();
    let mut seen = Seen::new(
        json!({"count": data.len(), "data": data, "partitions": partitions, "traceparents": traceparents}),
    );
    seen.messages = Some(messages);
    Ok(seen)
}

/// The messages of an `ack`, with their status and error.
fn acks(world: &World, mut fields: Fields) -> Result<(Vec<Message<Value>>, String, String)> {
    let saved = world.saved(&fields.need("messages")?)?;
    let (status, error) = (fields.need("status")?, fields.text("error")?);
    let messages = match fields.take("index") {
        None => saved,
        Some(index) => {
            let index: Vec<usize> = serde_json::from_value(index)?;
            index.into_iter().map(|index| saved[index].clone()).collect()
        }
    };
    fields.finish()?;
    Ok((messages, status, error.unwrap_or_default()))
}

async fn ack(world: &World, fields: Fields) -> Result<Seen> {
    let (messages, status, error) = acks(world, fields)?;
    if let [message] = &messages[..] {
        let acked = match status.as_str() {
            "completed" => message.ack().await,
            "failed" => message.nack(error).await,
            "retry" => message.retry().await,
            "dlq" => message.dead_letter(error).await,
            other => bail!("unknown status {other:?}"),
        };
        return Ok(seen(acked.map(|acked| json!({"success": [acked.success]}))));
    }
    let mut acks = world.queen.acks();
    for message in &messages {
        acks = match status.as_str() {
            "completed" => acks.ack(message),
            "failed" => acks.nack(message, &error),
            "retry" => acks.retry(message),
            "dlq" => acks.dead_letter(message, &error),
            other => bail!("unknown status {other:?}"),
        };
    }
    let success =
        |results: Vec<queen_client::Acked>| results.iter().map(|result| result.success).collect::<Vec<_>>();
    Ok(seen(acks.await.map(|results| json!({"success": success(results)}))))
}

async fn transaction(world: &World, mut fields: Fields) -> Result<Seen> {
    let mut transaction = world.queen.transaction();
    for entry in fields.list("ack")? {
        let entry = if entry.is_string() { json!({"messages": entry, "status": "completed"}) } else { entry };
        let (messages, status, error) = acks(world, Fields::new(entry)?)?;
        for message in &messages {
            transaction = match status.as_str() {
                "completed" => transaction.ack(message),
                "failed" => transaction.nack(message, &error),
                "retry" => transaction.retry(message),
                "dlq" => transaction.dead_letter(message, &error),
                other => bail!("unknown status {other:?}"),
            };
        }
    }
    for push in fields.list("push")? {
        let mut push = Fields::new(push)?;
        let (queue, partition) = (push.need("queue")?, push.text("partition")?);
        let mut item = Item::new(&push.take("payload").context("payload is missing")?);
        if let Some(id) = push.text("transactionId")? {
            item = item.transaction_id(id);
        }
        push.finish()?;
        transaction = transaction.push(queue, partition.as_deref().unwrap_or("Default"), item);
    }
    let commits = fields.number("commits")?.unwrap_or(1);
    fields.finish()?;
    // Regardless of the results of those before the last.
    for _ in 1..commits {
        let _ = transaction.commit().await;
    }
    Ok(seen(transaction.commit().await.map(|_| json!({}))))
}

fn dead_letters(world: &World, fields: &mut Fields) -> Result<DeadLetters> {
    Ok(match Place::take(world, fields)? {
        Place::Queue(queue) => queue.dead_letters(),
        Place::Partition(partition) => partition.dead_letters(),
        Place::Group(group) => group.dead_letters(),
        Place::Labels(_) => bail!("dead letters are of a queue"),
    })
}

async fn control(world: &World, path: &str, fields: Fields) -> Result<Seen> {
    world.control.post(path, &fields.rest()).await?;
    Ok(Seen::default())
}

async fn record(world: &World, mut fields: Fields) -> Result<Seen> {
    let mut query = Vec::new();
    match fields.take("path") {
        None => {}
        Some(Value::Array(paths)) => {
            for path in &paths {
                query.push(("path".to_owned(), path.as_str().context("a path is a text")?.to_owned()));
            }
        }
        Some(path) => query.push(("path".to_owned(), path.as_str().context("path is a text")?.to_owned())),
    }
    query.extend(fields.text("method")?.map(|method| ("method".to_owned(), method)));
    query.extend(fields.number("broker")?.map(|broker| ("broker".to_owned(), broker.to_string())));
    query.extend(fields.flag("clear")?.map(|clear| ("clear".to_owned(), clear.to_string())));
    fields.finish()?;
    let requests = world.control.record(&query).await?;
    let of = |key: &str| requests.iter().map(|request| request[key].clone()).collect::<Vec<_>>();
    let (statuses, authorization) = (of("status"), of("authorization"));
    Ok(Seen::new(json!({
        "count": requests.len(), "statuses": statuses, "authorization": authorization, "requests": requests,
    })))
}
