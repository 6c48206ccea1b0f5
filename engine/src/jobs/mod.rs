//! Background work. Each follows what happened since it last looked, not the number of partitions.

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
