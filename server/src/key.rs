//! `queen key`: creates, lists and revokes API keys. It needs a running broker only if the database is the embedded one.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use queen_engine::{ApiKey, NewKey};
use queen_protocol::format_millis;
use queen_protocol::units::some_seconds;

use crate::auth::grants::{Grant, Grants, Right};
use crate::auth::keys::mint;
use crate::auth::role::Role;
use crate::auth::token::usable;
use crate::config::Settings;

#[derive(Debug, Subcommand)]
pub enum KeyAction {
    /// Creates an API key and prints it. It cannot be shown again.
    #[command(after_help = "Examples:
  queen key create --name shop --role read-write --queue 'orders.*:push'
  queen key create --name ci --role admin --expires 30d")]
    Create {
        /// Name of the owner. Messages pushed with the key carry it as `producerSub`.
        #[arg(long)]
        name: String,
        /// Role of the key: what it may do at most.
        #[arg(long, value_enum)]
        role: Role,
        /// Limits the key to queues: a pattern, a colon, and rights (`push`, `pop`, `read`, `admin`, separated by commas). `*` in
        /// the pattern matches anything. May be repeated.
        #[arg(long = "queue", value_name = "PATTERN:RIGHTS", value_parser = grant)]
        queues: Vec<Grant>,
        /// Lifetime, such as `30d` or `12h`. By default the key does not expire.
        #[arg(long, value_name = "TIME", value_parser = some_seconds)]
        expires: Option<Duration>,
    },
    /// Lists all API keys, including revoked and expired ones, without their secrets.
    #[command(after_help = "Examples:
  queen key list --json")]
    List {
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Revokes an API key. Brokers notice within seconds.
    #[command(after_help = "Examples:
  queen key revoke 3kTMd2XnUkg")]
    Revoke {
        /// Id of the key, as `queen key list` shows it.
        id: String,
    },
}

pub fn run(settings: &Settings, action: &KeyAction) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let config = settings.desk()?;
    let mut out = io::stdout().lock();
    match action {
        KeyAction::Create { name, role, queues, expires } => {
            if name.is_empty() || !usable(name) {
                bail!("--name must have 1 to 255 characters, and no NUL");
            }
            let grants = Grants(queues.clone());
            let grants = (!queues.is_empty()).then(|| serde_json::to_string(&grants)).transpose()?;
            let key = mint().ok().context("cannot get random bytes from the operating system")?;
            let new = NewKey {
                id: &key.id,
                name,
                role: role.word(),
                grants: grants.as_deref(),
                hash: &key.hash,
                seconds: expires.map(|expires| i64::try_from(expires.as_secs().max(1))).transpose()?,
            };
            let until = runtime.block_on(queen_engine::create_key(&config, &new))?;
            let until =
                until.map_or("never expires".to_owned(), |until| format!("expires {}", format_millis(until)));
            writeln!(
                io::stderr(),
                "key {} of {name:?} ({}), {until}; it is shown only once:",
                key.id,
                role.word()
            )?;
            writeln!(out, "{}", key.text)?;
        }
        KeyAction::List { json } => {
            let keys = runtime.block_on(queen_engine::list_keys(&config))?;
            match json {
                true => writeln!(
                    out,
                    "{}",
                    serde_json::to_string_pretty(&keys.iter().map(described).collect::<Vec<_>>())?
                )?,
                false => out.write_all(table(&keys).as_bytes())?,
            }
        }
        KeyAction::Revoke { id } => {
            if !runtime.block_on(queen_engine::revoke_key(&config, id))? {
                let keys = runtime.block_on(queen_engine::list_keys(&config))?;
                let named = keys.iter().filter(|key| key.name == *id && key.revoked_at.is_none());
                let named: Vec<&str> = named.map(|key| key.id.as_str()).collect();
                if !named.is_empty() {
                    bail!(
                        "{id:?} is a name, which several keys can have; revoke by id: {}",
                        named.join(" or ")
                    );
                }
                bail!("there is no key with id {id:?}, or it is already revoked");
            }
            writeln!(out, "revoked {id}")?;
        }
    }
    Ok(())
}

fn described(key: &ApiKey) -> serde_json::Value {
    let grants =
        key.grants.as_deref().and_then(|grants| serde_json::from_str::<serde_json::Value>(grants).ok());
    serde_json::json!({
        "id": key.id,
        "name": key.name,
        "role": key.role,
        "grants": grants,
        "createdAt": format_millis(key.created_at),
        "expiresAt": key.expires_at.map(format_millis),
        "revokedAt": key.revoked_at.map(format_millis),
    })
}

fn table(keys: &[ApiKey]) -> String {
    if keys.is_empty() {
        return "there are no keys; create one with `queen key create`\n".to_owned();
    }
    let until = |key: &ApiKey| match (key.revoked_at, key.expires_at) {
        (Some(revoked), _) => format!("revoked {}", format_millis(revoked)),
        (None, Some(expires)) => format!("expires {}", format_millis(expires)),
        (None, None) => "never expires".to_owned(),
    };
    let line = |key: &ApiKey| {
        let grants = key.grants.as_deref().unwrap_or("all queues");
        format!("{}  {:<10}  {:<34}  {:?}  {grants}\n", key.id, key.role, until(key), key.name)
    };
    keys.iter().map(line).collect()
}

/// `orders.*:push,pop`. The colon is the last one: names may hold others.
fn grant(text: &str) -> Result<Grant, String> {
    let (pattern, rights) = text.rsplit_once(':').ok_or("must be PATTERN:RIGHTS, as in orders.*:push,pop")?;
    let right = |word: &str| {
        Right::parse(word.trim())
            .ok_or_else(|| format!("unknown right {word:?}, use push, pop, read or admin"))
    };
    let rights = rights.split(',').map(right).collect::<Result<Vec<_>, _>>()?;
    Ok(Grant { queues: vec![pattern.to_owned()], rights })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_is_a_pattern_and_rights() {
        let read = grant("a:b.*:push, pop").unwrap();
        assert_eq!((read.queues, read.rights), (vec!["a:b.*".to_owned()], vec![Right::Push, Right::Pop]));
        for bad in ["orders", "orders:", "orders:write", "orders:push,"] {
            assert!(grant(bad).is_err(), "{bad}");
        }
    }
}
