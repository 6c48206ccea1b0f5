//! Tests of the testkit: other tests are only as good as their infrastructure.

#![expect(clippy::unwrap_used, reason = "in a test, to panic is to fail")]

mod broker;
mod database;
mod program;
mod proxy;
mod tidy;
