//! Background work. Each follows what happened since it last looked, not the number of partitions.

pub mod examine;
pub mod extents;
pub mod history;
pub mod life;
pub mod monitor;
pub mod retention;
pub mod statistics;
pub mod wake;
