//! `queen push`: pushes messages from arguments, files or standard input, in order.

mod results;

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use queen_client::{Buffer, Item, Receipt};
use serde_json::value::{RawValue, to_raw_value};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::connect::Connect;
use super::exit::{Exit, Refused, told};
use super::output::{note, remark};
use results::Results;

/// Size of the client's buffer, and so the most messages in progress at once.
const RECEIPTS_MAX: usize = 10_000;

/// Push messages to a queue: from arguments, files or standard input.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  queen push orders '{\"total\":10}' '{\"total\":20}' --partition customer-42
  queen push orders --partition-from customer --id-from order < orders.jsonl")]
pub struct Push {
    /// Queue to push to. The first message creates it.
    queue: String,
    /// Payloads, each a JSON value. Without any, every line of standard input is one.
    #[arg(value_name = "PAYLOAD", allow_negative_numbers = true)]
    payloads: Vec<String>,
    /// Push every line of this file; `-` is standard input. May be repeated.
    #[arg(long, short, value_name = "FILE", conflicts_with = "payloads")]
    file: Vec<PathBuf>,
    /// Partition of the messages; `Default` if omitted.
    #[arg(long, short)]
    partition: Option<String>,
    /// Field of the payload that contains the partition's name.
    #[arg(long, value_name = "FIELD", conflicts_with = "partition")]
    partition_from: Option<String>,
    /// Your id of the message, for deduplication. For a single payload.
    #[arg(long, value_name = "ID", requires = "payloads")]
    transaction_id: Option<String>,
    /// Field of the payload that contains the transaction id.
    #[arg(long, value_name = "FIELD", conflicts_with = "transaction_id")]
    id_from: Option<String>,
    /// Payloads are plain text: each becomes a JSON string.
    #[arg(long)]
    text: bool,
}

pub async fn run(push: Push, connect: &Connect) -> Result<Exit> {
    if push.transaction_id.is_some() && push.payloads.len() > 1 {
        return Err(Refused::usage("--transaction-id is for a single payload; --id-from takes it from each"));
    }
    let items = push.arguments()?;
    let (queen, output) = (connect.client()?, connect.output());
    let buffer = queen.queue(&push.queue).buffer().start()?;
    if push.sources().iter().any(|source| source == Path::new("-")) && io::stdin().is_terminal() {
        remark("every line is a message; end with ctrl-d");
    }
    let bar = push.progress();
    let (receipts, taken) = mpsc::channel(RECEIPTS_MAX);
    let enough = CancellationToken::new();
    let mut results = Results::new(&push.queue, output, &bar, connect.timeout);
    let (fed, settled) =
        tokio::join!(push.feed(items, &buffer, receipts, &enough, &bar), results.settle(taken, &enough));
    let count = results.count;
    bar.finish_and_clear();
    match (fed, settled) {
        (Ok(()), Ok(())) => {
            remark(count.told(&push.queue));
            Ok(Exit::Done)
        }
        (Ok(()), Err(error)) => Err(count.after(error)),
        (Err(error), settled) => {
            if let Some(text) = settled.err().as_ref().and_then(told) {
                note(text);
            }
            Err(count.after(error))
        }
    }
}

impl Push {
    /// Pushes payloads given as arguments. All are parsed before any is sent, so that a typo changes nothing.
    fn arguments(&self) -> Result<Vec<Item>> {
        let item = |(number, payload): (u32, &String)| {
            self.item(payload).with_context(|| format!("payload {number}"))
        };
        (1..).zip(&self.payloads).map(item).collect()
    }

    /// Adds messages to the buffer as fast as it accepts them, until there are no more or `enough` is set. Each message in the
    /// buffer has a receipt.
    async fn feed(
        &self,
        items: Vec<Item>,
        buffer: &Buffer,
        receipts: mpsc::Sender<Receipt>,
        enough: &CancellationToken,
        bar: &ProgressBar,
    ) -> Result<()> {
        let add = async |item: Item| -> Result<()> {
            // Every buffered message gets a receipt: nothing can interrupt between reserving its place and adding it.
            let place = receipts.reserve().await?;
            place.send(buffer.push(item).await?);
            Ok(())
        };
        let feeding = async {
            for (number, item) in (1..).zip(items) {
                add(item).await.with_context(|| format!("payload {number}"))?;
            }
            for source in self.sources() {
                let name = source.display();
                let file = open(&source).await.map_err(|error| Refused::usage(format!("{name}: {error}")))?;
                let mut lines = BufReader::new(file).lines();
                let mut number = 0_u64;
                while let Some(line) =
                    lines.next_line().await.with_context(|| format!("cannot read {name}"))?
                {
                    number += 1;
                    bar.inc(line.len() as u64 + 1);
                    if !line.trim().is_empty() {
                        let at = || format!("{name}, line {number}");
                        add(self.item(&line).with_context(at)?).await.with_context(at)?;
                    }
                }
            }
            anyhow::Ok(())
        };
        tokio::select! {
            biased;
            () = enough.cancelled() => Ok(()),
            done = feeding => done,
        }
    }

    fn sources(&self) -> Vec<PathBuf> {
        match (self.payloads.is_empty(), self.file.is_empty()) {
            (true, true) => vec![PathBuf::from("-")],
            _ => self.file.clone(),
        }
    }

    fn item(&self, payload: &str) -> Result<Item> {
        let raw: Box<RawValue> = match self.text {
            true => to_raw_value(payload)?,
            false => serde_json::from_str(payload).map_err(|error| {
                Refused::usage(format!(
                    "{:?} is not JSON ({error}); use --text for plain text",
                    shortened(payload)
                ))
            })?,
        };
        let mut item = Item::new(&raw);
        if let Some(field) = &self.partition_from {
            item = item.partition(field_of(&raw, field)?);
        } else if let Some(partition) = &self.partition {
            item = item.partition(partition);
        }
        if let Some(field) = &self.id_from {
            item = item.transaction_id(field_of(&raw, field)?);
        } else if let Some(id) = &self.transaction_id {
            item = item.transaction_id(id);
        }
        Ok(item)
    }

    /// A progress bar at a terminal. For files, the total size is known.
    fn progress(&self) -> ProgressBar {
        if !self.payloads.is_empty() {
            return ProgressBar::hidden();
        }
        let sizes: Option<Vec<u64>> = self
            .file
            .iter()
            .map(|file| file.metadata().ok().filter(|it| it.is_file()).map(|it| it.len()))
            .collect();
        let total: Option<u64> = sizes.filter(|sizes| !sizes.is_empty()).map(|sizes| sizes.iter().sum());
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
        let template = match total {
            Some(_) => "{wide_bar} {percent}%  {msg}  {elapsed}, {eta} left",
            None => "{spinner} {msg}  {elapsed}",
        };
        // A constant that a test checks.
        bar.with_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        )
    }
}

async fn open(source: &Path) -> io::Result<Box<dyn AsyncRead + Unpin>> {
    if source == Path::new("-") {
        return Ok(Box::new(tokio::io::stdin()));
    }
    Ok(Box::new(tokio::fs::File::open(source).await?))
}

/// A field of an object as a name. A number keeps its text: as a value, a long one would be rounded and two could become equal.
fn field_of(payload: &RawValue, field: &str) -> Result<String> {
    let missing =
        || Refused::usage(format!("{:?} has no text or number {field:?}", shortened(payload.get())));
    let fields: HashMap<String, &RawValue> = serde_json::from_str(payload.get()).map_err(|_| missing())?;
    let value = fields.get(field).ok_or_else(missing)?.get();
    match value.as_bytes()[0] {
        b'"' => serde_json::from_str(value).map_err(|_| missing()),
        b'-' | b'0'..=b'9' | b't' | b'f' => Ok(value.to_owned()),
        _ => Err(missing()),
    }
}

fn shortened(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_be_taken_from_a_field_of_the_payload() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        assert_eq!(field_of(&raw(r#"{"customer":"c 1","n":7}"#), "customer").unwrap(), "c 1");
        assert_eq!(field_of(&raw(r#"{"customer":"c 1","n":7}"#), "n").unwrap(), "7");
        for bad in ["{}", r#"{"n":null}"#, r#"{"n":{}}"#, "7", "[1]", r#"{"n":"\ud800"}"#] {
            assert_eq!(Exit::of(&field_of(&raw(bad), "n").unwrap_err()), Exit::Usage, "{bad}");
        }
    }

    #[test]
    fn a_number_is_a_name_as_it_is_written() {
        for number in ["100000000000000000001", "100000000000000000002", "0.1234567890123456789", "-1e400"] {
            let raw = RawValue::from_string(format!("{{\"n\": {number} }}")).unwrap();
            assert_eq!(field_of(&raw, "n").unwrap(), number);
        }
    }
}
