//! API keys: what one looks like, and which of them count. Brokers read all live ones every few seconds; so a key
//! that nobody knows costs no statement, and a revoked one ends soon.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand;
use queen_engine::{ApiKey, Engine};
use tokio::time::timeout;
use tracing::warn;

use super::grants::Grants;
use super::refusal::Refusal;
use super::role::Role;
use super::{Identity, Kind};

pub const PREFIX: &str = "qk_";
const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 32;

/// How soon a revoked key ends.
const FRESH_FOR: Duration = Duration::from_secs(2);
/// A key that is not there yet may have been created since.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// While the database is away, keys that were known keep working for this long.
const KNOWN_FOR: Duration = Duration::from_secs(600);
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// A new key: shown once, and then only its hash is left.
pub struct Minted {
    pub id: String,
    pub text: String,
    pub hash: Vec<u8>,
}

pub fn mint() -> Result<Minted, aws_lc_rs::error::Unspecified> {
    let mut random = [0; ID_BYTES + SECRET_BYTES];
    rand::fill(&mut random)?;
    let (id, secret) = (hex(&random[..ID_BYTES]), hex(&random[ID_BYTES..]));
    let text = format!("{PREFIX}{id}_{secret}");
    Ok(Minted { id, text, hash: hash(&secret) })
}

/// One that may be used.
struct Live {
    hash: Vec<u8>,
    /// Microseconds since 1970.
    expires_at: Option<i64>,
    identity: Arc<Identity>,
}

struct Snapshot {
    keys: HashMap<String, Live>,
    read_at: Instant,
}

#[derive(Default)]
pub struct KeyRing {
    snapshot: RwLock<Option<Arc<Snapshot>>>,
    failed_at: Mutex<Option<Instant>>,
    /// Held while reading, so that one does it for all.
    reading: tokio::sync::Mutex<()>,
}

impl KeyRing {
    /// Whose key it is. `now`: seconds since 1970.
    pub async fn check(&self, engine: &Engine, text: &str, now: f64) -> Result<Arc<Identity>, Refusal> {
        let (id, secret) = split(text).ok_or(Refusal::ApiKey)?;
        let hash = hash(secret);
        let mut snapshot = self.snapshot(engine, FRESH_FOR).await?;
        if !snapshot.keys.contains_key(id) {
            snapshot = self.snapshot(engine, LOOK_AGAIN).await?;
        }
        let key = snapshot.keys.get(id).ok_or(Refusal::ApiKey)?;
        verify_slices_are_equal(&key.hash, &hash).map_err(|_| Refusal::ApiKey)?;
        let expired = key.expires_at.is_some_and(|expires| expires as f64 / 1e6 <= now);
        if expired { Err(Refusal::ApiKey) } else { Ok(key.identity.clone()) }
    }

    async fn snapshot(&self, engine: &Engine, fresh_for: Duration) -> Result<Arc<Snapshot>, Refusal> {
        let fresh = || self.known().filter(|snapshot| snapshot.read_at.elapsed() < fresh_for);
        if let Some(snapshot) = fresh() {
            return Ok(snapshot);
        }
        let _reading = self.reading.lock().await;
        if let Some(snapshot) = fresh() {
            return Ok(snapshot);
        }
        if engine.reaches_database() && !self.failed_just_now() {
            match timeout(READ_TIMEOUT, engine.live_keys()).await {
                Ok(Ok(keys)) => return Ok(self.learn(keys)),
                Ok(Err(error)) => self.note_failure(&error.to_string()),
                Err(_) => self.note_failure("the database takes too long"),
            }
        }
        let known = self.known().filter(|snapshot| snapshot.read_at.elapsed() < KNOWN_FOR);
        known.ok_or(Refusal::NoDatabase)
    }

    fn known(&self) -> Option<Arc<Snapshot>> {
        self.snapshot.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn learn(&self, keys: Vec<ApiKey>) -> Arc<Snapshot> {
        let keys = keys.into_iter().filter_map(|key| Some((key.id.clone(), live(key)?))).collect();
        let snapshot = Arc::new(Snapshot { keys, read_at: Instant::now() });
        *self.snapshot.write().unwrap_or_else(PoisonError::into_inner) = Some(snapshot.clone());
        snapshot
    }

    fn failed_just_now(&self) -> bool {
        let failed = *self.failed_at.lock().unwrap_or_else(PoisonError::into_inner);
        failed.is_some_and(|failed| failed.elapsed() < FRESH_FOR)
    }

    fn note_failure(&self, error: &str) {
        warn!(error, "cannot read the API keys; those that are known count for another while");
        *self.failed_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
}

/// `None` for a row that a hand has written and nobody understands.
fn live(key: ApiKey) -> Option<Live> {
    let grants = key.grants.as_deref().map(serde_json::from_str::<Grants>).transpose();
    let (Some(role), Ok(grants)) = (Role::parse(&key.role), grants) else {
        warn!(key = key.id, "the role or the grants of this API key cannot be read; it does not count");
        return None;
    };
    let identity = Identity {
        kind: Kind::Key,
        subject: Some(key.name.into()),
        role: Some(role),
        grants: grants.map(Arc::new),
    };
    Some(Live { hash: key.hash, expires_at: key.expires_at, identity: Arc::new(identity) })
}

/// Id and secret.
fn split(text: &str) -> Option<(&str, &str)> {
    let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
    let is_hex = |part: &str, bytes: usize| {
        part.len() == 2 * bytes && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    (is_hex(id, ID_BYTES) && is_hex(secret, SECRET_BYTES)).then_some((id, secret))
}

fn hash(secret: &str) -> Vec<u8> {
    digest(&SHA256, secret.as_bytes()).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minted_key_is_read_back_and_no_two_are_alike() {
        let (one, two) = (mint().unwrap(), mint().unwrap());
        let (id, secret) = split(&one.text).unwrap();
        assert_eq!((id, hash(secret)), (one.id.as_str(), one.hash));
        assert!(one.id != two.id && one.text != two.text);
        assert_eq!(one.text.len(), 3 + 16 + 1 + 64);
    }

    #[test]
    fn what_is_no_key_is_not_looked_up() {
        let good = mint().unwrap().text;
        for bad in [&good[1..], &good[..good.len() - 1], &good.to_uppercase(), "qk_", "qk__", "", "qk_0_0"] {
            assert!(split(bad).is_none(), "{bad}");
        }
    }
}
