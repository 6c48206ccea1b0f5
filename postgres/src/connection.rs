//! How to reach the server, as connection strings for programs and a command for people. Opens no connection.

use std::path::PathBuf;

/// The embedded server has no TCP port; this number is only the suffix of the socket's file name.
pub(crate) const PORT: u16 = 5432;
/// Name of both the superuser and its database.
pub(crate) const NAME: &str = "queen";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    pub socket_dir: PathBuf,
    pub port: u16,
    pub user: String,
    pub database: String,
}

impl Connection {
    pub(crate) fn new(socket_dir: PathBuf, port: u16) -> Self {
        Self { socket_dir, port, user: NAME.to_owned(), database: NAME.to_owned() }
    }

    /// The keyword form that libpq and tokio-postgres read: `host=/run/queen port=5432 user=queen …`.
    pub fn url(&self) -> String {
        let host = keyword_value(&self.socket_dir.to_string_lossy());
        format!("host={host} port={} user={} dbname={}", self.port, self.user, self.database)
    }

    /// A command to paste into a shell.
    pub fn psql_command(&self) -> String {
        let host = shell_word(&self.socket_dir.to_string_lossy());
        format!("psql -h {host} -p {} -U {} {}", self.port, self.user, self.database)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.socket_dir.join(socket_name(self.port))
    }
}

pub(crate) fn socket_name(port: u16) -> String {
    format!(".s.PGSQL.{port}")
}

fn keyword_value(text: &str) -> String {
    let plain = !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c == '\'' || c == '\\');
    if plain { text.to_owned() } else { format!("'{}'", text.replace('\\', r"\\").replace('\'', r"\'")) }
}

fn shell_word(text: &str) -> String {
    let plain = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
    if plain { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_postgres::config::{Config, Host};

    #[test]
    fn the_url_is_read_back_as_it_was_meant() {
        for dir in ["/run/queen", "/home/ann lee/it's", r"/odd\path"] {
            let connection = Connection::new(dir.into(), PORT);
            let config: Config = connection.url().parse().unwrap();
            assert_eq!(config.get_hosts(), [Host::Unix(dir.into())]);
            assert_eq!(config.get_ports(), [PORT]);
            assert_eq!((config.get_user(), config.get_dbname()), (Some("queen"), Some("queen")));
        }
    }

    #[test]
    fn the_psql_command_survives_a_shell() {
        let command = |dir: &str| Connection::new(dir.into(), PORT).psql_command();
        assert_eq!(command("/run/queen"), "psql -h /run/queen -p 5432 -U queen queen");
        assert_eq!(command("/it's"), r"psql -h '/it'\''s' -p 5432 -U queen queen");
    }
}
