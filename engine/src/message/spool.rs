//! Spool: a push that cannot reach the database, or must not, is accepted on the local disk.

use std::borrow::Cow;

use queen_protocol::{PushResult, PushStatus};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::parcel::Message;
use super::push::result;
use crate::Engine;
use crate::error::Error;
use crate::spool::{SpoolError, SpoolStats, Spooled, SpooledItem};

impl Engine {
    /// Whether these must be spooled: while the database cannot be reached, during maintenance, and behind what is
    /// already in the spool.
    ///
    /// # Cancel safety
    /// Nothing is accepted yet.
    pub(super) async fn must_spool(&self, messages: &[Message<'_>]) -> bool {
        let Some(spool) = &self.shared.spool else { return false };
        let away = || self.shared.load.maintenance() || self.shared.connections.is_down();
        if away() {
            return true;
        }
        let lanes = messages.iter().map(|message| (message.queue, message.partition));
        spool.holds_longer(lanes).await || away()
    }

    /// Whether some of them would overtake messages in the spool.
    pub(crate) fn spool_holds(&self, messages: &[Message<'_>]) -> bool {
        let lanes = messages.iter().map(|message| (message.queue, message.partition));
        self.shared.spool.as_ref().is_some_and(|spool| spool.holds(lanes))
    }

    /// Accepts these messages, all or none.
    pub(super) async fn spool(
        &self,
        messages: &[Message<'_>],
        indexes: &[usize],
        results: &mut [Option<PushResult>],
    ) -> Result<(), Error> {
        let Some(spool) = &self.shared.spool else { return Err(Error::Spool(SpoolError::None)) };
        let chosen = || indexes.iter().map(|&index| &messages[index]);
        let known = self.shared.directory.find(chosen().map(|message| (message.queue, message.partition)));
        // With a key, the file holds nothing readable: a queue's options may have changed since the database was last
        // reached.
        let keys = &self.shared.config.keys;
        if self.shared.config.encryption_required && !keys.can_seal() {
            // A queue that is not known may require encryption.
            let refused =
                chosen().zip(&known).find(|(_, known)| known.as_ref().is_none_or(|known| known.encrypted));
            if let Some((message, known)) = refused {
                let queue = message.queue.to_owned();
                return Err(match known {
                    Some(_) => Error::KeyRequired(queue),
                    None => Error::KeyInDoubt(queue),
                });
            }
        }
        let sealed = chosen().map(|message| keys.seal(message.payload, message.transaction_id));
        let sealed = sealed.collect::<Result<Vec<_>, _>>()?;
        let mut items = Vec::with_capacity(indexes.len());
        for ((message, sealed), known) in chosen().zip(&sealed).zip(&known) {
            let payload = sealed.as_ref().map_or(message.payload, |sealed| &sealed.envelope);
            let payload: &RawValue = serde_json::from_str(payload)
                .map_err(|error| Error::Spool(SpoolError::Disk(error.to_string())))?;
            items.push(SpooledItem {
                queue: Cow::Borrowed(message.queue),
                partition: Cow::Borrowed(message.partition),
                namespace: message.namespace.map(Cow::Borrowed),
                task: message.task.map(Cow::Borrowed),
                transaction_id: Cow::Borrowed(message.transaction_id),
                chosen: message.chosen,
                message_id: Uuid::now_v7(),
                trace_id: message.trace_id,
                traceparent: message.trace.map(|trace| trace.parent.to_string()),
                tracestate: message.trace.and_then(|trace| trace.state).map(Cow::Borrowed),
                key_id: sealed.as_ref().map(|sealed| Cow::Borrowed(sealed.key_id.as_str())),
                in_doubt: sealed.is_some() && known.as_ref().is_none_or(|known| !known.encrypted),
                payload,
            });
        }
        let ids: Vec<Uuid> = items.iter().map(|item| item.message_id).collect();
        let producer_sub = messages.first().and_then(|message| message.producer_sub).map(Cow::Borrowed);
        spool.append(&Spooled { producer_sub, items }).await.map_err(Error::Spool)?;
        for ((&index, message_id), known) in indexes.iter().zip(ids).zip(known) {
            results[index] = Some(PushResult {
                message_id,
                partition_id: known.map_or(Uuid::nil(), |known| known.partition.id),
                ..result(index, &messages[index], PushStatus::Buffered)
            });
        }
        Ok(())
    }

    /// `None`: this broker has no spool.
    pub fn spool_stats(&self) -> Option<SpoolStats> {
        self.shared.spool.as_ref().map(crate::spool::Spool::stats)
    }
}
