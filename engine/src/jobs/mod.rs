//! Background jobs. The work of each follows what has changed since its last run, not the number of partitions.

pub mod examine;
pub mod extents;
pub mod history;
pub mod life;
pub mod monitor;
pub mod retention;
pub mod statistics;
pub mod wake;
