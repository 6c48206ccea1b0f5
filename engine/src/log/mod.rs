//! The log as the broker sees it: frames, ids, the segments it remembers, and what it has written.

pub mod dedup;
pub mod frames;
pub mod ids;
pub mod segments;

use std::sync::Arc;

use uuid::Uuid;

/// A partition as the broker knows it. Names never change; a deleted partition comes back with another id.
#[derive(Debug, PartialEq, Eq)]
pub struct Partition {
    pub id: Uuid,
    /// The part of a message id that identifies the partition.
    pub number: i64,
    pub queue: Arc<str>,
    pub name: Arc<str>,
}
