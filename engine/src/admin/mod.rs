//! The control plane: queues, groups, dead letters, traces, lists and figures. None of it is on the path of a message.

pub mod browse;
pub mod history;
pub mod keys;
pub mod letters;
pub mod life;
pub mod maintenance;
pub mod message_status;
pub mod messages;
pub mod operations;
pub mod purge;
pub mod queues;
pub mod redrive;
pub mod resources;
pub mod traces;
