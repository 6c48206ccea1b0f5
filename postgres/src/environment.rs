//! The environment variables that PostgreSQL's programs inherit: paths and locales, and no secrets, because a server shows its
//! environment to its own user and to every superuser in SQL.

use std::ffi::OsStr;
use std::process::Command;

const NEEDED: [&str; 11] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TZDIR",
    "TMPDIR",
    // Libraries and locales of installations outside the usual places.
    "LD_LIBRARY_PATH",
    "LOCALE_ARCHIVE",
];

/// Lets `command` inherit what every program needs, and the variables that `more` accepts. Call it
/// before setting any variable.
pub fn limit(command: &mut Command, more: impl Fn(&str) -> bool) {
    command.env_clear();
    let kept = |name: &OsStr| name.to_str().is_some_and(|name| is_needed(name) || more(name));
    command.envs(std::env::vars_os().filter(|(name, _)| kept(name)));
}

fn is_needed(name: &str) -> bool {
    NEEDED.contains(&name) || name.starts_with("LC_")
}
