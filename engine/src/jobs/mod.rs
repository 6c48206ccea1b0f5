//! Background work. Each follows what happened since it last looked, not the number of partitions.

pub mod extents;
pub mod retention;
pub mod wake;
