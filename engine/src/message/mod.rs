//! The message plane: push, pop, ack, renew and transaction. Each has one file, which turns a request into entries of a
//! lane and the lane's results into the response.

pub mod ack;
pub mod ack_plan;
pub mod append;
pub mod claim;
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
pub mod turn;
