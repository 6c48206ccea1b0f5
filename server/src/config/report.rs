//! Tells people what the settings are: those in force with their origin, and the page of the handbook. It
//! reads the same definitions the command line does, so neither can drift.

use std::fmt::Write as _;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

use super::connection::part_password;
use super::database::server_default;
use super::environment::{ALIASES, name_in_use};
use super::{Database, Settings};

/// A setting as people are told of it.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The section it stands in.
    pub group: String,
    /// Its flag, without the dashes.
    pub name: String,
    pub variable: String,
    /// What holds, given or not; `None` for what plays no part. Of a secret it only says that there is one.
    pub value: Option<String>,
    pub source: Source,
    pub help: String,
    pub secret: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Default,
    Environment,
    Flag,
}

impl Source {
    pub fn word(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Environment => "environment",
            Self::Flag => "flag",
        }
    }
}

/// All of them, in the order of the handbook. `settings` is what `matches` say.
pub fn settings(command: &Command, matches: &ArgMatches, settings: &Settings) -> Vec<Setting> {
    let setting = |arg: &Arg| {
        let secret = SECRETS.contains(&arg.get_id().as_str());
        let value = value(arg, matches, settings);
        Setting {
            group: arg.get_help_heading().unwrap_or_default().to_owned(),
            name: arg.get_long().unwrap_or_default().to_owned(),
            variable: variable(arg),
            value: if secret { value.map(|_| SET.to_owned()) } else { value },
            source: match matches.value_source(arg.get_id().as_str()) {
                Some(ValueSource::CommandLine) => Source::Flag,
                Some(ValueSource::EnvVariable) => Source::Environment,
                _ => Source::Default,
            },
            help: help(arg),
            secret,
        }
    };
    settings_of(command).map(setting).collect()
}

/// One line per setting: name, value, where it came from.
pub fn in_force(settings: &Settings) -> String {
    let mut text = String::new();
    let of_file = |setting: &Setting| {
        let name = format!("{}_FILE", setting.variable);
        settings.in_force.iter().any(|other| other.variable == name && other.value.is_some()).then_some(name)
    };
    for setting in settings.in_force.iter() {
        let file = of_file(setting);
        let value = match &setting.value {
            _ if file.is_some() => MASK,
            Some(_) if setting.secret => MASK,
            Some(value) => value.as_str(),
            None => UNSET,
        };
        let origin = match setting.source {
            _ if file.is_some() => format!("file of {}", file.unwrap_or_default()),
            Source::Flag => format!("flag --{}", setting.name),
            Source::Environment => format!("environment {}", name_in_use(&setting.variable)),
            Source::Default => "default".to_owned(),
        };
        _ = writeln!(text, "{:<34} {value:<24} {origin}", setting.variable);
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
        let default = default_value(arg).map_or(UNSET.to_owned(), |value| format!("`{value}`"));
        let flag = arg.get_long().unwrap_or_default();
        let meaning = format!("{}.{}{}", help(arg).replace('|', "\\|"), unit(arg), alias(arg));
        _ = writeln!(text, "| `{}` | `--{flag}` | {default} | {meaning} |", variable(arg));
    }
    text.push_str(CONCLUSION);
    text
}

const INTRODUCTION: &str = "# Configuration

Printed by `queen config --markdown` from `server/src/config.rs`; a test compares the two.

A flag wins over a variable, a variable over the default. An empty variable counts as not given. Those of encryption,
`QUEEN_TLS_CERT`, `QUEEN_TLS_KEY`, `QUEEN_TLS_CLIENT_CA`, `JWT_ISSUER`, `JWT_AUDIENCE` and `JWT_SKIP_PATHS` are the exception: empty,
they end the start, because without them the broker would be more open than was meant. A value that makes no sense ends the start with an error that names it. `queen config` prints what is in force and
where each value came from.

The defaults of the `PG_*` settings count once one of them is given; without any, and without `DATABASE_URL`,
Queen runs a PostgreSQL of its own.

A bare number counts in the unit given with the setting. Durations may also be written `250ms`, `30s`, `5m`,
`2h` or `7d`, sizes `64KiB`, `32MiB` or `1GiB`.
";

const CONCLUSION: &str = "
## Variables without a meaning

Variables that earlier servers read and this one does not (`ALL_OPS_USE_SIDECAR`, `USE_POP_STATE_MACHINE`,
`QUEEN_UDP_PEERS` and others) earn one warning each at start. So does a variable that begins with `QUEEN_` and is no setting; the
warning names the nearest that is.
";

const UNSET: &str = "–";
const MASK: &str = "***";
/// A secret that is there.
const SET: &str = "(set)";

/// Told to nobody.
const SECRETS: [&str; 5] =
    ["pg_password", "encryption_key", "encryption_old_keys", "jwt_secret", "jwt_public_key"];

fn settings_of(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| arg.get_help_heading().is_some())
}

fn variable(arg: &Arg) -> String {
    match arg.get_env() {
        Some(name) => name.to_string_lossy().into_owned(),
        None => format!("--{}", arg.get_long().unwrap_or_default()),
    }
}

/// What holds, given or not, without passwords in addresses; `None` for what plays no part.
fn value(arg: &Arg, matches: &ArgMatches, settings: &Settings) -> Option<String> {
    let id = arg.get_id().as_str();
    let given = matches.get_raw(id).map(|values| {
        let values: Vec<_> = values.map(|value| value.to_string_lossy()).collect();
        values.join(",")
    });
    let value = given.or_else(|| match (id, settings.database()) {
        ("data_dir", Database::Embedded { data_dir, .. }) => Some(data_dir.display().to_string()),
        (_, Database::External { .. }) if settings.database_url.is_none() => default_value(arg),
        _ => None,
    })?;
    Some(match id {
        "database_url" => part_password(&value).text,
        "otlp_endpoint" | "jwt_jwks_url" => address(&value),
        _ => value,
    })
}

/// Scheme, host and path: what else an address holds may be a password or a token.
pub fn address(text: &str) -> String {
    let place = text.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = place.split_once("://") else { return place.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

fn default_value(arg: &Arg) -> Option<String> {
    let default = arg.get_default_values().first().map(|value| value.to_string_lossy().into_owned());
    default.or_else(|| server_default(arg.get_id().as_str()).map(str::to_owned))
}

fn help(arg: &Arg) -> String {
    arg.get_help().map(ToString::to_string).unwrap_or_default()
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
            assert!(arg.get_env().is_some() && arg.get_long().is_some(), "{}", arg.get_id());
            assert!(!help(arg).is_empty(), "{}", arg.get_id());
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
            "--jwt-secret",
            "hush",
            "--database-url",
            "postgres://a:hush@h/d",
            "--encryption-key",
            "k:hush",
            "--encryption-old-keys",
            "hush",
            "--otlp-endpoint",
            "http://a:hush@collector:4318/in?token=hush",
            "--jwt-jwks-url",
            "https://issuer/keys?token=hush",
            "--rate-queues",
            "a=1,b=2",
        ];
        let settings = Cli::parse_from(arguments).unwrap().settings;
        let text = in_force(&settings);
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        assert!(line("PORT").contains("7000") && line("PORT").ends_with("flag --port"), "{text}");
        assert!(line("DB_LOCK_TIMEOUT").ends_with("default"), "{text}");
        assert!(!text.contains("hush") && !format!("{:?}", settings.in_force).contains("hush"), "{text}");
        let value = |name: &str| {
            let found = settings.in_force.iter().find(|setting| setting.name == name).unwrap();
            found.value.clone()
        };
        assert_eq!(value("jwt-secret").as_deref(), Some("(set)"));
        assert_eq!(value("encryption-key-file"), None);
        assert_eq!(value("otlp-endpoint").as_deref(), Some("http://collector:4318/in"));
        assert_eq!(value("jwt-jwks-url").as_deref(), Some("https://issuer/keys"));
        assert_eq!(value("database-url").as_deref(), Some("postgres://a@h/d"));
        assert_eq!(value("rate-queues").as_deref(), Some("a=1,b=2"));
    }

    /// Who adds a secret is told to hide it.
    #[test]
    fn what_is_called_a_secret_is_one() {
        let command = Cli::definition();
        let open = ["tls_key"];
        for arg in settings_of(&command) {
            let id = arg.get_id().as_str();
            let called = ["password", "secret", "key", "token"].iter().any(|word| id.contains(word));
            assert_eq!(
                called && !open.contains(&id) && !id.ends_with("_file"),
                SECRETS.contains(&id),
                "{id}"
            );
        }
        assert!(SECRETS.iter().all(|id| settings_of(&command).any(|arg| arg.get_id() == id)));
    }

    #[test]
    fn the_handbook_page_is_the_one_printed() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
        let page = std::fs::read_to_string(path).unwrap();
        assert_eq!(page, markdown(&Cli::definition()), "write it anew with `make docs`");
    }
}
