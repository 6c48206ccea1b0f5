//! The testkit tested: other tests are only as good as what they stand on.

#![expect(clippy::unwrap_used, reason = "in a test, to panic is to fail")]

mod broker;
mod database;
mod program;
mod proxy;
mod tidy;
