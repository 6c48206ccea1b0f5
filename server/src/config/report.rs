//! Tells people what the settings are: those in force with their origin, and the page of the handbook. It
//! reads the same definitions the command line does, so neither can drift.

use std::fmt::Write as _;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

use super::Settings;
use super::connection::part_password;
use super::environment::ALIASES;

/// One line per setting: name, value, where it came from. Passwords are masked.
pub fn in_force(command: &Command, matches: &ArgMatches, settings: &Settings) -> String {
    let mut text = String::new();
    for arg in settings_of(command) {
        let value = shown_value(arg, matches);
        _ = writeln!(text, "{:<34} {value:<24} {}", variable(arg), origin(arg, matches));
    }
    _ = writeln!(text, "\ndatabase: {}", settings.database().shown());
    text
}

/// `docs/configuration.md`.
pub fn markdown(command: &Command) -> String {
    let mut text = String::from(INTRODUCTION);
    let mut section = None;
    for arg in settings_of(command) {
        if arg.get_help_heading() != section {
            section = arg.get_help_heading();
            let heading = section.unwrap_or_default();
            _ = write!(
                text,
                "\n## {heading}\n\n| variable | flag | default | meaning |\n|---|---|---|---|\n"
            );
        }
        let default: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let default = if default.is_empty() { "–".to_owned() } else { format!("`{}`", default.join(",")) };
        let flag = arg.get_long().unwrap_or_default();
        let meaning = format!("{}{}{}", help(arg), unit(arg), alias(arg));
        _ = writeln!(text, "| `{}` | `--{flag}` | {default} | {meaning} |", variable(arg));
    }
    text.push_str(CONCLUSION);
    text
}

const INTRODUCTION: &str = "# Configuration

Printed by `queen config --markdown` from `server/src/config.rs`; a test compares the two.

A flag wins over a variable, a variable over the default. An empty variable counts as not given. A value
that makes no sense ends the start with an error that names it. `queen config` prints what is in force and
where each value came from.

A bare number counts in the unit given with the setting. Durations may also be written `250ms`, `30s`, `5m`,
`2h` or `7d`, sizes `64KiB`, `32MiB` or `1GiB`.
";

const CONCLUSION: &str = "
## Variables without a meaning

Variables that earlier servers read and this one does not (`ALL_OPS_USE_SIDECAR`, `USE_POP_STATE_MACHINE`,
`QUEEN_UDP_PEERS`, `OPQ_*` and others) earn one warning each at start. `JWT_ENABLED=true` ends it: this
version cannot check tokens, and a door that was meant to be locked must not stand open.
";

fn settings_of(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| arg.get_help_heading().is_some())
}

fn variable(arg: &Arg) -> String {
    match arg.get_env() {
        Some(name) => name.to_string_lossy().into_owned(),
        None => format!("--{}", arg.get_long().unwrap_or_default()),
    }
}

fn shown_value(arg: &Arg, matches: &ArgMatches) -> String {
    let id = arg.get_id().as_str();
    let Some(values) = matches.get_raw(id) else { return "–".to_owned() };
    let value = values.map(|value| value.to_string_lossy()).collect::<Vec<_>>().join(",");
    match id {
        "pg_password" => "***".to_owned(),
        "database_url" => part_password(&value).text,
        _ => value,
    }
}

fn origin(arg: &Arg, matches: &ArgMatches) -> String {
    match matches.value_source(arg.get_id().as_str()) {
        Some(ValueSource::CommandLine) => format!("flag --{}", arg.get_long().unwrap_or_default()),
        Some(ValueSource::EnvVariable) => "environment".to_owned(),
        _ => "default".to_owned(),
    }
}

fn help(arg: &Arg) -> String {
    arg.get_help().map(ToString::to_string).unwrap_or_default().replace('|', "\\|")
}

fn unit(arg: &Arg) -> &'static str {
    let names = arg.get_value_names().unwrap_or_default();
    match names.first().map(clap::builder::Str::as_str) {
        Some("MS") => " In milliseconds.",
        Some("SECONDS") => " In seconds.",
        Some("BYTES") => " In bytes.",
        _ => "",
    }
}

fn alias(arg: &Arg) -> String {
    let ours = variable(arg);
    let alias = ALIASES.iter().find(|(name, _)| *name == ours);
    alias.map(|(_, alias)| format!(" Also read as `{alias}`.")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;

    #[test]
    fn every_setting_has_a_variable_a_flag_and_a_sentence() {
        let command = Cli::definition();
        assert!(settings_of(&command).count() >= 38);
        for arg in settings_of(&command) {
            assert!(arg.get_env().is_some() && arg.get_long().is_some(), "{arg}");
            assert!(help(arg).len() > 10, "{arg}");
        }
    }

    #[test]
    fn the_report_names_the_origin_and_masks_secrets() {
        let arguments = [
            "queen",
            "config",
            "--port",
            "7000",
            "--pg-password",
            "hush",
            "--database-url",
            "postgres://a:hush@h/d",
        ];
        let (cli, matches) = Cli::parse_with_matches(arguments).unwrap();
        let text = in_force(&Cli::definition(), &matches, &cli.settings);
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        assert!(line("PORT").contains("7000") && line("PORT").ends_with("flag --port"), "{text}");
        assert!(line("DB_LOCK_TIMEOUT").ends_with("default"), "{text}");
        assert!(!text.contains("hush"), "{text}");
    }

    #[test]
    fn the_handbook_page_is_the_one_printed() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
        if let Ok(page) = std::fs::read_to_string(path) {
            assert_eq!(page, markdown(&Cli::definition()), "run `queen config --markdown` again");
        }
    }
}
