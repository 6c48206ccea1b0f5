//! The keys of encryption at rest. With an invalid key the broker does not start, so nothing is stored unencrypted by mistake.

use anyhow::{Context, Result};
use queen_engine::Keys;

use super::Settings;

pub fn read(settings: &Settings) -> Result<Keys> {
    let (current, old) = (settings.encryption_key.as_deref(), settings.encryption_old_keys.as_deref());
    let current_only = current.map(|key| Keys::parse(Some(key), None)).transpose();
    let named = |name: &str, file: bool| format!("{name}{} cannot be used", if file { "_FILE" } else { "" });
    current_only.with_context(|| named("QUEEN_ENCRYPTION_KEY", settings.encryption_key_file.is_some()))?;
    Keys::parse(current, old)
        .with_context(|| named("QUEEN_ENCRYPTION_OLD_KEYS", settings.encryption_old_keys_file.is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;

    const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    fn keys(flags: &[&str]) -> Result<Vec<String>, String> {
        let settings = Cli::parse_from(["queen"].iter().chain(flags)).unwrap().settings;
        let keys = read(&settings).map_err(|error| format!("{error:#}"))?;
        Ok(keys.ids().map(str::to_owned).collect())
    }

    #[test]
    fn keys_come_from_settings_or_from_files() {
        let dir = tempfile::tempdir().unwrap();
        let (one, many) = (dir.path().join("one"), dir.path().join("many"));
        std::fs::write(&one, format!("a:{KEY}\n")).unwrap();
        std::fs::write(&many, format!("b:{KEY}\nc:{KEY}, d:{KEY}\n\n")).unwrap();
        let (one, many) = (one.to_str().unwrap(), many.to_str().unwrap());
        assert_eq!(keys(&[]).unwrap(), Vec::<String>::new());
        assert_eq!(keys(&["--encryption-key", KEY]).unwrap(), ["630dcd29"]);
        assert_eq!(
            keys(&["--encryption-key-file", one, "--encryption-old-keys-file", many]).unwrap(),
            ["a", "b", "c", "d"]
        );
    }

    #[test]
    fn a_bad_key_is_refused_by_the_name_of_its_setting_and_not_shown() {
        let bad = &KEY[1..];
        for (flags, name) in [
            (["--encryption-key", bad], "QUEEN_ENCRYPTION_KEY "),
            (["--encryption-key", ""], "QUEEN_ENCRYPTION_KEY "),
            (["--encryption-old-keys", bad], "QUEEN_ENCRYPTION_OLD_KEYS "),
        ] {
            let said = keys(&flags).unwrap_err();
            assert!(said.contains(name) && !said.contains(&KEY[1..8]), "{said}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, bad).unwrap();
        let said = keys(&["--encryption-key-file", file.path().to_str().unwrap()]).unwrap_err();
        assert!(said.contains("QUEEN_ENCRYPTION_KEY_FILE "), "{said}");
        assert!(
            keys(&["--encryption-key", KEY, "--encryption-old-keys", KEY]).unwrap_err().contains("twice")
        );
    }
}
