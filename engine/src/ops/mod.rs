//! One file per operation: what a caller asked for becomes entries of a lane, and what the lane answers becomes
//! what the caller is told.

pub mod ack;
pub mod ack_plan;
pub mod admin;
pub mod append;
pub mod browse;
pub mod claim;
pub mod defer;
pub mod defer_ack;
pub mod fetch;
pub mod history;
pub mod keys;
pub mod letters;
pub mod life;
pub mod locate;
pub mod maintenance;
pub mod message_status;
pub mod messages;
pub mod open;
pub mod operations;
pub mod owners;
pub mod pop;
pub mod purge;
pub mod push;
pub mod renew;
pub mod replay;
pub mod resources;
pub mod settle;
pub mod spool;
pub mod traces;
pub mod transaction;
pub mod turn;
