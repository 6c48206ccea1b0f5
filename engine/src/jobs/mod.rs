//! Background work. Each follows what happened since it last looked, not the number of partitions.

pub mod extents;
pub mod history;
pub mod monitor;
pub mod processor;
pub mod replay;
pub mod retention;
pub mod wake;
