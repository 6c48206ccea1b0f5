//! Which database the settings select: yours or the embedded one. It starts and connects to neither.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, anyhow, bail};
use queen_engine::{Config, Roots, Tls, TlsMode};
use queen_postgres::Connection;

use super::Settings;
use super::connection::{part_password, part_tls, place, quote};

/// Defaults of the settings for your own server, which apply once one of them is set. They are not defaults of the command
/// line, because then the embedded server would never run.
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
    /// May hold a password, so it is never shown as it is.
    External {
        connection: String,
    },
}

impl Settings {
    /// Yours if a setting says where it is, otherwise the embedded one.
    pub fn database(&self) -> Database {
        let connection = match &self.database_url {
            Some(url) => url.clone(),
            None if self.names_a_server() => self.keywords(),
            None => {
                let data_dir = self.data_dir.clone().unwrap_or_else(default_data_dir);
                return Database::Embedded { data_dir, bin_dir: self.pg_bin_dir.clone() };
            }
        };
        Database::External { connection }
    }

    /// The configuration of commands that use the database without a broker. The embedded database has to be running.
    pub fn desk(&self) -> Result<Config> {
        let (connection, tls) = match self.database() {
            Database::External { connection } => self.reach(&connection)?,
            Database::Embedded { data_dir, .. } => (running(&data_dir)?.url(), Tls::OFF),
        };
        self.engine(connection, tls)
    }

    /// The connection string for the driver, without its TLS parameters, and the TLS mode that these and the settings ask for.
    /// Settings may ask for more than the string, never for less. What cannot be satisfied is an error.
    pub fn reach(&self, connection: &str) -> Result<(String, Tls)> {
        let (driver, words) = part_tls(connection);
        let said = words.mode.as_deref().map(mode).transpose()?;
        let root_cert = self.pg_ssl_root_cert.as_ref().or(words.root_cert.as_ref());
        let system = root_cert.is_some_and(|path| path == "system");
        let asked = match (self.pg_use_ssl, self.pg_ssl_reject_unauthorized) {
            (Some(false), _) => Some(TlsMode::Off),
            (Some(true), Some(false)) => Some(TlsMode::Unverified),
            (Some(true), _) => Some(TlsMode::VerifyFull),
            (None, Some(true)) if said.is_some_and(|said| said > TlsMode::Off) => Some(TlsMode::VerifyFull),
            (None, _) => None,
        };
        if let (Some(asked), Some(said)) = (asked, said)
            && asked < said
            && said > TlsMode::Prefer
        {
            bail!(
                "PG_USE_SSL and PG_SSL_REJECT_UNAUTHORIZED ask for less protection than the sslmode of the connection string"
            );
        }
        let certificates = [&words.root_cert, &words.cert, &words.key].into_iter().any(Option::is_some);
        if certificates && !system && asked.is_none() && said.is_none() {
            bail!("the connection string names certificates, but nothing enables TLS: add an sslmode");
        }
        let unsaid = if system { TlsMode::VerifyFull } else { TlsMode::Off };
        let mut mode = asked.or(said).unwrap_or(unsaid);
        if root_cert.is_some() && !system && mode == TlsMode::Unverified {
            // As in libpq: a root certificate implies that it is checked.
            mode = TlsMode::VerifyCa;
            if self.pg_ssl_reject_unauthorized == Some(false) {
                bail!("a root certificate has no effect with PG_SSL_REJECT_UNAUTHORIZED=false");
            }
        }
        if self.pg_ssl_root_cert.is_some() && mode < TlsMode::VerifyCa {
            bail!("PG_SSL_ROOT_CERT is set, but nothing enables TLS: set PG_USE_SSL, or an sslmode");
        }
        if system && mode < TlsMode::VerifyFull {
            bail!(
                "the system's certificates require sslmode verify-full, because they only prove a host name"
            );
        }
        if root_cert.is_none() && mode == TlsMode::VerifyCa {
            bail!("sslmode verify-ca requires sslrootcert, the file of the authority to trust");
        }
        let roots = match root_cert {
            Some(path) if !system => Roots::File(path.into()),
            _ => Roots::System,
        };
        let client = match (words.cert, words.key) {
            (Some(cert), Some(key)) => Some((cert.into(), key.into())),
            (None, None) => None,
            _ => bail!("sslcert and sslkey must be set together"),
        };
        Ok((driver, Tls { mode, roots, client }))
    }

    /// psql on this database, with at least as much TLS as the broker uses. The password is passed in the environment,
    /// where `ps` does not show it.
    pub fn psql(&self) -> Result<Command> {
        let connection = match self.database() {
            Database::Embedded { data_dir, bin_dir } => {
                let mut command = program(bin_dir.as_ref());
                command.arg(running(&data_dir)?.url());
                return Ok(command);
            }
            Database::External { connection } => connection,
        };
        let (bare, tls) = self.reach(&connection)?;
        let encrypted = tls.mode > TlsMode::Off;
        // In libpq, a parameter of the connection string takes precedence over the environment.
        let parted = part_password(if encrypted { &bare } else { &connection });
        let mut command = program(None);
        command.arg(parted.text);
        if let Some(password) = parted.password {
            command.env("PGPASSWORD", password);
        }
        if encrypted {
            command.env("PGSSLMODE", word(tls.mode));
            if let Some((cert, key)) = &tls.client {
                command.env("PGSSLCERT", cert).env("PGSSLKEY", key);
            }
        }
        if tls.mode >= TlsMode::VerifyCa {
            match &tls.roots {
                Roots::File(path) => command.env("PGSSLROOTCERT", path),
                Roots::System => command.env("PGSSLROOTCERT", "system"),
            };
        }
        Ok(command)
    }

    /// Default directory of the spool. Each database has its own, because the spool's messages are pushed to whichever
    /// database is configured.
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
            || self.pg_ssl_root_cert.is_some()
    }

    fn keywords(&self) -> String {
        let or =
            |setting: &str, given: Option<&str>| quote(given.or(server_default(setting)).unwrap_or_default());
        let sslmode = match (self.pg_use_ssl, self.pg_ssl_reject_unauthorized) {
            (Some(true), Some(false)) => "require".to_owned(),
            (Some(true), _) => {
                let roots = self.pg_ssl_root_cert.as_deref().unwrap_or("system");
                format!("verify-full sslrootcert={}", quote(roots))
            }
            _ => "disable".to_owned(),
        };
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
            Self::External { connection } => format!("PostgreSQL at {}", place(connection)),
        }
    }

    /// A command line to paste into a shell; `None` for the embedded server, which has its own.
    pub fn psql_line(&self) -> Option<String> {
        match self {
            Self::Embedded { .. } => None,
            Self::External { connection, .. } => Some(format!("psql '{}'", part_password(connection).text)),
        }
    }
}

/// The modes of libpq, except `allow`, which prefers not to encrypt and is not supported.
fn mode(word: &str) -> Result<TlsMode> {
    Ok(match word {
        "disable" => TlsMode::Off,
        "prefer" => TlsMode::Prefer,
        "require" => TlsMode::Unverified,
        "verify-ca" => TlsMode::VerifyCa,
        "verify-full" => TlsMode::VerifyFull,
        other => bail!("sslmode is {other:?}; it must be disable, prefer, require, verify-ca or verify-full"),
    })
}

fn word(mode: TlsMode) -> &'static str {
    match mode {
        TlsMode::Off => "disable",
        TlsMode::Prefer => "prefer",
        TlsMode::Unverified => "require",
        TlsMode::VerifyCa => "verify-ca",
        TlsMode::VerifyFull => "verify-full",
    }
}

fn program(bin_dir: Option<&PathBuf>) -> Command {
    let beside = bin_dir.map(|dir| dir.join("psql")).filter(|psql| psql.exists());
    let mut command = Command::new(beside.unwrap_or_else(|| PathBuf::from("psql")));
    queen_postgres::environment::limit(&mut command, is_psqls);
    command
}

/// Variables that psql, libpq and the programs that psql starts read, in addition to what every program needs. Our own
/// `PG_*` are not among them.
fn is_psqls(name: &str) -> bool {
    const NAMES: [&str; 15] = [
        "COLUMNS",
        "EDITOR",
        "INPUTRC",
        "KRB5CCNAME",
        "LESS",
        "LESSCHARSET",
        "LINES",
        "NO_COLOR",
        "PAGER",
        "SHELL",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
        "TERM",
        "TERMINFO",
        "VISUAL",
    ];
    let libpqs = name.starts_with("PG") && !name.starts_with("PG_");
    NAMES.contains(&name) || libpqs || name.starts_with("PSQL") || name.starts_with("XDG_")
}

fn default_data_dir() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/queen");
    }
    let share = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let home = || std::env::home_dir().map(|home| home.join(".local/share"));
    share.or_else(home).unwrap_or_else(|| PathBuf::from(".")).join("queen")
}

/// The embedded server, for commands that run next to the broker.
fn running(data_dir: &Path) -> Result<Connection> {
    queen_postgres::describe(data_dir).map_err(|error| anyhow!("{error}: start it with `queen serve`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;

    fn settings(flags: &[&str]) -> Settings {
        Cli::parse_from(["queen"].iter().chain(flags)).unwrap().settings
    }

    fn database(flags: &[&str]) -> Database {
        settings(flags).database()
    }

    #[test]
    fn a_database_that_does_not_run_is_named_before_what_to_do_about_it() {
        let dir = tempfile::tempdir().unwrap();
        let said = settings(&["--data-dir", dir.path().to_str().unwrap()]).desk().unwrap_err();
        let said = format!("{said:#}");
        assert!(said.ends_with(": start it with `queen serve`"), "{said}");
        assert!(said.contains(dir.path().to_str().unwrap()), "{said}");
    }

    #[test]
    fn one_pg_setting_is_enough_to_mean_your_own_server() {
        let Database::External { connection } = database(&["--pg-password", "it's"]) else {
            panic!("not external")
        };
        let expected =
            r"host=localhost port=5432 user=postgres password='it\'s' dbname=postgres sslmode=disable";
        assert_eq!(connection, expected);
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

    fn tls(flags: &[&str]) -> Result<Tls, String> {
        let settings = settings(flags);
        let Database::External { connection } = settings.database() else { panic!("not external") };
        settings.reach(&connection).map(|(_, tls)| tls).map_err(|error| error.to_string())
    }

    #[test]
    fn certificates_are_checked_unless_told_otherwise() {
        let url =
            |query: &str| tls(&["--database-url", &format!("postgres://h/d{query}")]).map(|tls| tls.mode);
        assert_eq!(tls(&["--pg-use-ssl"]).unwrap(), Tls::new(TlsMode::VerifyFull));
        assert_eq!(
            tls(&["--pg-use-ssl", "--pg-ssl-reject-unauthorized=false"]).unwrap().mode,
            TlsMode::Unverified
        );
        assert_eq!(tls(&["--pg-db", "d"]).unwrap(), Tls::OFF);
        let file = tls(&["--pg-use-ssl", "--pg-ssl-root-cert", "/my ca"]).unwrap();
        assert_eq!((file.mode, file.roots), (TlsMode::VerifyFull, Roots::File("/my ca".into())));
        assert_eq!(url(""), Ok(TlsMode::Off));
        assert_eq!(url("?sslmode=prefer"), Ok(TlsMode::Prefer));
        assert_eq!(url("?sslmode=require"), Ok(TlsMode::Unverified));
        assert_eq!(url("?sslmode=require&sslrootcert=a"), Ok(TlsMode::VerifyCa));
        assert_eq!(url("?sslmode=verify-ca&sslrootcert=a"), Ok(TlsMode::VerifyCa));
        assert_eq!(url("?sslmode=verify-full"), Ok(TlsMode::VerifyFull));
        assert_eq!(url("?sslrootcert=system"), Ok(TlsMode::VerifyFull));
        let client = tls(&["--database-url", "host=h sslmode=require sslcert=c sslkey=k"]).unwrap();
        assert_eq!(client.client, Some(("c".into(), "k".into())));
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_and_never_less() {
        let full = "postgres://h/d?sslmode=verify-full";
        for flags in [
            &["--database-url", "postgres://h/d?sslmode=allow"][..],
            &["--database-url", "host=h sslmode=verify-all"],
            &["--database-url", "host=h sslmode=verify-ca"],
            &["--database-url", "host=h sslmode=require sslrootcert=system"],
            &["--database-url", "host=h sslmode=require sslcert=c"],
            &["--database-url", full, "--pg-use-ssl=false"],
            &["--database-url", full, "--pg-use-ssl=true", "--pg-ssl-reject-unauthorized=false"],
            &["--pg-ssl-root-cert", "a"],
            &["--pg-use-ssl", "--pg-ssl-reject-unauthorized=false", "--pg-ssl-root-cert", "a"],
        ] {
            assert!(tls(flags).is_err(), "{flags:?}");
        }
        for words in ["sslrootcert=/ca.pem", "sslcert=c sslkey=k", "sslkey=k"] {
            let said = tls(&["--database-url", &format!("host=h {words}")]).unwrap_err();
            assert_eq!(
                said,
                "the connection string names certificates, but nothing enables TLS: add an sslmode"
            );
        }
        let asked = tls(&["--database-url", "host=h sslrootcert=/ca.pem", "--pg-use-ssl"]).unwrap();
        assert_eq!((asked.mode, asked.roots), (TlsMode::VerifyFull, Roots::File("/ca.pem".into())));
        let more = tls(&["--database-url", "host=h sslmode=require", "--pg-ssl-reject-unauthorized=true"]);
        assert_eq!(more.unwrap().mode, TlsMode::VerifyFull);
    }

    #[test]
    fn neither_the_banner_nor_the_process_list_shows_a_password() {
        let settings = settings(&["--database-url", "postgres://ann:secret@db/app"]);
        let (database, psql) = (settings.database(), settings.psql().unwrap());
        let arguments: Vec<_> = psql.get_args().collect();
        assert_eq!(arguments, ["postgres://ann@db/app"]);
        assert!(psql.get_envs().any(|(_, value)| value == Some("secret".as_ref())));
        let line = database.psql_line().unwrap_or_default();
        assert!(!database.shown().contains("secret") && !line.contains("secret"));
    }

    #[test]
    fn psql_verifies_what_the_broker_verifies() {
        let psql = |flags: &[&str]| {
            let command = settings(flags).psql().unwrap();
            let mut said: Vec<_> =
                command.get_args().map(|argument| argument.to_str().unwrap().to_owned()).collect();
            let verifying = |name: &str| name.starts_with("PGSSL");
            let said_of_it = command.get_envs().filter(|(name, _)| name.to_str().is_some_and(verifying));
            for (name, value) in said_of_it {
                said.push(format!("{}={}", name.to_str().unwrap(), value.unwrap().to_str().unwrap()));
            }
            said
        };
        assert_eq!(psql(&["--database-url", "postgres://db/app"]), ["postgres://db/app"]);
        let disabled = "postgres://db/app?sslmode=disable";
        assert_eq!(psql(&["--database-url", disabled]), [disabled]);
        assert_eq!(
            psql(&["--database-url", "postgres://db/app", "--pg-use-ssl", "--pg-ssl-root-cert", "/my ca"]),
            ["postgres://db/app", "PGSSLMODE=verify-full", "PGSSLROOTCERT=/my ca"]
        );
        let url = "postgres://db/app?sslmode=require&sslcert=c&sslkey=k";
        assert_eq!(
            psql(&["--database-url", url, "--pg-use-ssl"]),
            [
                "postgres://db/app",
                "PGSSLCERT=c",
                "PGSSLKEY=k",
                "PGSSLMODE=verify-full",
                "PGSSLROOTCERT=system"
            ]
        );
        assert_eq!(psql(&["--database-url", "host=h sslmode=require"]), ["host=h", "PGSSLMODE=require"]);
    }
}
