//! Settings that are never shown, and the files that orchestrators mount them in: `NAME_FILE` stands in for `NAME`, and is read
//! once, with the settings.

use std::convert::Infallible;
use std::fmt;
use std::ops::Deref;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, bail};

use super::Settings;

/// The type of a secret setting. `queen config` and logs show that there is one, and no more.
#[derive(Clone)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("***")
    }
}

impl Deref for Secret {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl FromStr for Secret {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

/// Reads the files and sets their settings, as if they had been given directly.
pub fn fill(settings: &mut Settings) -> Result<()> {
    let plain = |text: &str| text.trim_end_matches(['\r', '\n']).to_owned();
    let Settings { access, .. } = settings;
    let secret = |text: &str| Secret(plain(text));
    let secrets = |text: &str| Secret(list(text));
    one_of("DATABASE_URL", &mut settings.database_url, settings.database_url_file.as_deref(), plain)?;
    one_of("PG_PASSWORD", &mut settings.pg_password, settings.pg_password_file.as_deref(), secret)?;
    one_of("JWT_SECRET", &mut access.jwt_secret, access.jwt_secret_file.as_deref(), secret)?;
    let (key, keys) = (&mut settings.encryption_key, &mut settings.encryption_old_keys);
    one_of("QUEEN_ENCRYPTION_KEY", key, settings.encryption_key_file.as_deref(), secrets)?;
    one_of("QUEEN_ENCRYPTION_OLD_KEYS", keys, settings.encryption_old_keys_file.as_deref(), secrets)
}

fn one_of<T>(
    name: &str,
    said: &mut Option<T>,
    file: Option<&Path>,
    read: impl FnOnce(&str) -> T,
) -> Result<()> {
    let Some(path) = file else { return Ok(()) };
    if said.is_some() {
        bail!("{name} and {name}_FILE are both given; set only one");
    }
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("{name}_FILE: {} cannot be read", path.display()))?;
    if text.trim().is_empty() {
        bail!("{name}_FILE: {} is empty", path.display());
    }
    *said = Some(read(&text));
    Ok(())
}

/// Separated by commas or lines.
fn list(text: &str) -> String {
    let keys: Vec<&str> = text.trim_end().split([',', '\n']).map(str::trim).collect();
    keys.join(",")
}

#[cfg(test)]
mod tests {
    use crate::cli::Cli;
    use crate::config::{Database, Settings};

    const SECRET: &str = "long enough for a secret, and only used here";

    fn parsed(flags: &[&str]) -> Result<Settings, String> {
        Cli::parse_from(["queen"].iter().chain(flags))
            .map(|cli| cli.settings)
            .map_err(|error| error.to_string())
    }

    fn parsed_config(flags: &[&str]) -> Settings {
        Cli::parse_from(["queen", "config"].iter().chain(flags)).unwrap().settings
    }

    #[test]
    fn every_secret_may_be_in_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (url, password) =
            (file("url", "postgres://ann:pw@db/app\n"), file("password", " pw with spaces \r\n"));
        let (secret, empty) = (file("secret", &format!("{SECRET}\n")), file("empty", "\n"));

        let settings = parsed(&["--database-url-file", &url]).unwrap();
        assert_eq!(
            settings.database(),
            Database::External { connection: "postgres://ann:pw@db/app".to_owned() }
        );
        let settings = parsed(&["--pg-password-file", &password]).unwrap();
        assert_eq!(settings.pg_password.as_deref(), Some(" pw with spaces "));
        assert!(matches!(settings.database(), Database::External { .. }));
        let settings = parsed(&["--jwt-enabled", "--jwt-secret-file", &secret]).unwrap();
        assert!(settings.access.guard().unwrap().is_some());
        let shown = format!("{:?}", settings.in_force);
        assert!(shown.contains(&secret) && !shown.contains(SECRET));
        let report = crate::config::report::in_force(&parsed_config(&["--jwt-secret-file", &secret]));
        let line = report.lines().find(|line| line.starts_with("JWT_SECRET ")).unwrap();
        assert!(line.contains(" *** ") && line.ends_with("file of JWT_SECRET_FILE"), "{line}");

        let short = parsed(&["--jwt-enabled", "--jwt-secret-file", &file("short", "short")]).unwrap();
        let error = short.access.guard().unwrap_err().to_string();
        assert!(error.starts_with("JWT_SECRET_FILE has 5 bytes"), "{error}");

        for (flag, name) in [
            ("--database-url", "DATABASE_URL"),
            ("--pg-password", "PG_PASSWORD"),
            ("--jwt-secret", "JWT_SECRET"),
            ("--encryption-key", "QUEEN_ENCRYPTION_KEY"),
            ("--encryption-old-keys", "QUEEN_ENCRYPTION_OLD_KEYS"),
        ] {
            let given = format!("{flag}-file");
            let both = parsed(&[flag, SECRET, &given, &secret]).unwrap_err();
            assert!(both.contains(&format!("{name} and {name}_FILE are both given")), "{both}");
            assert!(!both.contains(SECRET) && !both.contains("Usage"), "{both}");
            for bad in ["/nowhere", &empty] {
                let error = parsed(&[&given, bad]).unwrap_err();
                assert!(error.contains(&format!("{name}_FILE: {bad}")), "{error}");
            }
        }
    }
}
