#![doc = include_str!("../README.md")]
//!
//! # About this crate
//!
//! This crate shares no types with the broker, because a client has to read responses of newer brokers, which may contain more
//! fields and words.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod ack;
pub mod admin;
mod brokers;
mod buffer;
mod call;
mod clock;
mod consume;
mod control;
mod dead_letters;
mod delivery;
mod error;
mod http;
mod item;
mod log;
mod looks;
mod message;
mod on_error;
mod operation;
mod pop;
mod push;
mod queen;
mod queue;
mod retry;
mod scan;
mod signal;
mod tasks;
#[cfg(feature = "tls")]
mod tls;
mod traces;
mod transaction;
mod want;
mod wire;

pub use ack::{Acked, Acks};
pub use admin::Admin;
pub use buffer::{Buffer, BufferBuilder, BufferPartition, Receipt, Undelivered, WhenFull};
pub use consume::{Consume, Consumer, Consuming, Context, Stopper, Summary};
pub use dead_letters::{
    DeadLetter, DeadLetterPage, DeadLetters, ListDeadLetters, Purge, Redrive, RedriveState,
};
pub use error::{Error, ErrorKind};
pub use item::{Item, Pushable};
pub use message::{Message, Renew, Renewed, Settle, Taken};
pub use operation::Deferred;
pub use pop::Pop;
pub use push::{Pending, Push, PushAll, PushStatus, Pushed};
pub use queen::{Builder, Queen, QueuedOperation};
pub use queue::{Discover, Group, Partition, Queue};
pub use traces::{NewTrace, Trace, TraceNames, Traces};
pub use transaction::{Committed, Transaction};
pub use want::Subscription;
