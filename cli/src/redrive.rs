//! Redrives: the broker pushes dead letters again, and this shows its progress.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use queen_client::{DeadLetters, ErrorKind, Queen, RedriveState};
use serde_json::json;
use tokio::time::sleep;

use super::exit::{Exit, Refused};
use super::interrupt::Interrupt;
use super::output::{Card, Cell, Output, Table, note, remark};
use super::pages;
use super::text::thousands;

/// Poll interval: often enough for a moving bar, seldom enough to cost the broker nothing.
const LOOK_EVERY: Duration = Duration::from_millis(250);
const LISTED_MAX: u64 = 50;

#[derive(Debug, Args)]
pub struct Replay {
    /// Only with this text in the error.
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Messages per second.
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// Push to the partitions of the same names in this queue.
    #[arg(long, value_name = "QUEUE")]
    target: Option<String>,
    /// Only count them.
    #[arg(long)]
    dry_run: bool,
    /// Do not wait; `queen dlq redrives` shows the progress.
    #[arg(long, conflicts_with = "dry_run")]
    background: bool,
}

pub async fn run(wanted: Replay, letters: &DeadLetters, output: Output) -> Result<Exit> {
    let mut redrive = letters.redrive().per_second(wanted.rate);
    if let Some(text) = wanted.error {
        redrive = redrive.error(text);
    }
    if let Some(queue) = wanted.target {
        redrive = redrive.target_queue(queue);
    }
    if wanted.dry_run {
        let total = redrive.dry_run().await?;
        let text = format!("{} dead letters would be pushed again", thousands(total));
        output.done(&json!({"dryRun": true, "total": total}), &text)?;
        return Ok(Exit::Done);
    }
    let mut interrupt = Interrupt::listen()?;
    let Some(started) = interrupt.or(redrive.into_future()).await else {
        let text = "interrupted; `queen dlq redrives` shows whether it has started";
        return Err(Refused::error(Exit::Interrupted, text));
    };
    let started = started?;
    if wanted.background {
        output.card(&card(&started))?;
        return Ok(Exit::Done);
    }
    let goes_on = || format!("redrive {} may still be running, see `queen dlq redrives`", started.id);
    let (state, exit) = match interrupt.or(watched(&started)).await {
        Some(state) => (state.with_context(goes_on)?, Exit::Done),
        None => {
            remark("interrupted; what was not pushed yet stays a dead letter");
            let Some(state) = interrupt.or(started.cancel()).await else {
                return Err(Refused::error(Exit::Interrupted, goes_on()));
            };
            (state.with_context(goes_on)?, Exit::Interrupted)
        }
    };
    let text = format!("pushed {} of {} again", thousands(state.done), thousands(state.total));
    match output.json {
        true => output.card(&card(&state))?,
        false => note(text),
    }
    if state.failed > 0 {
        let why = state.last_error.as_deref().unwrap_or("no reason given");
        return Err(Refused::error(Exit::Failed, format!("{} failed: {why}", thousands(state.failed))));
    }
    Ok(if state.status == "cancelled" && exit == Exit::Done { Exit::Failed } else { exit })
}

async fn watched(started: &RedriveState) -> Result<RedriveState> {
    let bar = ProgressBar::with_draw_target(Some(started.total), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{wide_bar} {human_pos} of {human_len}  {per_sec}, {eta} left");
    let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let mut state = started.clone();
    while state.finished_at.is_none() {
        sleep(LOOK_EVERY).await;
        state = started.refresh().await?;
        bar.set_position(state.done + state.failed);
    }
    bar.finish_and_clear();
    Ok(state)
}

pub async fn list(queen: &Queen, cancel: Option<&str>, output: Output) -> Result<Exit> {
    let Some(id) = cancel else {
        let admin = queen.admin();
        let page = async |limit, offset| anyhow::Ok(admin.redrives(limit, offset).await?);
        let (redrives, more) = pages::up_to(LISTED_MAX, page).await?;
        if redrives.is_empty() {
            remark("there are no redrives");
        }
        let mut table = Table::new(&COLUMNS);
        redrives.iter().for_each(|state| table.row(cells(state)));
        output.table(&table)?;
        if more {
            note("there are older redrives");
        }
        return Ok(Exit::Done);
    };
    let unknown = |error: queen_client::Error| match error.kind() {
        ErrorKind::NotFound => Refused::nothing(format!("no redrive {id}")),
        _ => error.into(),
    };
    let state = queen.admin().redrive(id).await.map_err(unknown)?.cancel().await?;
    output.card(&card(&state))?;
    Ok(Exit::Done)
}

const COLUMNS: [(&str, &str); 7] = [
    ("id", "REDRIVE"),
    ("status", "STATUS"),
    ("total", "LETTERS"),
    ("done", "PUSHED"),
    ("failed", "FAILED"),
    ("finishedAt", "FINISHED"),
    ("lastError", "ERROR"),
];

fn cells(state: &RedriveState) -> [Cell; 7] {
    [
        Cell::text(state.id.as_str()),
        Cell::text(state.status.as_str()),
        Cell::Number(state.total),
        Cell::Number(state.done),
        Cell::Number(state.failed),
        Cell::time(state.finished_at.clone()),
        Cell::maybe(state.last_error.clone()),
    ]
}

fn card(state: &RedriveState) -> Card {
    let labels = ["redrive", "status", "letters", "pushed", "failed", "finished", "error"];
    let fields = COLUMNS.iter().zip(labels).zip(cells(state));
    fields.fold(Card::default(), |card, (((name, _), label), cell)| card.field(name, label, cell))
}
