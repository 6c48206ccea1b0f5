//! Parses a connection string as far as needed to show it, to pass it to psql, and to keep its password out of both. It connects
//! to nothing, and leaves the full syntax to the driver.

/// A URL or a keyword string, without its password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parted {
    pub text: String,
    pub password: Option<String>,
}

/// `host:port/database`, to show.
pub fn place(connection: &str) -> String {
    if let Some((_, rest)) = url(connection) {
        let rest = &rest[user_info_end(rest)..];
        let end = rest.find('?').unwrap_or(rest.len());
        return if end == 0 { "localhost".to_owned() } else { rest[..end].to_owned() };
    }
    let pairs = keywords(connection);
    let value = |key: &str| pairs.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str());
    let mut place = value("host").or(value("hostaddr")).unwrap_or("localhost").to_owned();
    if let Some(port) = value("port") {
        place = format!("{place}:{port}");
    }
    match value("dbname") {
        Some(name) => format!("{place}/{name}"),
        None => place,
    }
}

pub fn part_password(connection: &str) -> Parted {
    let Some((scheme, rest)) = url(connection) else {
        let (secret, open): (Vec<_>, Vec<_>) =
            keywords(connection).into_iter().partition(|(key, _)| key == "password");
        let text: Vec<_> = open.iter().map(|(key, value)| format!("{key}={}", quote(value))).collect();
        return Parted {
            text: text.join(" "),
            password: secret.into_iter().next_back().map(|(_, value)| value),
        };
    };
    let (user_info, rest) = rest.split_at(user_info_end(rest));
    let user_info = user_info.trim_end_matches('@');
    let (user, mut password) = match user_info.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (user_info, None),
    };
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut open = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some((key, secret)) if percent_decoded(key) == "password" => password = Some(secret),
            _ => open.push(pair),
        }
    }
    let at = if user.is_empty() { "" } else { "@" };
    let mark = if open.is_empty() { "" } else { "?" };
    Parted {
        text: format!("{scheme}://{user}{at}{path}{mark}{}", open.join("&")),
        password: password.map(percent_decoded),
    }
}

/// The TLS parameters of a connection string, in the terms of libpq.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TlsWords {
    pub mode: Option<String>,
    pub root_cert: Option<String>,
    pub cert: Option<String>,
    pub key: Option<String>,
}

impl TlsWords {
    fn take(&mut self, key: &str, value: &str) -> bool {
        let place = match key {
            "sslmode" => &mut self.mode,
            "sslrootcert" => &mut self.root_cert,
            "sslcert" => &mut self.cert,
            "sslkey" => &mut self.key,
            _ => return false,
        };
        *place = Some(value.to_owned());
        true
    }
}

/// The string without its TLS parameters. The driver knows half of them, and is configured in another way.
pub fn part_tls(connection: &str) -> (String, TlsWords) {
    let mut words = TlsWords::default();
    let Some((scheme, rest)) = url(connection) else {
        let pairs = keywords(connection).into_iter();
        let rest: Vec<_> = pairs.filter(|(key, value)| !words.take(key, value)).collect();
        let rest: Vec<_> = rest.iter().map(|(key, value)| format!("{key}={}", quote(value))).collect();
        return (rest.join(" "), words);
    };
    let start = scheme.len() + "://".len() + user_info_end(rest);
    let Some(mark) = connection[start..].find('?') else { return (connection.to_owned(), words) };
    let (place, query) = (&connection[..start + mark], &connection[start + mark + 1..]);
    let mut taken = |pair: &str| match pair.split_once('=') {
        Some((key, value)) => words.take(&percent_decoded(key), &percent_decoded(value)),
        None => false,
    };
    let rest: Vec<_> = query.split('&').filter(|pair| !taken(pair)).collect();
    let mark = if rest.is_empty() { "" } else { "?" };
    (format!("{place}{mark}{}", rest.join("&")), words)
}

/// A value of a keyword string, quoted where it must be.
pub fn quote(value: &str) -> String {
    let plain = !value.is_empty() && !value.contains(|c: char| c.is_whitespace() || c == '\'' || c == '\\');
    if plain { value.to_owned() } else { format!("'{}'", value.replace('\\', r"\\").replace('\'', r"\'")) }
}

/// Scheme and rest. Only schemes that the driver accepts, because the password in a keyword string can contain any text.
fn url(connection: &str) -> Option<(&str, &str)> {
    connection.split_once("://").filter(|(scheme, _)| matches!(*scheme, "postgres" | "postgresql"))
}

/// Where `user:password@` ends: at the last `@` before the query, because showing too little is better than half a password.
/// The driver allows a `?` in a password.
fn user_info_end(rest: &str) -> usize {
    let Some(first) = rest.find('@') else { return 0 };
    let end = rest[first..].find('?').map_or(rest.len(), |at| first + at);
    rest[..end].rfind('@').map_or(0, |at| at + 1)
}

fn keywords(text: &str) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    let mut rest = text.trim_start();
    while let Some((key, tail)) = rest.split_once('=') {
        let (value, tail) = keyword_value(tail.trim_start());
        pairs.push((key.trim().to_owned(), value));
        rest = tail.trim_start();
    }
    pairs
}

fn keyword_value(text: &str) -> (String, &str) {
    let quoted = text.starts_with('\'');
    let mut value = String::new();
    let mut chars = text.char_indices().skip(usize::from(quoted));
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => value.extend(chars.next().map(|(_, escaped)| escaped)),
            '\'' if quoted => return (value, &text[at + 1..]),
            c if !quoted && c.is_whitespace() => return (value, &text[at..]),
            c => value.push(c),
        }
    }
    (value, "")
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = tail.get(..2).and_then(|pair| std::str::from_utf8(pair).ok());
        let decoded = hex.and_then(|pair| u8::from_str_radix(pair, 16).ok()).filter(|_| *first == b'%');
        bytes.push(decoded.unwrap_or(*first));
        rest = if decoded.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_never_reaches_the_screen() {
        for (connection, shown, psql, password) in [
            (
                "postgres://ann:s%40c@db:5433/app?x=1",
                "db:5433/app",
                "postgres://ann@db:5433/app?x=1",
                Some("s@c"),
            ),
            ("postgres://ann:a@b@db/app", "db/app", "postgres://ann@db/app", Some("a@b")),
            ("postgres://db/app?password=no&x=1", "db/app", "postgres://db/app?x=1", Some("no")),
            ("postgres://", "localhost", "postgres://", None),
            (
                "host=db dbname=app password='it\\'s secret' port=1",
                "db:1/app",
                "host=db dbname=app port=1",
                Some("it's secret"),
            ),
            ("postgres://ann:a?b@db/app?x=1", "db/app", "postgres://ann@db/app?x=1", Some("a?b")),
            ("postgres://db/app?pass%77ord=no", "db/app", "postgres://db/app", Some("no")),
            ("host=db password=a://hush", "db", "host=db", Some("a://hush")),
            ("password=one host=db password=two", "db", "host=db", Some("two")),
            ("host=/run/x user=q dbname=q", "/run/x/q", "host=/run/x user=q dbname=q", None),
        ] {
            assert_eq!(place(connection), shown);
            let parted = part_password(connection);
            assert_eq!((parted.text.as_str(), parted.password.as_deref()), (psql, password));
        }
    }

    #[test]
    fn words_about_tls_are_parted_from_what_the_driver_reads() {
        let words = |mode: &str, root: &str| TlsWords {
            mode: Some(mode.to_owned()),
            root_cert: Some(root.to_owned()),
            ..TlsWords::default()
        };
        for (connection, rest, said) in [
            (
                "postgres://a:b@db/app?sslmode=verify-full&connect_timeout=1&sslrootcert=/etc/my%20ca.pem",
                "postgres://a:b@db/app?connect_timeout=1",
                words("verify-full", "/etc/my ca.pem"),
            ),
            ("postgres://db/app?sslmode=require&sslrootcert=a", "postgres://db/app", words("require", "a")),
            (
                "host=a,b sslmode = 'verify-ca' password='it\\'s' sslrootcert='/my ca'",
                r"host=a,b password=it\'s",
                words("verify-ca", "/my ca"),
            ),
            ("host=db", "host=db", TlsWords::default()),
            ("postgres://db/sslmode=x", "postgres://db/sslmode=x", TlsWords::default()),
            (
                "postgres://u:a?b@db/app?sslmode=require&sslrootcert=/ca.pem",
                "postgres://u:a?b@db/app",
                words("require", "/ca.pem"),
            ),
            (
                "host=db password=x://y?sslmode=disable sslmode=verify-ca sslrootcert=/ca.pem",
                "host=db password=x://y?sslmode=disable",
                words("verify-ca", "/ca.pem"),
            ),
        ] {
            let (text, found) = part_tls(connection);
            assert_eq!(found, said, "{connection}");
            if url(connection).is_some() {
                assert_eq!(text, rest);
            }
            assert_eq!(keywords(&text), keywords(rest), "{connection}");
            // The driver would act on a mode that is left, and verify nothing.
            let driver: tokio_postgres::Config = text.parse().unwrap();
            assert_eq!(driver.get_ssl_mode(), tokio_postgres::config::SslMode::Prefer, "{connection}");
        }
    }
}
