//! The lanes: many callers, few statements. A lane knows when to fly and who asked for what;
//! what a flight does is the operation's business.

mod batcher;
mod lane;
mod slots;
mod stats;

pub use lane::{Lane, LaneSettings, Operation, landed};
pub use stats::{LaneCounts, LaneSpread};
