//! Life: what is known about one message, from its push to what every group did with it.

use uuid::Uuid;

use crate::Engine;
use crate::db::life::{self, EventRow, GroupRow, MessageRow};
use crate::error::Error;
use crate::jobs;
use crate::life::LifeCounts;
use crate::log::frames::{Frame, read_string};
use crate::log::ids::TransactionHash;

/// More than a person reads.
const GROUPS_MAX: i32 = 1_000;
const EVENTS_MAX: i32 = 1_000;

pub use crate::db::life::{EventRow as Recorded, GroupRow as Reader};

/// Times are microseconds since 1970.
pub struct MessageLife {
    pub id: Uuid,
    pub transaction_id: String,
    pub partition_id: Uuid,
    pub queue: String,
    pub partition: String,
    pub offset: i64,
    /// `None`: neither the log nor a dead letter holds the message any more; only events do.
    pub created_at: Option<i64>,
    pub trace_id: Option<String>,
    pub trace_parent: Option<String>,
    pub trace_state: Option<String>,
    pub producer_sub: Option<String>,
    /// Base offset, count and extent; `None`: no longer in the log.
    pub segment: Option<(i64, i32, i32)>,
    /// By name.
    pub groups: Vec<GroupRow>,
    /// In order of time.
    pub events: Vec<EventRow>,
}

impl Engine {
    /// `None`: no such message. Events of this broker are complete; those of other brokers arrive a moment later.
    pub async fn life(&self, partition: Uuid, transaction_id: &str) -> Result<Option<MessageLife>, Error> {
        jobs::life::write(&self.shared).await;
        let connections = &self.shared.reads;
        let spellings = [true, false].map(|chosen| TransactionHash::new(transaction_id, chosen).to_bytes());
        let hashes = spellings.concat();
        let found = life::life_message(connections, partition, transaction_id, &hashes).await?;
        let Some(message) = found else { return Ok(None) };
        let offset = message.offset;
        let groups = life::life_groups(connections, partition, offset, transaction_id, GROUPS_MAX).await?;
        let events = life::life_events_of(connections, partition, offset, transaction_id, EVENTS_MAX).await?;
        Ok(Some(whole(partition, transaction_id, message, groups, events)))
    }

    /// How many events of traced messages this broker recorded, and how many it lost.
    pub fn life_counts(&self) -> LifeCounts {
        self.shared.life.counts()
    }
}

fn whole(
    partition_id: Uuid,
    transaction_id: &str,
    message: MessageRow,
    groups: Vec<GroupRow>,
    events: Vec<EventRow>,
) -> MessageLife {
    let line = message.header.map(|header| header + ",\"payload\":null}");
    let frame = line.as_deref().and_then(Frame::parse);
    let text =
        |value: for<'a> fn(&Frame<'a>) -> Option<&'a str>| frame.as_ref().and_then(value).map(read_string);
    MessageLife {
        id: message.message_id,
        transaction_id: transaction_id.to_owned(),
        partition_id,
        queue: message.queue,
        partition: message.partition,
        offset: message.offset,
        created_at: message.created_at,
        trace_id: text(|frame| frame.trace_id),
        trace_parent: text(|frame| frame.trace_parent),
        trace_state: text(|frame| frame.trace_state),
        producer_sub: text(|frame| frame.producer_sub),
        segment: message.segment,
        groups,
        events,
    }
}
