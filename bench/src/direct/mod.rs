//! The broker's own SQL without the broker: to see what PostgreSQL alone does with it, and to fill a database
//! faster than over HTTP. Knows no scenario.

mod connection;
mod frames;
mod place;

pub use connection::{Claim, Connection, Link};
pub use frames::FrameWriter;
pub use place::Place;
