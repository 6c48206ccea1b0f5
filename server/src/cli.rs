//! The command line: which command, with which settings or connection. It runs none of them.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Arg, Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use queen_cli::{Connect, Exit, Shell};

use crate::config::{Settings, environment, report, secrets};
use crate::key::KeyAction;

/// A partitioned message queue whose only durable state is PostgreSQL.
#[derive(Debug, Parser)]
#[command(name = "queen", version)]
struct Words {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug)]
pub struct Cli {
    pub action: Action,
    /// For commands that use the database; for others, the defaults.
    pub settings: Settings,
    /// For commands that call a broker; for others, the defaults.
    pub connect: Connect,
}

#[derive(Debug, Subcommand)]
pub enum Action {
    /// Runs the broker. This is the default command.
    #[command(after_help = "Examples:
  queen serve                                       with a PostgreSQL of its own
  DATABASE_URL=postgres://app@db/app queen serve    with yours")]
    Serve,
    /// Updates the schema of the database and exits.
    ///
    /// A broker does this by itself when it starts.
    #[command(after_help = "Examples:
  queen migrate --database-url postgres://app@db/app")]
    Migrate,
    /// Examines the database and reports problems with their remedies.
    ///
    /// Exits with 1 if there is a problem.
    #[command(after_help = "Examples:
  queen doctor
  queen doctor --database-url postgres://app@db/app --json")]
    Doctor {
        /// Prints the findings as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Opens psql on the broker's database. Arguments are passed on.
    #[command(after_help = "Examples:
  queen psql
  queen psql -c 'select queue, partition, payload from queen.messages limit 10'")]
    Psql {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Prints the settings in force and the origin of each.
    #[command(after_help = "Examples:
  queen config
  queen config --port 7000 | grep PORT")]
    Config {
        /// Prints docs/configuration.md instead.
        #[arg(long)]
        markdown: bool,
    },
    /// Creates, lists and revokes API keys.
    #[command(after_help = "Examples:
  queen key create --name shop --role read-write --queue 'orders.*:push'
  queen key list")]
    Key {
        #[command(subcommand)]
        action: KeyAction,
    },
    #[command(flatten)]
    Client(queen_cli::Action),
    /// Prints the OpenAPI document of the HTTP API.
    #[command(after_help = "Examples:
  queen openapi > openapi.json")]
    Openapi,
    /// Prints a completion script for your shell.
    #[command(after_help = "Examples:
  queen completions bash > /etc/bash_completion.d/queen
  queen completions fish > ~/.config/fish/completions/queen.fish")]
    Completions {
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Prints the version.
    #[command(after_help = "Examples:
  queen version")]
    Version,
    /// Explains the exit codes of commands.
    #[command(name = "exit-codes", hide = true, after_help = Exit::explained())]
    ExitCodes,
}

/// The groups in which `queen help` lists the commands.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Broker", &["serve", "migrate", "doctor", "psql", "config", "key"]),
    ("Messages", &["push", "pop", "consume", "ack"]),
    ("Administration", &["queues", "groups", "seek", "dlq", "ops", "top"]),
    ("Tools", &["bench", "openapi", "completions", "version", "help"]),
];

const USAGE: &str = "queen <COMMAND> [ARGUMENTS]";

const FIRST_STEPS: &str = "First steps:
  queen serve &
  queen push orders '{\"total\":10}' --partition customer-42
  queen consume orders --group billing

`queen help COMMAND` explains a command, with examples; `queen help exit-codes` explains exit codes.";

/// Commands that use the database. The others call a broker, or nothing.
const OF_THE_BROKER: [&str; 6] = ["serve", "migrate", "doctor", "psql", "config", "key"];
/// Of those, the ones whose help shows all settings. The others accept all settings, and show those of the database.
const WITH_ALL_SETTINGS: [&str; 2] = ["serve", "config"];
const DATABASE: &str = "Database";

impl Cli {
    /// All settings, without the environment of this process, for docs/configuration.md.
    pub fn definition() -> Command {
        Settings::augment_args(Command::new("queen"))
    }

    /// The names of all variables that are read.
    pub fn variables() -> Vec<String> {
        let all = Connect::augment_args(Self::definition());
        all.get_arguments().filter_map(|arg| Some(arg.get_env()?.to_string_lossy().into_owned())).collect()
    }

    /// The whole command line.
    pub fn command() -> Command {
        let (settings, connect) = (arguments::<Settings>(), arguments::<Connect>());
        let mut command = Words::command();
        let names: Vec<String> = command.get_subcommands().map(|each| each.get_name().to_owned()).collect();
        for name in names {
            command = command.mut_subcommand(&name, |each| match name.as_str() {
                name if OF_THE_BROKER.contains(&name) => {
                    let all = WITH_ALL_SETTINGS.contains(&name);
                    let shown = |arg: &Arg| all || arg.get_help_heading() == Some(DATABASE);
                    let arg = |arg: Arg| if shown(&arg) { arg } else { arg.hide(true) };
                    each.args(settings.iter().cloned().map(arg))
                }
                name if queen_cli::Action::has_subcommand(name) => each.args(&connect),
                _ => each,
            });
        }
        let list = grouped(&command);
        command
            .override_usage(USAGE)
            .help_template("{about}\n\n{usage-heading} {usage}{after-help}")
            .after_help(format!("{list}{FIRST_STEPS}"))
    }

    pub fn parse_from<I, T>(arguments: I) -> Result<Self, clap::Error>
    where
        I: IntoIterator<Item = T>,
        T: Into<OsString> + Clone,
    {
        let arguments = in_order(arguments.into_iter().map(Into::into).collect())?;
        let matches = Self::command().try_get_matches_from(arguments)?;
        let words = Words::from_arg_matches(&matches)?;
        let (name, chosen) = matches.subcommand().unwrap_or(("", &matches));
        let of_broker = OF_THE_BROKER.contains(&name);
        let asks = queen_cli::Action::has_subcommand(name);
        let mut settings: Settings =
            if of_broker { Settings::from_arg_matches(chosen)? } else { nothing_given()? };
        if let Err(error) = secrets::fill(&mut settings) {
            return Err(clap::Error::raw(ErrorKind::ValueValidation, format!("{error:#}\n")));
        }
        if WITH_ALL_SETTINGS.contains(&name) {
            settings.in_force = report::settings(&Self::definition(), chosen, &settings).into();
        }
        Ok(Self {
            action: words.action.unwrap_or(Action::Serve),
            settings,
            connect: if asks { Connect::from_arg_matches(chosen)? } else { nothing_given()? },
        })
    }
}

/// Flags are allowed before the command; they are moved behind it. Without a command it is `serve`: `queen --port 7 serve` and
/// `queen --port 7` are `queen serve --port 7`.
fn in_order(given: Vec<OsString>) -> Result<Vec<OsString>, clap::Error> {
    let anything = Command::new("queen")
        .version(env!("CARGO_PKG_VERSION"))
        .override_usage(USAGE)
        .args(without_environment::<Settings>())
        .args(without_environment::<Connect>())
        .allow_external_subcommands(true);
    let matches = match anything.try_get_matches_from(&given) {
        Ok(matches) => matches,
        // The complete definition prints the help.
        Err(error) if error.kind() == ErrorKind::DisplayHelp => return Ok(words(["queen", "--help"])),
        Err(error) if error.kind() == ErrorKind::DisplayVersion => return Ok(words(["queen", "--version"])),
        Err(error) => return Err(error),
    };
    let Some((name, rest)) = matches.subcommand() else {
        return Ok(words(["queen", "serve"]).into_iter().chain(given.into_iter().skip(1)).collect());
    };
    let behind = rest.get_many::<OsString>("").map_or(0, |rest| rest.len());
    let at = given.len() - behind - 1;
    let flags = given[..at].iter().skip(1);
    Ok(words(["queen", name]).into_iter().chain(flags.chain(&given[at + 1..]).cloned()).collect())
}

fn words(words: [&str; 2]) -> Vec<OsString> {
    words.map(OsString::from).into()
}

/// The flags of a struct, readable from this process's environment.
fn arguments<T: Args>() -> Vec<Arg> {
    environment::applied(T::augment_args(Command::new("queen"))).get_arguments().cloned().collect()
}

fn without_environment<T: Args>() -> Vec<Arg> {
    let command = T::augment_args(Command::new("queen"));
    command.get_arguments().cloned().map(|arg| arg.env(None::<&'static str>)).collect()
}

fn nothing_given<T: Args>() -> Result<T, clap::Error> {
    let command = Command::new("queen").args(without_environment::<T>());
    T::from_arg_matches(&command.try_get_matches_from(["queen"])?)
}

fn grouped(command: &Command) -> String {
    let about = |name: &str| match name {
        "help" => "Explains a command".to_owned(),
        _ => command
            .find_subcommand(name)
            .and_then(Command::get_about)
            .map(ToString::to_string)
            .unwrap_or_default(),
    };
    let mut text = String::new();
    for (title, names) in GROUPS {
        text.push_str(&format!("{title}:\n"));
        for name in names {
            text.push_str(&format!("  {name:<12} {}\n", about(name)));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn help_of(path: &[&str]) -> String {
        let mut command = Cli::command();
        command.build();
        let mut found = &mut command;
        for name in path {
            found = found.find_subcommand_mut(name).unwrap();
        }
        found.render_long_help().to_string()
    }

    /// Every command that people see, as they type it.
    fn paths() -> Vec<Vec<String>> {
        fn walk(command: &Command, path: &[String], paths: &mut Vec<Vec<String>>) {
            for each in command.get_subcommands().filter(|each| !each.is_hide_set()) {
                let path = [path, &[each.get_name().to_owned()]].concat();
                walk(each, &path, paths);
                paths.push(path);
            }
        }
        let mut paths = Vec::new();
        walk(&Cli::command(), &[], &mut paths);
        paths
    }

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_setting_may_stand_before_or_after_the_command() {
        let calls: [&[&str]; 4] = [
            &["queen", "--port", "7", "serve"],
            &["queen", "serve", "--port", "7"],
            &["queen", "--port", "7"],
            &["queen", "--port=7", "doctor", "--json"],
        ];
        for arguments in calls {
            assert_eq!(Cli::parse_from(arguments).unwrap().settings.port, 7, "{arguments:?}");
        }
        for arguments in [
            ["queen", "--url", "http://a", "queues", "list"],
            ["queen", "queues", "--url", "http://a", "list"],
        ] {
            assert_eq!(Cli::parse_from(arguments).unwrap().connect.url, ["http://a"]);
        }
        assert!(matches!(Cli::parse_from(["queen"]).unwrap().action, Action::Serve));
    }

    #[test]
    fn settings_of_the_broker_belong_to_its_commands_only() {
        assert!(Cli::parse_from(["queen", "push", "orders", "1", "--port", "7"]).is_err());
        assert!(Cli::parse_from(["queen", "--port", "7", "push", "orders", "1"]).is_err());
        assert!(Cli::parse_from(["queen", "serve", "--url", "http://a"]).is_err());
        for (path, has, lacks) in [
            (&["serve"][..], "--retention-interval", "--url"),
            (&["doctor"], "--database-url", "--retention-interval"),
            (&["key", "create"], "--database-url", "--retention-interval"),
            (&["push"], "--url", "--database-url"),
            (&["queues", "list"], "--token", "--port"),
            (&["version"], "queen version", "--"),
        ] {
            let help = help_of(path);
            assert!(help.contains(has) && !help.replace("--help", "").contains(lacks), "{path:?}: {help}");
        }
    }

    #[test]
    fn every_command_is_in_one_group_and_has_an_example() {
        let listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let command = Cli::command();
        let mut names: Vec<&str> =
            command.get_subcommands().filter(|each| !each.is_hide_set()).map(Command::get_name).collect();
        names.push("help");
        for name in &names {
            assert_eq!(listed.iter().filter(|each| *each == name).count(), 1, "{name}");
        }
        assert_eq!(listed.len(), names.len());
        for path in paths() {
            let words: Vec<&str> = path.iter().map(String::as_str).collect();
            let help = help_of(&words);
            let (_, examples) = help.split_once("Examples:").unwrap_or_else(|| panic!("{words:?}: {help}"));
            assert!(examples.contains(&format!("queen {}", words.join(" "))), "{words:?}: {examples}");
        }
    }

    #[test]
    fn help_and_version_are_answered_whatever_else_is_said() {
        for arguments in [["queen", "--help", "--port", "7"], ["queen", "--port", "7", "-h"]] {
            let error = Cli::parse_from(arguments).unwrap_err();
            assert!(
                error.kind() == ErrorKind::DisplayHelp && error.to_string().contains("First steps"),
                "{error}"
            );
        }
        assert_eq!(Cli::parse_from(["queen", "-V"]).unwrap_err().kind(), ErrorKind::DisplayVersion);
        assert_eq!(Cli::parse_from(["queen", "psuh"]).unwrap_err().kind(), ErrorKind::InvalidSubcommand);
    }

    #[test]
    fn psql_takes_its_own_arguments_as_they_are() {
        let cli = Cli::parse_from(["queen", "psql", "--port", "7", "-c", "select 1"]).unwrap();
        assert_eq!(cli.settings.port, 7);
        let Action::Psql { arguments } = cli.action else { panic!("not psql") };
        assert_eq!(arguments, ["-c", "select 1"]);
    }

    #[test]
    fn the_handbook_names_every_command_and_every_exit_code() {
        let page =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/command-line.md")).unwrap();
        for path in paths() {
            assert!(page.contains(&format!("queen {}", path.join(" "))), "{path:?}");
        }
        for (exit, meaning) in Exit::ALL {
            assert!(page.contains(&format!("| {} | {meaning} |", exit.code())), "{exit:?}");
        }
    }
}
