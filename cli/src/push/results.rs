//! The results of a push: a line for each message, and counts per outcome.

use std::io;
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::ProgressBar;
use queen_client::{PushStatus, Pushed, Receipt};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::super::exit::{Exit, Refused, told};
use super::super::output::Output;
use super::super::text::thousands;

/// The outcome of a message, as JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    transaction_id: &'a str,
    message_id: &'a str,
    queue: &'a str,
    partition_id: Option<&'a str>,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation_id: Option<&'a str>,
}

/// Counts per outcome.
#[derive(Debug, Default)]
pub struct Count {
    all: u64,
    duplicate: u64,
    buffered: u64,
    deferred: u64,
    failed: u64,
    /// No response arrived in time.
    unknown: u64,
}

/// Where results go.
pub struct Results<'a> {
    queue: &'a str,
    output: Output,
    bar: &'a ProgressBar,
    /// How long to wait for remaining results once one has failed.
    patience: Duration,
    pub count: Count,
}

impl<'a> Results<'a> {
    pub fn new(queue: &'a str, output: Output, bar: &'a ProgressBar, patience: Duration) -> Self {
        Self { queue, output, bar, patience, count: Count::default() }
    }

    /// Reports outcomes in order, to the last message. After a failure it sets `enough` and returns the failure at the end; what was
    /// in progress then may still be stored.
    pub async fn settle(
        &mut self,
        mut receipts: mpsc::Receiver<Receipt>,
        enough: &CancellationToken,
    ) -> Result<()> {
        let (mut failed, mut until) = (None, None);
        let mut read = self.output.json;
        while let Some(receipt) = receipts.recv().await {
            let result = match until {
                None => receipt.result().await,
                Some(until) => match timeout_at(until, receipt.result()).await {
                    Ok(result) => result,
                    Err(_) => {
                        self.count.unknown += 1;
                        continue;
                    }
                },
            };
            let told = match result {
                Ok(pushed) => self.tell(&pushed, &mut read),
                Err(error) => {
                    self.count.failed += 1;
                    until.get_or_insert_with(|| Instant::now() + self.patience);
                    Err(error.into())
                }
            };
            if let Err(error) = told {
                failed.get_or_insert(error);
                enough.cancel();
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// `read` is false once the reader of our output has left. Messages are still stored.
    fn tell(&mut self, pushed: &Pushed, read: &mut bool) -> Result<()> {
        self.count.add(pushed);
        self.bar.set_message(format!("{} messages", thousands(self.count.all)));
        if !*read {
            return Ok(());
        }
        let written = self.output.line(&Line {
            transaction_id: &pushed.transaction_id,
            message_id: &pushed.message_id,
            queue: self.queue,
            partition_id: pushed.partition_id.as_deref(),
            status: pushed.status.word(),
            operation_id: pushed.operation.as_ref().map(|operation| operation.id.as_str()),
        });
        *read = written.is_ok();
        match written {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(error).context("cannot write results")
            }
            _ => Ok(()),
        }
    }
}

impl Count {
    fn add(&mut self, pushed: &Pushed) {
        self.all += 1;
        self.deferred += u64::from(pushed.operation.is_some());
        match pushed.status {
            PushStatus::Duplicate => self.duplicate += 1,
            PushStatus::Buffered => self.buffered += 1,
            _ => {}
        }
    }

    /// The failure, with the counts. Once anything was stored, it is more than a usage error.
    pub fn after(&self, error: anyhow::Error) -> anyhow::Error {
        let counts = [(self.all, "pushed"), (self.failed, "failed"), (self.unknown, "without a response")];
        let counts: Vec<String> = counts
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{} {what}", thousands(count)))
            .collect();
        if counts.is_empty() {
            return error;
        }
        let exit = match Exit::of(&error) {
            Exit::Usage => Exit::Failed,
            exit => exit,
        };
        Refused::error(exit, format!("{}: {}", counts.join(", "), told(&error).unwrap_or_default()))
    }

    pub fn told(&self, queue: &str) -> String {
        let messages = if self.all == 1 { "message" } else { "messages" };
        let mut text = format!("{} {messages} pushed to {queue}", thousands(self.all));
        for (count, what) in [
            (self.duplicate, "duplicates"),
            (self.buffered, "spooled by the broker"),
            (self.deferred, "deferred (see `queen ops`)"),
        ] {
            if count > 0 {
                text.push_str(&format!(", {} {what}", thousands(count)));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_usage_is_a_failure_once_something_was_sent() {
        let wrong = || Refused::usage("line 3 is not JSON").context("-, line 3");
        assert_eq!(Exit::of(&Count::default().after(wrong())), Exit::Usage);
        let error = Count { all: 1_200, unknown: 3, ..Count::default() }.after(wrong());
        assert_eq!(Exit::of(&error), Exit::Failed);
        assert_eq!(error.to_string(), "1,200 pushed, 3 without a response: -, line 3: line 3 is not JSON");
    }

    #[test]
    fn outcomes_other_than_stored_are_reported() {
        let count = Count { all: 1_200, duplicate: 2, deferred: 3, ..Count::default() };
        let told = "1,200 messages pushed to orders, 2 duplicates, 3 deferred (see `queen ops`)";
        assert_eq!(count.told("orders"), told);
        assert_eq!(Count { all: 1, ..Count::default() }.told("orders"), "1 message pushed to orders");
    }
}
