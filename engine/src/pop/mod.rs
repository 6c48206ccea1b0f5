//! What a pop needs to know between its statements: its own state, which partitions look ready, which pops are parked,
//! and which leases this broker has served.

pub mod answer;
pub mod leases;
pub mod machine;
pub mod ready;
pub mod timers;
pub mod waiter;
pub mod watch;

#[cfg(test)]
mod tests;
