//! Rewrites connection strings: another host or database, the same user. Opens no connection.

use tokio_postgres::config::{Config, Host};

/// Where a connection string leads: its first host, with the matching port.
pub fn address(config: &Config) -> (Host, u16) {
    let host = config.get_hosts().first().expect("a connection string names a host").clone();
    (host, config.get_ports().first().copied().unwrap_or(5432))
}

/// The same server, another database.
pub fn with_database(config: &Config, database: &str) -> String {
    let (host, port) = address(config);
    let host = match host {
        Host::Tcp(name) => name,
        Host::Unix(path) => path.to_str().expect("paths in connection strings are UTF-8").to_owned(),
    };
    keywords(config, &host, port, database)
}

/// The same database, reached through a port on this machine.
pub fn through_port(config: &Config, port: u16) -> String {
    // A proxy that parses the stream must be able to read it.
    keywords(config, "127.0.0.1", port, config.get_dbname().unwrap_or("postgres")) + " sslmode=disable"
}

fn keywords(config: &Config, host: &str, port: u16, database: &str) -> String {
    let user = config.get_user().expect("a connection string names a user");
    let mut url =
        format!("host={} port={port} user={} dbname={}", quoted(host), quoted(user), quoted(database));
    if let Some(password) = config.get_password() {
        url += &format!(" password={}", quoted(&String::from_utf8_lossy(password)));
    }
    url
}

fn quoted(value: &str) -> String {
    let plain = value.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c)) && !value.is_empty();
    if plain { value.to_owned() } else { format!("'{}'", value.replace('\\', r"\\").replace('\'', r"\'")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_should_change_changes() {
        let config: Config =
            r"host='/tmp/a b' port=6543 user=queen dbname=one password='it\'s'".parse().unwrap();
        let changed: Config = with_database(&config, "two").parse().unwrap();
        assert_eq!((changed.get_hosts(), changed.get_ports()), (config.get_hosts(), config.get_ports()));
        assert_eq!((changed.get_user(), changed.get_password()), (config.get_user(), config.get_password()));
        assert_eq!(changed.get_dbname(), Some("two"));

        let changed: Config = through_port(&config, 77).parse().unwrap();
        assert_eq!(address(&changed), (Host::Tcp("127.0.0.1".to_owned()), 77));
        assert_eq!(changed.get_dbname(), Some("one"));
    }
}
