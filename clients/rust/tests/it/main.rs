//! Tests of the client with a broker, each a real process where that matters.

mod buffer;
mod closing;
mod consumer;
mod control;
mod examples;
mod handlers;
mod log;
mod messages;
mod stub;
mod support;
