//! The lanes: many callers, few statements. A lane knows when to fly and who asked for what;
//! what a flight does is the operation's business.

mod batcher;
mod lane;
mod operation;
mod slots;
mod stats;

pub use lane::{Lane, LaneSettings, landed};
pub use operation::Operation;
pub use stats::{LaneCounts, LaneSpread};
