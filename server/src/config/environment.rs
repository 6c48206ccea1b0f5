//! The environment as the command line reads it: alternative names, empty values, and variables of earlier servers that have no
//! meaning here. It decides no value itself.

use std::ffi::OsStr;

use clap::Command;
use queen_protocol::nearest;

/// Variables and their names in earlier servers. If both are set, the first counts.
pub const ALIASES: [(&str, &str); 3] = [
    ("PG_DB", "PG_DATABASE"),
    ("SIDECAR_MICRO_BATCH_WAIT_MS", "MICRO_BATCH_WAIT_MS"),
    ("SIDECAR_MAX_ITEMS_PER_TX", "MAX_ITEMS_PER_TX"),
];

const WITHOUT_MEANING: [&str; 7] = [
    "DB_IDLE_TIMEOUT",
    "DB_POOL_SIZE",
    "EVICTION_BATCH_SIZE",
    "FILE_BUFFER_FLUSH_MS",
    "FILE_BUFFER_MAX_BATCH",
    "USE_POP_STATE_MACHINE",
    "WEBAPP_ROOT",
];
const PREFIXES_WITHOUT_MEANING: [&str; 3] = ["POP_WAIT_", "QUEEN_SYNC_", "QUEEN_UDP_"];
const LANE_SUFFIXES_WITHOUT_MEANING: [&str; 3] = ["_PREFERRED_BATCH_SIZE", "_MAX_HOLD_MS", "_MAX_BATCH_SIZE"];
const LANES: [&str; 5] = ["PUSH", "POP", "ACK", "TRANSACTION", "RENEW_LEASE"];

/// What `queen consume --exec` passes to its command about a message.
const OF_MESSAGES: [&str; 10] = [
    "QUEEN_CREATED_AT",
    "QUEEN_GROUP",
    "QUEEN_LEASE_ID",
    "QUEEN_MESSAGE_ID",
    "QUEEN_PARTITION",
    "QUEEN_PARTITION_ID",
    "QUEEN_QUEUE",
    "QUEEN_RETRY_COUNT",
    "QUEEN_TRACEPARENT",
    "QUEEN_TRANSACTION_ID",
];

/// Settings that protect the broker. An empty value is more likely a missing secret than a choice, so the broker does not start
/// with one. Their parsers accept no empty value.
pub const EMPTY_IS_WRONG: [&str; 10] = [
    "JWT_AUDIENCE",
    "JWT_ISSUER",
    "JWT_SKIP_PATHS",
    "QUEEN_ENCRYPTION_KEY",
    "QUEEN_ENCRYPTION_KEY_FILE",
    "QUEEN_ENCRYPTION_OLD_KEYS",
    "QUEEN_ENCRYPTION_OLD_KEYS_FILE",
    "QUEEN_TLS_CERT",
    "QUEEN_TLS_CLIENT_CA",
    "QUEEN_TLS_KEY",
];

/// Lets every setting be read from its alternative name, hides values in `--help`, and treats an empty variable as not set:
/// compose files write `PG_HOST=` for that.
pub fn applied(command: Command) -> Command {
    command.mut_args(|arg| {
        let arg = arg.global(true).hide_env_values(true);
        let Some(name) = arg.get_env().and_then(OsStr::to_str).map(str::to_owned) else { return arg };
        let alias = ALIASES.iter().map(|(_, alias)| *alias).find(|alias| name_in_use(&name) == *alias);
        match alias {
            Some(alias) => arg.env(alias),
            None if EMPTY_IS_WRONG.contains(&name.as_str()) => arg,
            None if std::env::var_os(&name).is_some_and(|value| value.is_empty()) => {
                arg.env(None::<&'static str>)
            }
            None => arg,
        }
    })
}

/// The name under which a variable is set: its own, or its alternative one.
pub fn name_in_use(name: &str) -> &str {
    let alias = ALIASES.iter().find(|(ours, _)| name == *ours).map(|(_, alias)| *alias);
    match alias {
        Some(alias) if !given(name.as_ref()) && given(alias.as_ref()) => alias,
        _ => name,
    }
}

/// Variables in the environment that earlier servers read and this one does not, sorted.
pub fn without_meaning() -> Vec<String> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut found: Vec<_> = names.filter(|name| means_nothing(name)).collect();
    found.sort();
    found
}

/// Variables in the environment that look like settings but are not in `known`, sorted, each with the most similar setting.
pub fn unknown(known: &[String]) -> Vec<(String, Option<String>)> {
    let given = std::env::vars_os().filter_map(|(name, value)| {
        Some((name.into_string().ok()?, value.into_string().unwrap_or_default()))
    });
    let mut found: Vec<_> = given
        .filter(|(name, value)| is_unknown(name, value, known))
        .map(|(name, _)| {
            let nearest = nearest(&name, known.iter().map(String::as_str)).map(str::to_owned);
            (name, nearest)
        })
        .collect();
    found.sort();
    found
}

fn is_unknown(name: &str, value: &str, known: &[String]) -> bool {
    // Kubernetes sets such names for a service called queen.
    let of_service = name.contains("_SERVICE_")
        || name.contains("_PORT_")
        || value.contains("://") && name.ends_with("_PORT");
    name.starts_with("QUEEN_")
        && !known.iter().any(|known| known == name)
        && !means_nothing(name)
        && !OF_MESSAGES.contains(&name)
        && !of_service
}

fn given(name: &OsStr) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty())
}

fn means_nothing(name: &str) -> bool {
    let lane = name
        .strip_prefix("QUEEN_")
        .and_then(|rest| LANE_SUFFIXES_WITHOUT_MEANING.iter().find_map(|suffix| rest.strip_suffix(suffix)));
    WITHOUT_MEANING.contains(&name)
        || PREFIXES_WITHOUT_MEANING.iter().any(|prefix| name.starts_with(prefix))
        || name.ends_with("_USE_SIDECAR")
        || lane.is_some_and(|lane| LANES.contains(&lane))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_setting_is_unknown_and_what_others_set_is_not() {
        let known = ["QUEEN_DRAIN_SECONDS".to_owned(), "QUEEN_URL".to_owned()];
        for name in ["QUEEN_DRAIN_SECOND", "QUEEN_ANYTHING", "QUEEN_HTTP_PORT"] {
            assert!(is_unknown(name, "1", &known), "{name}");
        }
        for (name, value) in [
            ("QUEEN_DRAIN_SECONDS", "1"),
            ("QUEEN_URL", "http://a"),
            ("QUEEN_UDP_PEERS", "a:1"),
            ("QUEEN_LEASE_ID", "l"),
            ("QUEEN_SERVICE_HOST", "10.0.0.1"),
            ("QUEEN_PORT", "tcp://10.0.0.1:6632"),
            ("QUEEN_PORT_6632_TCP_ADDR", "10.0.0.1"),
            ("PORT", "1"),
        ] {
            assert!(!is_unknown(name, value, &known), "{name}");
        }
    }

    #[test]
    fn a_variable_of_an_earlier_server_is_known_to_mean_nothing_and_ours_are_not() {
        for name in [
            "ALL_OPS_USE_SIDECAR",
            "RENEW_LEASE_USE_SIDECAR",
            "USE_POP_STATE_MACHINE",
            "QUEEN_UDP_PEERS",
            "QUEEN_PUSH_MAX_HOLD_MS",
            "FILE_BUFFER_FLUSH_MS",
        ] {
            assert!(means_nothing(name), "{name}");
        }
        for name in [
            "PORT",
            "QUEEN_DATA_DIR",
            "QUEEN_PUSH_MAX_CONCURRENT",
            "QUEEN_MAX_BODY_BYTES",
            "PATH",
            "QUEEN_ENCRYPTION_KEY",
            "DB_KEEPALIVES_IDLE",
            "JWT_SECRET",
        ] {
            assert!(!means_nothing(name), "{name}");
        }
    }
}
