//! Traces: what consumers report about the messages they work on.

use std::sync::Arc;

use uuid::Uuid;

use super::messages::hashes;
use crate::Engine;
use crate::db::messages;
use crate::db::traces::{self as db, NamedTrace, NewTrace, Trace, TraceName};
use crate::error::Error;
use crate::log::frames::Frame;
use crate::log::ids::{Reference, TransactionHash};

impl Engine {
    /// The id of the event; `None`: there is no such message.
    pub async fn trace(&self, trace: &NewTrace) -> Result<Option<Uuid>, Error> {
        self.check_open()?;
        let id = Uuid::now_v7();
        let asked = Reference { hash: TransactionHash::new(&trace.transaction_id, true), id: None };
        // Nearly always the message is one that this broker has just served.
        let group: Arc<str> = trace.group.as_deref().unwrap_or(queen_protocol::QUEUE_MODE).into();
        let served = self.shared.leases().resolve(&(trace.partition, group), None, &[asked]);
        let offset = served.and_then(|served| served.offsets.first().copied());
        let hashes = hashes(&trace.transaction_id);
        let known = db::add_trace(&self.shared.connections, id, trace, &hashes, offset).await?;
        Ok(known.then_some(id))
    }

    /// The oldest first.
    pub async fn message_traces(
        &self,
        partition: Uuid,
        transaction: &str,
        limit: i64,
    ) -> Result<Vec<Trace>, Error> {
        Ok(db::message_traces(&self.shared.reads, partition, transaction, limit).await?)
    }

    /// One page, newest first, each with the payload of its message while that is stored; and how many there are.
    pub async fn named_traces(
        &self,
        name: &str,
        limit: i64,
        offset: i64,
    ) -> Result<(Vec<(NamedTrace, Option<String>)>, i64), Error> {
        let (traces, total) = db::named_traces(&self.shared.reads, name, limit, offset).await?;
        let places: Vec<(Uuid, i64)> =
            traces.iter().filter_map(|trace| Some((trace.partition_id, trace.offset?))).collect();
        let mut rows = match places.is_empty() {
            true => Vec::new(),
            false => messages::messages_at(&self.shared.reads, &places).await?,
        }
        .into_iter();
        let keys = &self.shared.config.keys;
        let payload =
            |frame: &str| Frame::parse(frame).and_then(|frame| Some(frame.open(keys).ok()?.into_owned()));
        let told = traces.into_iter().map(|trace| {
            let row = trace.offset.and_then(|_| rows.next().flatten());
            (trace, row.and_then(|row| payload(&row.frame)))
        });
        Ok((told.collect(), total))
    }

    /// One page, most recently used first, and how many names there are.
    pub async fn trace_names(&self, limit: i64, offset: i64) -> Result<(Vec<TraceName>, i64), Error> {
        Ok(db::trace_names(&self.shared.reads, limit, offset).await?)
    }
}
