//! The verb `consume`: a consumer with a scripted handler.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use queen_client::{Consume, Consumer, Context, Message};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::fields::{Fields, duration};
use crate::verbs::{Place, subscription};
use crate::{Seen, World, now};

const HANG_MAX: Duration = Duration::from_secs(10);

enum Do {
    Succeed,
    Fail(String),
    FailFirst(String, u64),
    SucceedFirst(String, u64),
    Sleep(Duration),
    Manual,
    Hang,
}

enum StopAfter {
    Never,
    Messages(usize),
    Time(Duration),
}

/// The handler's script, and what it has seen.
struct Handler {
    act: Do,
    stop_after: StopAfter,
    calls: AtomicU64,
    data: Mutex<Vec<Value>>,
    lease_lost: AtomicBool,
    stop_asked: Mutex<Option<Instant>>,
}

impl Handler {
    async fn handle<T: Serialize>(&self, messages: Vec<Message<T>>, context: Context) -> Result<(), String> {
        let call = self.calls.fetch_add(1, SeqCst) + 1;
        let values = messages.iter().map(|message| serde_json::to_value(&message.data).expect("it was JSON"));
        let count = {
            let mut data = self.data.lock().expect("nobody panics here");
            data.extend(values);
            data.len()
        };
        if let StopAfter::Messages(enough) = self.stop_after
            && count >= enough
        {
            self.stop_asked.lock().expect("nobody panics here").get_or_insert_with(now);
            context.stop();
        }
        match &self.act {
            Do::Succeed => Ok(()),
            Do::Fail(text) => Err(text.clone()),
            Do::FailFirst(text, times) if call <= *times => Err(text.clone()),
            Do::FailFirst(..) => Ok(()),
            Do::SucceedFirst(text, times) if call > *times => Err(text.clone()),
            Do::SucceedFirst(..) => Ok(()),
            Do::Sleep(time) => {
                tokio::time::sleep(*time).await;
                Ok(())
            }
            Do::Manual => {
                for message in &messages {
                    message.ack().await.map_err(|error| error.to_string())?;
                }
                Ok(())
            }
            Do::Hang if call == 1 => {
                let told = tokio::time::timeout(HANG_MAX, context.lease_lost()).await.is_ok();
                self.lease_lost.store(told, SeqCst);
                Ok(())
            }
            Do::Hang => Ok(()),
        }
    }
}

pub async fn perform(world: &World, mut fields: Fields) -> Result<Seen> {
    let mut consume = match Place::take(world, &mut fields)? {
        Place::Queue(queue) => queue.consume(),
        Place::Partition(partition) => partition.consume(),
        Place::Group(group) => group.consume(),
        Place::Labels(labels) => labels.consume(),
    };
    let told = Arc::new(AtomicU64::new(0));
    let hears = told.clone();
    consume = options(consume, &mut fields)?.on_error(move |_| _ = hears.fetch_add(1, SeqCst));
    let stop_after = match fields.take("stopAfter") {
        None => StopAfter::Never,
        Some(Value::Number(number)) => {
            StopAfter::Messages(usize::try_from(number.as_u64().context("a number")?)?)
        }
        Some(time) => StopAfter::Time(duration(&time)?),
    };
    let handler = Arc::new(Handler {
        act: act(Fields::new(fields.take("handler").context("handler is missing")?)?)?,
        stop_after,
        calls: AtomicU64::new(0),
        data: Mutex::default(),
        lease_lost: AtomicBool::new(false),
        stop_asked: Mutex::default(),
    });
    let (mode, decode) = (fields.need("mode")?, fields.text("decode")?);
    fields.finish()?;
    let started = match decode.as_deref() {
        None => start::<Value>(consume, &mode, &handler)?,
        Some("object") => start::<Map<String, Value>>(consume, &mode, &handler)?,
        Some(other) => bail!("unknown decode {other:?}"),
    };
    let consumer = match started {
        Ok(consumer) => consumer,
        Err(error) => return Ok(error.into()),
    };
    if let StopAfter::Time(time) = handler.stop_after {
        tokio::time::sleep(time).await;
        handler.stop_asked.lock().expect("nobody panics here").get_or_insert_with(now);
        consumer.stopper().stop();
    }
    let summary = match consumer.finished().await {
        Ok(summary) => summary,
        Err(error) => return Ok(error.into()),
    };
    let asked = *handler.stop_asked.lock().expect("nobody panics here");
    let data = handler.data.lock().expect("nobody panics here").clone();
    Ok(Seen::new(json!({
        "count": data.len(), "data": data,
        "handled": summary.handled, "failed": summary.failed, "batches": summary.batches,
        "leaseLost": handler.lease_lost.load(SeqCst), "errorsTold": told.load(SeqCst),
        "stopTookMs": asked.map(|asked| u64::try_from(asked.elapsed().as_millis()).unwrap_or(u64::MAX)),
    })))
}

fn options(mut consume: Consume, fields: &mut Fields) -> Result<Consume> {
    if let Some(batch) = fields.number("batch")? {
        consume = consume.batch(u32::try_from(batch)?);
    }
    if let Some(partitions) = fields.number("partitions")? {
        consume = consume.partitions(u32::try_from(partitions)?);
    }
    if let Some(workers) = fields.number("concurrency")? {
        consume = consume.concurrency(usize::try_from(workers)?);
    }
    if let Some(messages) = fields.number("limit")? {
        consume = consume.limit(messages);
    }
    if let Some(time) = fields.duration("idleTimeout")? {
        consume = consume.idle_timeout(time);
    }
    if let Some(time) = fields.duration("wait")? {
        consume = consume.wait(time);
    }
    if let Some(time) = fields.duration("lease")? {
        consume = consume.lease(time);
    }
    if let Some(auto_ack) = fields.flag("autoAck")? {
        consume = consume.auto_ack(auto_ack);
    }
    if let Some(renew) = fields.flag("renew")? {
        consume = consume.renew(renew);
    }
    if let Some(text) = fields.text("subscription")? {
        consume = consume.subscription(subscription(&text)?);
    }
    Ok(consume)
}

fn act(mut fields: Fields) -> Result<Do> {
    let word = fields.need("do")?;
    let text = fields.text("text")?;
    let (ms, times) = (fields.number("ms")?, fields.number("times")?);
    fields.finish()?;
    Ok(match word.as_str() {
        "succeed" => Do::Succeed,
        "fail" => Do::Fail(text.context("text is missing")?),
        "failFirst" => Do::FailFirst(text.context("text is missing")?, times.unwrap_or(1)),
        "succeedFirst" => Do::SucceedFirst(text.context("text is missing")?, times.unwrap_or(1)),
        "sleep" => Do::Sleep(Duration::from_millis(ms.context("ms is missing")?)),
        "manual" => Do::Manual,
        "hang" => Do::Hang,
        other => bail!("unknown handler {other:?}"),
    })
}

type Started = Result<Consumer, queen_client::Error>;

fn start<T: Serialize + DeserializeOwned + Send + Sync + 'static>(
    consume: Consume,
    mode: &str,
    handler: &Arc<Handler>,
) -> Result<Started> {
    let handler = handler.clone();
    Ok(match mode {
        "each" => consume
            .each(move |message: Message<T>, context| {
                let handler = handler.clone();
                async move { handler.handle(vec![message], context).await }
            })
            .start(),
        "batches" => consume
            .batches(move |messages: Vec<Message<T>>, context| {
                let handler = handler.clone();
                async move { handler.handle(messages, context).await }
            })
            .start(),
        other => bail!("unknown mode {other:?}"),
    })
}
