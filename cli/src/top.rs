//! `queen top`: how everything is, now and again. Looks through `sample.rs`, compares in `view.rs`, draws with `frame.rs`.

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

/// How long a key that ends it may go unnoticed.
const KEY_PATIENCE: Duration = Duration::from_millis(100);

/// Nobody cuts what a script reads.
const WIDE: usize = 1_000;

/// Shows rates, lag, lanes and brokers, now and again.
///
/// `q` leaves.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  queen top --url http://one:6632,http://two:6632
  queen top --once --json | jq '.groups[] | select(.unread > 0)'")]
pub struct Top {
    /// Time between two looks.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = some_seconds)]
    interval: Duration,
    /// Looks twice, prints what it shows as text, and leaves.
    #[arg(long)]
    once: bool,
}

pub async fn run(top: Top, connect: &Connect) -> Result<Exit> {
    let output = connect.output();
    let sampler = Sampler::new(connect.each()?, connect.client()?);
    let once = top.once || output.json;
    let terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    if !once && !terminal {
        return Err(Refused::usage("this is no terminal; --once prints what would be on it"));
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

/// What happens at the terminal; ends when nobody listens any more.
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
