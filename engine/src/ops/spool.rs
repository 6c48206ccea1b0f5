//! Spool: a push that cannot reach the database, or must not, is accepted on the local disk.

use std::borrow::Cow;

use queen_protocol::{PushResult, PushStatus};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::push::Message;
use crate::Engine;
use crate::error::Error;
use crate::spool::{SpoolError, SpoolStats, Spooled, SpooledItem};

impl Engine {
    /// While the database is away, during maintenance, and behind what is in the spool already.
    pub(super) fn must_spool(&self, messages: &[Message<'_>]) -> bool {
        let Some(spool) = &self.shared.spool else { return false };
        self.shared.load.maintenance()
            || self.shared.connections.is_down()
            || spool.holds(messages.iter().map(|message| (message.queue, message.partition)))
    }

    pub(super) async fn spool(&self, messages: &[Message<'_>]) -> Result<Vec<PushResult>, Error> {
        let refused = |reason: &str| Error::Spool(SpoolError::Disk(reason.to_owned()));
        let Some(spool) = &self.shared.spool else { return Err(refused("there is none")) };
        let known = self.shared.directory.find(messages.iter().map(|m| (m.queue, m.partition)));
        let mut items = Vec::with_capacity(messages.len());
        let mut results = Vec::with_capacity(messages.len());
        for (index, (message, known)) in messages.iter().zip(known).enumerate() {
            let message_id = Uuid::now_v7();
            let payload: &RawValue =
                serde_json::from_str(message.payload).map_err(|error| refused(&error.to_string()))?;
            items.push(SpooledItem {
                queue: Cow::Borrowed(message.queue),
                partition: Cow::Borrowed(message.partition),
                namespace: message.namespace.map(Cow::Borrowed),
                task: message.task.map(Cow::Borrowed),
                transaction_id: Cow::Borrowed(message.transaction_id),
                chosen: message.chosen,
                message_id,
                trace_id: message.trace_id,
                payload,
            });
            results.push(PushResult {
                index,
                message_id,
                transaction_id: message.transaction_id.to_owned(),
                queue_name: message.queue.to_owned(),
                status: PushStatus::Buffered,
                partition_id: known.map_or(Uuid::nil(), |known| known.partition.id),
                trace_id: message.trace_id,
                error: None,
                ticket: None,
            });
        }
        let producer_sub = messages.first().and_then(|message| message.producer_sub).map(Cow::Borrowed);
        spool.append(&Spooled { producer_sub, items }).await.map_err(Error::Spool)?;
        Ok(results)
    }

    /// `None`: this broker has no spool.
    pub fn spool_stats(&self) -> Option<SpoolStats> {
        self.shared.spool.as_ref().map(crate::spool::Spool::stats)
    }
}
