//! The commands that are clients of a broker. No SQL and no HTTP here: everything goes through `queen-client`.

#![warn(clippy::print_stdout, clippy::print_stderr, reason = "panics if nobody reads it")]

mod ack;
mod bench;
mod cause;
pub mod completions;
mod confirm;
mod connect;
mod consume;
mod delivery;
mod dlq;
mod exec;
mod exit;
mod groups;
mod guest;
mod interrupt;
mod ops;
mod output;
mod pages;
mod pop;
mod push;
mod queues;
mod reader;
mod redrive;
mod seek;
mod source;
mod text;
mod times;
mod top;

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Subcommand;

pub use completions::Shell;
pub use connect::Connect;
pub use exit::{Exit, told};

/// How long to wait at exit for background work; all that can be left is a blocked read from the terminal.
const END_PATIENCE: Duration = Duration::from_millis(100);

#[derive(Debug, Subcommand)]
pub enum Action {
    Push(push::Push),
    Pop(pop::Pop),
    Consume(consume::Consume),
    Ack(ack::Ack),
    Queues(queues::Queues),
    Groups(groups::Groups),
    Seek(seek::Seek),
    Dlq(dlq::Dlq),
    Ops(ops::Ops),
    Top(top::Top),
    Bench(bench::Bench),
}

/// Runs a command to completion, on two threads, so that leases are renewed while writing to a slow reader.
pub fn run(action: Action, connect: &Connect) -> Result<Exit> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime =
        runtime.worker_threads(2).enable_all().build().context("cannot start the worker threads")?;
    let ended = runtime.block_on(async {
        match action {
            Action::Push(push) => push::run(push, connect).await,
            Action::Pop(pop) => pop::run(pop, connect).await,
            Action::Consume(consume) => Box::pin(consume::run(consume, connect)).await,
            Action::Ack(ack) => ack::run(ack, connect).await,
            Action::Queues(queues) => queues::run(queues, connect).await,
            Action::Groups(groups) => groups::run(groups, connect).await,
            Action::Seek(seek) => seek::run(seek, connect).await,
            Action::Dlq(dlq) => dlq::run(dlq, connect).await,
            Action::Ops(ops) => ops::run(ops, connect).await,
            Action::Top(top) => top::run(top, connect).await,
            Action::Bench(bench) => Box::pin(bench::run(bench, connect)).await,
        }
    });
    runtime.shutdown_timeout(END_PATIENCE);
    ended
}
