//! Background jobs. The work of each follows what has changed since its last run, not the number of partitions.

pub mod examine;
pub mod extents;
pub mod history;
pub mod inbox;
pub mod life;
pub mod monitor;
pub mod processor;
pub mod redrive;
pub mod replay;
pub mod retention;
pub mod statistics;
pub mod wake;
