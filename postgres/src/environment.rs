//! What the programs of PostgreSQL inherit of our environment: where things are and how to write, and no secret. A server shows
//! its environment to its own user and to every superuser in SQL.

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
    // Where installations outside the usual places find their libraries and locales.
    "LD_LIBRARY_PATH",
    "LOCALE_ARCHIVE",
];

/// Has `command` inherit what it needs, and of the rest what `more` names. Call it before setting any variable.
pub fn limit(command: &mut Command, more: impl Fn(&str) -> bool) {
    command.env_clear();
    let kept = |name: &OsStr| name.to_str().is_some_and(|name| is_needed(name) || more(name));
    command.envs(std::env::vars_os().filter(|(name, _)| kept(name)));
}

fn is_needed(name: &str) -> bool {
    NEEDED.contains(&name) || name.starts_with("LC_")
}
