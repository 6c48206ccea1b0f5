//! Which database the settings mean: yours or the embedded one. It starts and connects to neither.

use std::path::PathBuf;
use std::process::Command;

use queen_engine::Tls;

use super::Settings;
use super::connection::{part_password, place, quote, with_tls};

/// What the settings of your own server are when at least one of them is given. They are no defaults of the
/// command line: with them, none would ever be missing, and the embedded server never run.
const SERVER_DEFAULTS: [(&str, &str); 7] = [
    ("pg_host", "localhost"),
    ("pg_port", "5432"),
    ("pg_user", "postgres"),
    ("pg_password", "postgres"),
    ("pg_db", "postgres"),
    ("pg_use_ssl", "false"),
    ("pg_ssl_reject_unauthorized", "true"),
];

pub fn server_default(setting: &str) -> Option<&'static str> {
    SERVER_DEFAULTS.iter().find(|(name, _)| *name == setting).map(|(_, value)| *value)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Database {
    Embedded {
        data_dir: PathBuf,
        bin_dir: Option<PathBuf>,
    },
    /// Never shown as it is: it may hold a password.
    External {
        connection: String,
        tls: Tls,
    },
}

impl Settings {
    /// Yours if anything says where it is, otherwise the embedded one.
    pub fn database(&self) -> Database {
        let said = match &self.database_url {
            Some(url) => url.clone(),
            None if self.names_a_server() => self.keywords(),
            None => {
                let data_dir = self.data_dir.clone().unwrap_or_else(default_data_dir);
                return Database::Embedded { data_dir, bin_dir: self.pg_bin_dir.clone() };
            }
        };
        let (connection, asked) = with_tls(&said);
        let tls = match self.pg_use_ssl {
            None => asked.unwrap_or(Tls::Off),
            Some(false) => Tls::Off,
            Some(true) if self.pg_ssl_reject_unauthorized == Some(false) => Tls::Unverified,
            Some(true) => Tls::Verified,
        };
        Database::External { connection, tls }
    }

    /// Where the spool is, if nobody says otherwise. Never that of another database: what is in it would end up here.
    pub fn spool_dir(&self) -> PathBuf {
        let data_dir = self.data_dir.clone().unwrap_or_else(default_data_dir);
        match self.database() {
            Database::Embedded { .. } => data_dir.join("spool"),
            Database::External { connection, .. } => {
                let plain = |c: char| if c.is_alphanumeric() { c } else { '_' };
                data_dir.join("spool").join(place(&connection).chars().map(plain).collect::<String>())
            }
        }
    }

    fn names_a_server(&self) -> bool {
        self.pg_host.is_some()
            || self.pg_port.is_some()
            || self.pg_user.is_some()
            || self.pg_password.is_some()
            || self.pg_db.is_some()
            || self.pg_use_ssl.is_some()
            || self.pg_ssl_reject_unauthorized.is_some()
    }

    fn keywords(&self) -> String {
        let or =
            |setting: &str, given: Option<&str>| quote(given.or(server_default(setting)).unwrap_or_default());
        let sslmode = if self.pg_use_ssl == Some(true) { "require" } else { "disable" };
        format!(
            "host={} port={} user={} password={} dbname={} sslmode={sslmode}",
            or("pg_host", self.pg_host.as_deref()),
            or("pg_port", self.pg_port.map(|port| port.to_string()).as_deref()),
            or("pg_user", self.pg_user.as_deref()),
            or("pg_password", self.pg_password.as_deref()),
            or("pg_db", self.pg_db.as_deref()),
        )
    }
}

impl Database {
    /// For the banner and the log: no password.
    pub fn shown(&self) -> String {
        match self {
            Self::Embedded { data_dir, .. } => format!("embedded PostgreSQL in {}", data_dir.display()),
            Self::External { connection, .. } => format!("PostgreSQL at {}", place(connection)),
        }
    }

    /// psql on this database. The password goes by the environment, where `ps` does not show it.
    pub fn psql(&self) -> Result<Command, queen_postgres::Error> {
        match self {
            Self::Embedded { data_dir, bin_dir } => {
                let running = queen_postgres::describe(data_dir)?;
                let mut command = program(bin_dir.as_ref());
                command.arg(running.url());
                Ok(command)
            }
            Self::External { connection, .. } => {
                let parted = part_password(connection);
                let mut command = program(None);
                command.arg(parted.text);
                if let Some(password) = parted.password {
                    command.env("PGPASSWORD", password);
                }
                Ok(command)
            }
        }
    }

    /// What a person pastes into a shell; `None` for the embedded server, which knows its own.
    pub fn psql_line(&self) -> Option<String> {
        match self {
            Self::Embedded { .. } => None,
            Self::External { connection, .. } => Some(format!("psql '{}'", part_password(connection).text)),
        }
    }
}

fn program(bin_dir: Option<&PathBuf>) -> Command {
    let beside = bin_dir.map(|dir| dir.join("psql")).filter(|psql| psql.exists());
    Command::new(beside.unwrap_or_else(|| PathBuf::from("psql")))
}

fn default_data_dir() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/queen");
    }
    let share = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let home = || std::env::home_dir().map(|home| home.join(".local/share"));
    share.or_else(home).unwrap_or_else(|| PathBuf::from(".")).join("queen")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;

    fn database(flags: &[&str]) -> Database {
        Cli::parse_from(["queen"].iter().chain(flags)).unwrap().settings.database()
    }

    #[test]
    fn one_pg_setting_is_enough_to_mean_your_own_server() {
        let Database::External { connection, tls } = database(&["--pg-password", "it's"]) else {
            panic!("not external")
        };
        let expected =
            r"host=localhost port=5432 user=postgres password='it\'s' dbname=postgres sslmode=disable";
        assert_eq!((connection.as_str(), tls), (expected, Tls::Off));
        assert!(matches!(database(&["--data-dir", "here"]), Database::Embedded { .. }));
    }

    #[test]
    fn every_database_has_a_spool_of_its_own() {
        let dir = |flags: &[&str]| {
            let flags = ["queen", "--data-dir", "here"].iter().chain(flags);
            Cli::parse_from(flags).unwrap().settings.spool_dir()
        };
        assert_eq!(dir(&[]), PathBuf::from("here/spool"));
        assert_eq!(
            dir(&["--database-url", "postgres://ann:secret@db/app"]),
            PathBuf::from("here/spool/db_app")
        );
        assert_ne!(dir(&["--pg-db", "a"]), dir(&["--pg-db", "b"]));
    }

    #[test]
    fn certificates_are_checked_unless_told_otherwise() {
        let tls = |flags: &[&str]| match database(flags) {
            Database::External { tls, .. } => tls,
            Database::Embedded { .. } => panic!("not external"),
        };
        assert_eq!(tls(&["--pg-use-ssl"]), Tls::Verified);
        assert_eq!(tls(&["--pg-use-ssl", "--pg-ssl-reject-unauthorized=false"]), Tls::Unverified);
        assert_eq!(tls(&["--database-url", "postgres://h/d?sslmode=verify-full"]), Tls::Verified);
        assert_eq!(tls(&["--database-url", "postgres://h/d"]), Tls::Off);
    }

    #[test]
    fn neither_the_banner_nor_the_process_list_shows_a_password() {
        let database = database(&["--database-url", "postgres://ann:secret@db/app"]);
        let psql = database.psql().unwrap();
        let arguments: Vec<_> = psql.get_args().collect();
        assert_eq!(arguments, ["postgres://ann@db/app"]);
        assert!(psql.get_envs().any(|(_, value)| value == Some("secret".as_ref())));
        let line = database.psql_line().unwrap_or_default();
        assert!(!database.shown().contains("secret") && !line.contains("secret"));
    }
}
