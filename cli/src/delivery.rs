//! How messages are printed: the payload alone for pipes, with partition and age at a terminal, everything as JSON with `--json`.

use std::borrow::Cow;
use std::io;

use queen_client::Message;
use serde::Serialize;
use serde_json::value::RawValue;

use super::output::Output;
use super::text::{clean, one_line};
use super::times;

pub type Raw = Message<Box<RawValue>>;

/// Uses the broker's field names, so that `queen ack` and other programs can read it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    id: &'a str,
    transaction_id: &'a str,
    queue: &'a str,
    partition: &'a str,
    partition_id: &'a str,
    consumer_group: &'a str,
    lease_id: &'a str,
    created_at: &'a str,
    retry_count: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    producer_sub: Option<&'a str>,
    data: &'a RawValue,
}

/// One line, flushed at once.
pub fn print(output: Output, message: &Raw) -> io::Result<()> {
    if output.json {
        return output.line(&Line {
            id: message.id(),
            transaction_id: message.transaction_id(),
            queue: message.queue(),
            partition: message.partition(),
            partition_id: message.partition_id(),
            consumer_group: message.group(),
            lease_id: message.lease_id(),
            created_at: message.created_at(),
            retry_count: message.retry_count(),
            trace_id: message.trace_id(),
            traceparent: message.traceparent(),
            producer_sub: message.producer(),
            data: &message.data,
        });
    }
    if !output.people {
        return output.write(&format!("{}\n", payload(message)));
    }
    let about = format!("{}  {}", clean(message.partition()), times::ago(message.created_at()));
    output.write(&format!("{}  {}\n", output.dim(&about), clean(&payload(message))))
}

/// On one line, whatever line breaks its producer used: readers of a pipe expect one message per line.
pub fn payload(message: &Raw) -> Cow<'_, str> {
    one_line(message.data.get())
}
