//! API keys: their format, and which are valid. Brokers read all live keys every few seconds, and again when a request has an
//! unknown one, so that a new key works at once and a revoked one stops within seconds.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand;
use queen_engine::{ApiKey, Engine};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::grants::Grants;
use super::refusal::Refusal;
use super::role::Role;
use super::{Identity, Kind, audit};

pub const PREFIX: &str = "qk_";
const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 32;

/// How soon a revoked key stops working.
const FRESH_FOR: Duration = Duration::from_secs(2);
/// Minimum time between two reads because of unknown keys. All such requests wait for the next read together, so guessing costs
/// at most ten statements a second, and a new key is delayed by at most this.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// While the database is unreachable, known keys keep working for this long.
const KNOWN_FOR: Duration = Duration::from_secs(600);
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// A new key. It is shown once; only its hash is stored.
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

/// A key that is valid.
struct Live {
    hash: Vec<u8>,
    /// Microseconds since 1970.
    expires_at: Option<i64>,
    identity: Arc<Identity>,
    used: Arc<AtomicBool>,
    /// Cancelled once the key is no longer valid.
    ended: CancellationToken,
}

struct Snapshot {
    keys: HashMap<String, Live>,
    /// When the read began: it contains everything committed before.
    begun: Instant,
}

#[derive(Default)]
pub struct KeyRing {
    snapshot: RwLock<Option<Arc<Snapshot>>>,
    failed_at: Mutex<Option<Instant>>,
    /// When the last read began. Set before the read, because its caller may go away.
    tried_at: Mutex<Option<Instant>>,
    /// Held while reading, so that one read serves all.
    reading: tokio::sync::Mutex<()>,
    /// Pops that wait.
    waiting: AtomicUsize,
}

/// A pop that waits, until it is dropped.
pub struct Waiting<'a>(&'a KeyRing);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

impl KeyRing {
    /// The identity of the key. `now`: seconds since 1970.
    pub async fn check(
        &self,
        engine: &Engine,
        text: &str,
        now: f64,
        address: IpAddr,
    ) -> Result<Arc<Identity>, Refusal> {
        let (id, secret) = split(text).ok_or(Refusal::ApiKey)?;
        let (hash, came) = (hash(secret), Instant::now());
        let mut snapshot = self.fresh(engine).await?;
        if !snapshot.keys.contains_key(id) {
            snapshot = self.begun_since(engine, came).await?;
        }
        let key = snapshot.keys.get(id).ok_or(Refusal::ApiKey)?;
        verify_slices_are_equal(&key.hash, &hash).map_err(|_| Refusal::ApiKey)?;
        let expired = key.expires_at.is_some_and(|expires| expires as f64 / 1e6 <= now);
        if expired {
            return Err(Refusal::ApiKey);
        }
        if !key.used.swap(true, Relaxed) {
            audit::key_used(&key.identity, address);
        }
        Ok(key.identity.clone())
    }

    /// A waiting pop is one request, however long it takes. While there is one, the keys have to be read.
    pub fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Relaxed);
        Waiting(self)
    }

    pub async fn keep_fresh(&self, engine: &Engine) {
        loop {
            sleep(FRESH_FOR / 2).await;
            if self.waiting.load(Relaxed) > 0 {
                // A failure is logged, and changes nothing here.
                _ = self.fresh(engine).await;
            }
        }
    }

    async fn fresh(&self, engine: &Engine) -> Result<Arc<Snapshot>, Refusal> {
        let fresh = || self.known().filter(|snapshot| snapshot.begun.elapsed() < FRESH_FOR);
        if let Some(snapshot) = fresh() {
            return Ok(snapshot);
        }
        let _reading = self.reading.lock().await;
        if let Some(snapshot) = fresh() {
            return Ok(snapshot);
        }
        if let Some(snapshot) = self.read(engine).await {
            return Ok(snapshot);
        }
        let known = self.known().filter(|snapshot| snapshot.begun.elapsed() < KNOWN_FOR);
        known.ok_or(Refusal::NoDatabase)
    }

    /// A snapshot that has all keys which existed at this time.
    async fn begun_since(&self, engine: &Engine, came: Instant) -> Result<Arc<Snapshot>, Refusal> {
        let since = || self.known().filter(|snapshot| snapshot.begun >= came);
        if let Some(snapshot) = since() {
            return Ok(snapshot);
        }
        let _reading = self.reading.lock().await;
        if let Some(snapshot) = since() {
            return Ok(snapshot);
        }
        let tried = *self.tried_at.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tried) = tried {
            sleep(LOOK_AGAIN.saturating_sub(tried.elapsed())).await;
        }
        self.read(engine).await.ok_or(Refusal::NoDatabase)
    }

    async fn read(&self, engine: &Engine) -> Option<Arc<Snapshot>> {
        if !engine.reaches_database() || self.failed_just_now() {
            return None;
        }
        let begun = Instant::now();
        *self.tried_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(begun);
        match timeout(READ_TIMEOUT, engine.live_keys()).await {
            Ok(Ok(keys)) => return Some(self.learn(keys, begun)),
            Ok(Err(error)) => self.note_failure(&error.to_string()),
            Err(_) => self.note_failure("the database took too long"),
        }
        None
    }

    fn known(&self) -> Option<Arc<Snapshot>> {
        self.snapshot.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Only called while `reading` is held.
    fn learn(&self, keys: Vec<ApiKey>, begun: Instant) -> Arc<Snapshot> {
        let before = self.known();
        let known = |id: &str| before.as_ref().and_then(|before| before.keys.get(id));
        let keys: HashMap<String, Live> =
            keys.into_iter().filter_map(|key| Some((key.id.clone(), live(known(&key.id), key)?))).collect();
        if let Some(before) = &before {
            for (_, key) in keys.iter().filter(|(id, _)| !before.keys.contains_key(*id)) {
                audit::key_added(&key.identity);
            }
            for (_, key) in before.keys.iter().filter(|(id, _)| !keys.contains_key(*id)) {
                key.ended.cancel();
                audit::key_ended(&key.identity);
            }
        }
        let snapshot = Arc::new(Snapshot { keys, begun });
        *self.snapshot.write().unwrap_or_else(PoisonError::into_inner) = Some(snapshot.clone());
        snapshot
    }

    fn failed_just_now(&self) -> bool {
        let failed = *self.failed_at.lock().unwrap_or_else(PoisonError::into_inner);
        failed.is_some_and(|failed| failed.elapsed() < FRESH_FOR)
    }

    fn note_failure(&self, error: &str) {
        warn!(error, "cannot read the API keys; known keys keep working for up to 10 minutes");
        *self.failed_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
}

/// `None` for a row with invalid content, which was written by hand.
fn live(before: Option<&Live>, key: ApiKey) -> Option<Live> {
    let grants = key.grants.as_deref().map(serde_json::from_str::<Grants>).transpose();
    let (Some(role), Ok(grants)) = (Role::parse(&key.role), grants) else {
        warn!(key = key.id, "ignoring an API key with an invalid role or invalid grants");
        return None;
    };
    let (used, ended) = before.map_or_else(Default::default, |key| (key.used.clone(), key.ended.clone()));
    let identity = Identity {
        kind: Kind::Key,
        subject: Some(key.name.into()),
        key: Some(key.id.into()),
        role: Some(role),
        grants: grants.map(Arc::new),
        until: key.expires_at.and_then(instant),
        revoked: Some(ended.clone()),
    };
    Some(Live { hash: key.hash, expires_at: key.expires_at, identity: Arc::new(identity), used, ended })
}

/// `micros`: since 1970. `None` if it is in the past, or too far in the future to matter.
fn instant(micros: i64) -> Option<Instant> {
    let at = UNIX_EPOCH.checked_add(Duration::from_micros(u64::try_from(micros).ok()?))?;
    Instant::now().checked_add(at.duration_since(SystemTime::now()).ok()?)
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
