//! Where log lines go and what they look like. Standard error, so that standard output stays for people.

use std::io::{self, IsTerminal};

use anyhow::{Context, Result, bail};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

use crate::config::{LogFormat, Settings};

pub fn start(settings: &Settings) -> Result<()> {
    let filter = filter(&settings.log_level)?;
    let colours = io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(colours);
    let started = match settings.log_format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
    started.map_err(anyhow::Error::from_boxed).context("cannot start logging")
}

/// A lone word is a level. The filter would take a misspelt one for the name of a module and log nothing.
fn filter(level: &str) -> Result<EnvFilter> {
    if !level.contains(['=', ',']) && level.parse::<LevelFilter>().is_err() {
        bail!("--log-level {level:?} is no level; use error, warn, info, debug or trace");
    }
    EnvFilter::try_new(level).with_context(|| format!("--log-level {level:?} cannot be read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_level_is_an_error_and_directives_are_taken() {
        assert!(
            filter("info").is_ok() && filter("WARN").is_ok() && filter("info,queen_engine=debug").is_ok()
        );
        assert!(filter("verbose").is_err() && filter("queen_engine=loud").is_err());
    }
}
