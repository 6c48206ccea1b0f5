//! The destination and the format of log lines. They go to standard error, because standard output is for people.
//!
//! A line that cannot be written is dropped: reporting that with `eprintln!`, as the formatter would, panics.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

use anyhow::{Context, Result, bail};
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{LogFormat, Settings};

/// At `debug` the driver logs the parameters of statements, and payloads are among them.
const DRIVER: &str = "tokio_postgres::query=info";

const ESCAPE: char = '\u{1b}';

pub fn start(settings: &Settings) -> Result<()> {
    let filter = filter(&settings.log_level)?;
    let colours = io::stderr().is_terminal();
    let lines = OneLine { to: io::stderr, colours };
    match settings.log_format {
        LogFormat::Text => text(filter, lines).try_init(),
        LogFormat::Json => json(filter, lines).try_init(),
    }
    .context("cannot start logging")
}

fn text<W>(filter: EnvFilter, lines: OneLine<W>) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let colours = lines.colours;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(lines);
    lines.log_internal_errors(false).finish()
}

fn json<W>(filter: EnvFilter, lines: OneLine<W>) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let colours = lines.colours;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(lines);
    lines.json().flatten_event(true).log_internal_errors(false).finish()
}

/// Each event is one line: a name that contains a line break, or characters that change what a terminal shows, cannot
/// pass for another line. The formatter writes whole events, and escapes only some characters.
struct OneLine<W> {
    to: W,
    /// Keep the formatter's own colors.
    colours: bool,
}

struct Escaping<W> {
    to: W,
    colours: bool,
}

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for OneLine<W> {
    type Writer = Escaping<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        Escaping { to: self.to.make_writer(), colours: self.colours }
    }
}

impl<W: Write> Write for Escaping<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        self.to.write_all(escaped(&text, self.colours).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// The escapes are those of JSON, so that a line of JSON stays one.
fn escaped(event: &str, colours: bool) -> Cow<'_, str> {
    let line = event.strip_suffix('\n').unwrap_or(event);
    if !line.contains(is_control) {
        return Cow::Borrowed(event);
    }
    let mut text = String::with_capacity(event.len() + 16);
    for (at, char) in line.char_indices() {
        match char {
            char if !is_control(char) => text.push(char),
            ESCAPE if colours && is_color(&line[at + 1..]) => text.push(ESCAPE),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            // All control characters are in the Basic Multilingual Plane.
            char => _ = write!(text, "\\u{:04x}", u32::from(char)),
        }
    }
    text.push_str(&event[line.len()..]);
    Cow::Owned(text)
}

/// The codes that the formatter writes. A name that contains one may appear colored, but cannot hide or move anything.
fn is_color(rest: &str) -> bool {
    let code = rest.strip_prefix('[').and_then(|rest| rest.split_once('m')).map(|(code, _)| code);
    code.and_then(|code| code.parse().ok()).is_some_and(|code: u8| matches!(code, 0..=3 | 31..=36))
}

/// Includes characters that some readers take for the end of a line, and those that change the direction of text.
fn is_control(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A lone word is a level. The filter would take a misspelled level for the name of a module and log nothing.
fn filter(level: &str) -> Result<EnvFilter> {
    if !level.contains(['=', ',']) && level.parse::<LevelFilter>().is_err() {
        bail!("--log-level {level:?} is not a level; use error, warn, info, debug or trace");
    }
    let filter =
        EnvFilter::try_new(level).with_context(|| format!("--log-level {level:?} cannot be read"))?;
    Ok(filter.add_directive(DRIVER.parse()?))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::subscriber::with_default;
    use tracing::{info, info_span};

    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Sink {
        fn lines(&self) -> Vec<String> {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap().lines().map(str::to_owned).collect()
        }
    }

    fn forge() {
        let name = "q\n2026-01-01T00:00:00Z  INFO audit: forged\r\u{2028}\u{85}\u{1b}[2K\u{202e}\u{200e}\u{200f}\u{61c}\u{7f}\0";
        let _span = info_span!("request", queue = %name).entered();
        info!(shown = %name, quoted = name, listed = ?[name], "about {name}");
    }

    #[test]
    fn a_name_with_line_breaks_is_one_line_in_text_and_in_json() {
        for colours in [false, true] {
            let (plain, objects) = (Sink::default(), Sink::default());
            let lines = |sink: &Sink| {
                let sink = sink.clone();
                OneLine { to: move || sink.clone(), colours }
            };
            with_default(text(filter("info").unwrap(), lines(&plain)), forge);
            with_default(json(filter("info").unwrap(), lines(&objects)), forge);
            let (plain, objects) = (plain.lines(), objects.lines());
            assert_eq!((plain.len(), objects.len()), (1, 1), "{plain:?} {objects:?}");
            for mark in ['\u{200e}', '\u{200f}', '\u{61c}'] {
                assert!(!plain[0].contains(mark) && !objects[0].contains(mark), "{mark:?}");
            }
            let unsafe_ = |char: char| is_control(char) && !(colours && char == ESCAPE);
            assert!(!plain[0].contains(unsafe_) && !plain[0].contains("\u{1b}[2K"), "{plain:?}");
            assert!(!objects[0].contains(is_control), "{objects:?}");
            let object: serde_json::Value = serde_json::from_str(&objects[0]).unwrap();
            assert!(object["quoted"].as_str().unwrap().starts_with("q\n2026"), "{object}");
        }
    }

    #[test]
    fn the_driver_logs_no_parameters_whatever_is_asked_for() {
        for level in ["debug", "trace", "tokio_postgres=trace", "info,tokio_postgres::query=debug"] {
            let sink = Sink::default();
            let to = sink.clone();
            let lines = OneLine { to: move || to.clone(), colours: false };
            with_default(text(filter(level).unwrap(), lines), || {
                tracing::debug!(target: "tokio_postgres::query", "executing statement s1 with parameters: []");
                tracing::error!("shown");
            });
            assert!(!sink.lines().concat().contains("parameters"), "{level}");
        }
    }

    #[test]
    fn a_misspelt_level_is_an_error_and_directives_are_taken() {
        assert!(
            filter("info").is_ok() && filter("WARN").is_ok() && filter("info,queen_engine=debug").is_ok()
        );
        assert!(filter("verbose").is_err() && filter("queen_engine=loud").is_err());
    }
}
