//! The message plane: push, pop, ack, renew and transaction. The file named after an operation is the path of its
//! requests: it turns them into entries of lanes, and their outcomes into the response.

pub mod ack;
pub mod ack_outcome;
pub mod ack_plan;
pub mod append;
pub mod claim;
pub mod consume;
pub mod defer;
pub mod defer_ack;
pub mod draft;
pub mod fetch;
pub mod locate;
pub mod open;
pub mod owners;
pub mod parcel;
pub mod pop;
pub mod push;
pub mod renew;
pub mod settle;
pub mod spool;
pub mod transaction;
