//! The public keys of an issuer, fetched from its key set (JWKS) and kept while it is unreachable. It verifies nothing.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, StatusCode, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::refusal::Refusal;
use crate::config::report::address;
use crate::outgoing::connector;

const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// A key has less than 1 kB, and issuers have far fewer than 100.
const ANSWER_BYTES_MAX: usize = 256 << 10;
const KEYS_MAX: usize = 100;
/// Minimum time between two fetches that a token triggers: strangers can make up key ids, which must not load the issuer.
const ASK_AGAIN: Duration = Duration::from_secs(5);

pub struct Jwks {
    url: Uri,
    client: Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
    every: Duration,
    /// `None` until it was fetched once.
    keys: RwLock<Option<Arc<Vec<Arc<Key>>>>>,
    /// Number of fetches that have begun. Only `keep_fresh` fetches, so that no caller can cancel a fetch by going away, and no
    /// late response can replace a newer one.
    begun: AtomicU64,
    /// Number of the last fetch that has ended.
    ended: watch::Sender<u64>,
    /// Notified when a caller waits for the next fetch.
    wanted: Notify,
}

pub struct Key {
    pub kid: Option<String>,
    pub algorithm: Algorithm,
    pub key: DecodingKey,
}

impl Jwks {
    pub fn new(url: &str, every: Duration) -> Result<Self> {
        let client = Client::builder(TokioExecutor::new()).build(connector(url)?);
        let url = url.parse().context("JWT_JWKS_URL must be a URL")?;
        let (begun, ended) = (AtomicU64::new(0), watch::Sender::new(0));
        Ok(Self { url, client, every, keys: RwLock::default(), begun, ended, wanted: Notify::new() })
    }

    /// The key that a token names, or the only key if it names none. An unknown name triggers a fetch and waits for it, so that a
    /// new key is not refused because a fetch was triggered a moment earlier.
    pub async fn find(&self, kid: Option<&str>, algorithm: Algorithm) -> Result<Arc<Key>, Refusal> {
        let mut ended = self.ended.subscribe();
        let before = self.begun.load(SeqCst);
        let mut found = self.look(kid, algorithm);
        if !missing(&found) {
            return found;
        }
        self.wanted.notify_one();
        let looking = async {
            loop {
                // A fetch that was already in progress may find the key, but cannot prove that there is none.
                let fresh = *ended.borrow_and_update() > before;
                found = self.look(kid, algorithm);
                if fresh || !missing(&found) || ended.changed().await.is_err() {
                    break;
                }
            }
        };
        // If the issuer takes longer, the keys known by now count.
        _ = timeout(ASK_AGAIN + FETCH_TIMEOUT, looking).await;
        found
    }

    fn look(&self, kid: Option<&str>, algorithm: Algorithm) -> Result<Arc<Key>, Refusal> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner).clone();
        let keys = keys.ok_or(Refusal::NoIssuer)?;
        let mut fitting = keys.iter().filter(|key| key.algorithm == algorithm);
        match kid {
            Some(kid) => {
                fitting.find(|key| key.kid.as_deref() == Some(kid)).cloned().ok_or(Refusal::UnknownKey)
            }
            None => match (fitting.next(), fitting.next()) {
                (Some(key), None) => Ok(key.clone()),
                _ => Err(Refusal::UnnamedKey),
            },
        }
    }

    /// Fetches at once, then periodically and on demand. Never returns.
    pub async fn keep_fresh(&self) {
        let mut asked: Option<Instant> = None;
        loop {
            let number = self.begun.fetch_add(1, SeqCst) + 1;
            let good = self.refresh().await;
            self.ended.send_replace(number);
            let pause = if good { self.every } else { self.every.min(ASK_AGAIN) };
            let wanted = async {
                self.wanted.notified().await;
                if let Some(asked) = asked {
                    sleep(ASK_AGAIN.saturating_sub(asked.elapsed())).await;
                }
            };
            if timeout(pause, wanted).await.is_ok() {
                asked = Some(Instant::now());
            }
        }
    }

    /// Whether the fetch succeeded. If not, the previous keys stay.
    async fn refresh(&self) -> bool {
        let fetched = match timeout(FETCH_TIMEOUT, self.fetch()).await {
            Ok(fetched) => fetched,
            Err(_) => Err(anyhow::anyhow!("the issuer took too long")),
        };
        match fetched {
            Ok(keys) => {
                let count = keys.len();
                let before =
                    self.keys.write().unwrap_or_else(PoisonError::into_inner).replace(Arc::new(keys));
                if before.is_none() {
                    info!(keys = count, "fetched the keys of the issuer");
                }
                true
            }
            Err(error) => {
                let url = address(&self.url.to_string());
                warn!(url, error = format!("{error:#}"), "cannot fetch the keys of the issuer");
                false
            }
        }
    }

    async fn fetch(&self) -> Result<Vec<Arc<Key>>> {
        let request = Request::get(self.url.clone()).header("Accept", "application/json");
        let response = self.client.request(request.body(Empty::new())?).await?;
        if response.status() != StatusCode::OK {
            bail!("the issuer responded with {}", response.status());
        }
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("{error}"))?.to_bytes();
        let keys = read(&body)?;
        if keys.is_empty() {
            bail!("the key set has no key for RS256 or EdDSA");
        }
        Ok(keys)
    }
}

fn missing(found: &Result<Arc<Key>, Refusal>) -> bool {
    matches!(found, Err(Refusal::UnknownKey | Refusal::NoIssuer))
}

#[derive(Deserialize)]
struct Set {
    keys: Vec<Value>,
}

/// The keys that verify signatures with a supported algorithm. Other keys are ignored.
fn read(body: &[u8]) -> Result<Vec<Arc<Key>>> {
    let set: Set = serde_json::from_slice(body).context("the response is not a key set")?;
    let keys = set.keys.into_iter().take(KEYS_MAX);
    Ok(keys.filter_map(|key| key_of(&serde_json::from_value(key).ok()?)).map(Arc::new).collect())
}

fn key_of(jwk: &Jwk) -> Option<Key> {
    let common = &jwk.common;
    let signs = common.public_key_use.as_ref().is_none_or(|usage| *usage == PublicKeyUse::Signature);
    let verifies = common.key_operations.as_ref().is_none_or(|all| all.contains(&KeyOperations::Verify));
    let (named, algorithm) = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => (KeyAlgorithm::RS256, Algorithm::RS256),
        AlgorithmParameters::OctetKeyPair(pair) if pair.curve == EllipticCurve::Ed25519 => {
            (KeyAlgorithm::EdDSA, Algorithm::EdDSA)
        }
        _ => return None,
    };
    let fits = common.key_algorithm.is_none_or(|given| given == named);
    if !signs || !verifies || !fits {
        return None;
    }
    Some(Key { kid: common.key_id.clone(), algorithm, key: DecodingKey::from_jwk(jwk).ok()? })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_keys_that_verify_with_an_algorithm_of_ours_are_taken() {
        let x = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
        let set = json!({"keys": [
            {"kty": "OKP", "crv": "Ed25519", "x": x, "kid": "good"},
            {"kty": "OKP", "crv": "Ed25519", "x": x, "kid": "told", "use": "sig", "alg": "EdDSA", "key_ops": ["verify"]},
            {"kty": "OKP", "crv": "Ed25519", "x": x, "kid": "encrypts", "use": "enc"},
            {"kty": "OKP", "crv": "Ed25519", "x": x, "kid": "signs", "key_ops": ["sign"]},
            {"kty": "OKP", "crv": "Ed25519", "x": x, "kid": "other", "alg": "RS256"},
            {"kty": "OKP", "crv": "X25519", "x": x, "kid": "curve"},
            {"kty": "RSA", "n": "AQAB", "e": "AQAB", "alg": "PS256", "kid": "pss"},
            {"kty": "RSA", "n": "AQAB", "e": "AQAB", "kid": "rsa"},
            {"kty": "RSA", "kid": "half"},
            {"kty": "oct", "k": "c2VjcmV0", "kid": "secret"},
            "nonsense",
        ]});
        let keys = read(set.to_string().as_bytes()).unwrap();
        let names: Vec<_> = keys.iter().map(|key| key.kid.as_deref().unwrap()).collect();
        assert_eq!(names, ["good", "told", "rsa"]);
        assert!(read(b"[]").is_err() && read(b"<html>").is_err());
    }
}
