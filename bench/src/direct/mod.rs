//! The broker's own SQL without the broker: to measure PostgreSQL alone, and to fill a database faster than over HTTP. Knows no
//! scenario.

mod connection;
mod frames;
mod place;

pub use connection::{Claim, Connection, Link};
pub use frames::FrameWriter;
pub use place::Place;
