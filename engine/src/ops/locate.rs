//! Locate: transaction ids become offsets by asking the log, for acks of leases that this broker did not serve or
//! no longer remembers.

use std::sync::Arc;

use uuid::Uuid;

use crate::db::procedures;
use crate::db::{Connection, Error, Priority};
use crate::log::ids::TransactionHash;
use crate::shared::Shared;
use crate::sidecar::Operation;

pub struct Locate {
    pub partition: Uuid,
    pub group: Arc<str>,
    pub hashes: Vec<TransactionHash>,
}

/// The group's cursor, and the offset of each hash that was found.
pub type Located = (i64, Vec<Option<i64>>);

impl Operation for Locate {
    const NAME: &'static str = "locate";
    const PRIORITY: Priority = Priority::Turn;
    const MERGED_MAX: usize = usize::MAX;
    type Key = (Uuid, Arc<str>);
    /// `None`: no such partition.
    type Output = Option<Located>;
    type Context = Shared;

    fn key(&self) -> Self::Key {
        (self.partition, self.group.clone())
    }

    fn items(&self) -> usize {
        1
    }

    fn bytes(&self) -> usize {
        self.hashes.len() * 2 * TransactionHash::BYTES
    }

    async fn call(_: &Arc<Shared>, db: &Connection, batch: &[Self]) -> Result<Vec<Option<Located>>, Error> {
        // A transaction id was chosen by a client or minted for it: both spellings are asked for.
        let packed: Vec<Vec<u8>> = batch
            .iter()
            .map(|locate| {
                let both = [true, false].into_iter();
                both.flat_map(|chosen| {
                    locate.hashes.iter().flat_map(move |hash| hash.flagged(chosen).to_bytes())
                })
                .collect()
            })
            .collect();
        // Partitions may be locked, in this order.
        let mut order: Vec<usize> = (0..batch.len()).collect();
        order.sort_unstable_by_key(|&index| batch[index].partition);
        let mut ask = procedures::Locate::default();
        for &index in &order {
            ask.partitions.push(batch[index].partition);
            ask.groups.push(&batch[index].group);
            ask.hashes.push(&packed[index]);
            ask.wanted.push(batch[index].hashes.len() as i32);
        }
        let mut located: Vec<Option<Located>> = batch.iter().map(|_| None).collect();
        for answer in procedures::locate(db, &ask).await? {
            let index = order[answer.position];
            let count = batch[index].hashes.len();
            let (_, offsets) = located[index].get_or_insert_with(|| (answer.cursor, vec![None; count]));
            if let Some((index, offset)) = answer.found {
                offsets[index % count].get_or_insert(offset);
            }
        }
        Ok(located)
    }
}
