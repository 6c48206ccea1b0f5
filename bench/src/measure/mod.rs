//! What a window of load cost: processor time, memory, and what PostgreSQL was made to do.

mod cost;
mod cpu;
mod memory;
mod meter;

pub use cost::{AtOnce, Cost, Settling, Usage};
pub use cpu::CpuWatch;
pub use memory::Memory;
pub use meter::Meter;
