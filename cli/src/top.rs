//! `queen top`: a live overview. `sample.rs` fetches, `view.rs` compares, `frame.rs` draws.

mod frame;
mod sample;
mod view;

use std::io::{self, IsTerminal};
use std::pin::pin;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::connect::Connect;
use super::exit::{Exit, Refused};
use super::output::terminal_width;
use queen_protocol::units::some_seconds;
use sample::{Sample, Sampler};
use view::View;

/// How long a key press may go unnoticed.
const KEY_PATIENCE: Duration = Duration::from_millis(100);

/// Width of output that is not a terminal; scripts get whole lines.
const WIDE: usize = 1_000;

/// Show rates, lag, lanes and brokers, refreshed continuously.
///
/// Quit with `q`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  queen top --url http://one:6632,http://two:6632
  queen top --once --json | jq '.groups[] | select(.unread > 0)'")]
pub struct Top {
    /// Refresh interval.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = some_seconds)]
    interval: Duration,
    /// Take two samples, print the result as text, and exit.
    #[arg(long)]
    once: bool,
}

pub async fn run(top: Top, connect: &Connect) -> Result<Exit> {
    let output = connect.output();
    let sampler = Sampler::new(connect.each()?, connect.client()?);
    let once = top.once || output.json;
    let terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    if !once && !terminal {
        return Err(Refused::usage("not a terminal; use --once to print the overview"));
    }
    let first = sampler.look().await?;
    if once {
        let second = next(&sampler, top.interval).await?;
        let view = View::of(Some(&first), &second);
        match output.json {
            true => output.document(&view)?,
            false => {
                output.write(&frame::text(&view, if output.people { terminal_width() } else { WIDE }))?
            }
        }
        return Ok(Exit::Done);
    }
    let mut terminal = ratatui::try_init()?;
    let ended = live(&mut terminal, &sampler, first, top.interval).await;
    ratatui::restore();
    ended
}

async fn next(sampler: &Sampler, interval: Duration) -> Result<Sample> {
    sleep(interval).await;
    sampler.look().await
}

async fn live(
    terminal: &mut DefaultTerminal,
    sampler: &Sampler,
    first: Sample,
    interval: Duration,
) -> Result<Exit> {
    let mut keys = keys();
    let mut view = View::of(None, &first);
    let mut last = first;
    loop {
        let mut looking = pin!(next(sampler, interval));
        let looked = loop {
            terminal.draw(|screen| frame::draw(&view, screen.area(), screen.buffer_mut()))?;
            tokio::select! {
                looked = &mut looking => break looked,
                event = keys.recv() => match event {
                    Some(event) if !is_end(&event) => {}
                    _ => return Ok(Exit::Done),
                },
            }
        };
        match looked {
            Ok(sample) => {
                view = View::of(Some(&last), &sample);
                last = sample;
            }
            Err(error) => view.problem = Some(format!("{error:#}")),
        }
    }
}

/// Forwards terminal events until the receiver is gone.
fn keys() -> mpsc::Receiver<Event> {
    let (sender, receiver) = mpsc::channel(16);
    tokio::task::spawn_blocking(move || {
        while !sender.is_closed() {
            let Ok(waiting) = event::poll(KEY_PATIENCE) else { return };
            let Ok(event) = (if waiting { event::read() } else { continue }) else { return };
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    });
    receiver
}

fn is_end(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        _ if key.kind != KeyEventKind::Press => false,
        KeyCode::Char('c') => control,
        KeyCode::Char('q') | KeyCode::Esc => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use ratatui::crossterm::event::KeyEvent;

    use super::*;

    #[test]
    fn q_escape_and_control_c_leave_and_nothing_else_does() {
        let key = |code, modifiers| is_end(&Event::Key(KeyEvent::new(code, modifiers)));
        assert!(key(KeyCode::Char('q'), KeyModifiers::NONE) && key(KeyCode::Esc, KeyModifiers::NONE));
        assert!(key(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!key(KeyCode::Char('c'), KeyModifiers::NONE) && !is_end(&Event::Resize(1, 1)));
    }
}
