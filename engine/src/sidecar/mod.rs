//! The lanes: many callers, few statements. A lane decides when to fly, and returns each output to its caller; what a
//! flight does is up to the operation.

mod batcher;
mod lane;
mod operation;
mod slots;
mod stats;

pub use lane::{Lane, LaneSettings, landed};
pub use operation::Operation;
pub use stats::{LaneCounts, LaneSpread};
