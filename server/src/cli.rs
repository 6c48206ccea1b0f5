//! The command line: which command, with which settings. It runs none of them.

use std::ffi::OsString;

use clap::{ArgMatches, Command, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::{Settings, environment};
use crate::key::KeyAction;

/// A partitioned message queue whose only durable state is PostgreSQL.
#[derive(Debug, Parser)]
#[command(name = "queen", version)]
pub struct Cli {
    #[command(subcommand)]
    pub action: Option<Action>,
    #[command(flatten)]
    pub settings: Settings,
}

#[derive(Debug, Subcommand)]
pub enum Action {
    /// Runs the broker; also what happens without a command.
    Serve,
    /// Opens psql on the broker's database; arguments are handed on.
    Psql {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Brings the schema of the database up to date and leaves; a broker does so by itself when it starts.
    Migrate,
    /// Says what is wrong with the database and what to do about it; ends with 1 if there is a problem.
    Doctor {
        /// Prints the findings as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Makes, lists and revokes API keys.
    Key {
        #[command(subcommand)]
        action: KeyAction,
    },
    /// Prints the settings in force and where each came from.
    Config {
        /// Prints the handbook page about them instead.
        #[arg(long)]
        markdown: bool,
    },
    /// Prints the OpenAPI document of the HTTP API.
    Openapi,
    /// Prints the version.
    Version,
}

impl Cli {
    /// The definition without this process's environment: what the handbook describes.
    pub fn definition() -> Command {
        Self::command()
    }

    pub fn parse_from<I, T>(arguments: I) -> Result<Self, clap::Error>
    where
        I: IntoIterator<Item = T>,
        T: Into<OsString> + Clone,
    {
        Self::parse_with_matches(arguments).map(|(cli, _)| cli)
    }

    pub fn parse_with_matches<I, T>(arguments: I) -> Result<(Self, ArgMatches), clap::Error>
    where
        I: IntoIterator<Item = T>,
        T: Into<OsString> + Clone,
    {
        let matches = environment::applied(Self::command()).try_get_matches_from(arguments)?;
        Ok((Self::from_arg_matches(&matches)?, matches))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_holds_together() {
        environment::applied(Cli::command()).debug_assert();
    }

    #[test]
    fn a_setting_may_stand_before_or_after_the_command() {
        for arguments in [["queen", "--port", "7", "serve"], ["queen", "serve", "--port", "7"]] {
            assert_eq!(Cli::parse_from(arguments).unwrap().settings.port, 7);
        }
    }

    #[test]
    fn psql_takes_its_own_arguments_as_they_are() {
        let cli = Cli::parse_from(["queen", "psql", "--port", "7", "-c", "select 1"]).unwrap();
        assert_eq!(cli.settings.port, 7);
        let Some(Action::Psql { arguments }) = cli.action else { panic!("not psql") };
        assert_eq!(arguments, ["-c", "select 1"]);
    }
}
