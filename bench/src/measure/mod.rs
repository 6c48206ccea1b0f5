//! Costs of a window of load: CPU time, memory, and PostgreSQL's work.

mod cost;
mod cpu;
mod memory;
mod meter;

pub use cost::{AtOnce, Cost, Settling, Usage};
pub use cpu::CpuWatch;
pub use memory::Memory;
pub use meter::Meter;
