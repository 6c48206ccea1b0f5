//! Fetch: the FETCHING step of many pops as one read, for what the segment cache does not hold.

use std::sync::Arc;

use uuid::Uuid;

use crate::db::procedures;
use crate::db::{Connection, Error, Priority};
use crate::log::segments::Segment;
use crate::shared::Shared;
use crate::sidecar::Operation;

/// One pop's reads: an entry of the fetch lane.
pub struct Fetch {
    /// Distinct per read: reads do not exclude each other.
    pub number: u64,
    pub ids: Vec<Uuid>,
    pub first: Vec<i64>,
    pub last: Vec<i64>,
}

impl Operation for Fetch {
    const NAME: &'static str = "fetch";
    const PRIORITY: Priority = Priority::Fetch;
    const MERGED_MAX: usize = 1;
    type Key = u64;
    /// Per range, its segments in order.
    type Output = Vec<Vec<Arc<Segment>>>;
    type Context = Shared;

    fn key(&self) -> u64 {
        self.number
    }

    fn items(&self) -> usize {
        self.ids.len()
    }

    fn bytes(&self) -> usize {
        0
    }

    async fn call(shared: &Arc<Shared>, db: &Connection, batch: &[Self]) -> Result<Vec<Self::Output>, Error> {
        let ids: Vec<Uuid> = batch.iter().flat_map(|entry| entry.ids.iter().copied()).collect();
        let first: Vec<i64> = batch.iter().flat_map(|entry| entry.first.iter().copied()).collect();
        let last: Vec<i64> = batch.iter().flat_map(|entry| entry.last.iter().copied()).collect();
        let rows = procedures::fetch(db, &ids, &first, &last).await?;
        let mut read: Vec<Vec<Arc<Segment>>> = ids.iter().map(|_| Vec::new()).collect();
        let mut cache = shared.segments();
        let keep = db.is_current();
        for row in rows {
            let segment =
                Arc::new(Segment::new(row.base_offset, row.created_at, row.transactions, row.frames));
            if keep {
                cache.insert(ids[row.position], segment.clone());
            }
            if segment.base_offset < last[row.position] {
                read[row.position].push(segment);
            }
        }
        drop(cache);
        let mut read = read.into_iter();
        Ok(batch.iter().map(|entry| read.by_ref().take(entry.ids.len()).collect()).collect())
    }
}

/// Whether segments hold every offset of a range.
pub fn covers(segments: &[Arc<Segment>], first: i64, last: i64) -> bool {
    let mut next = first;
    for segment in segments {
        if segment.base_offset > next {
            return false;
        }
        next = next.max(segment.end());
    }
    next >= last
}
