//! Keys for one test, tokens signed with them, and the key set of an issuer behind real HTTP.

use std::sync::{Arc, Mutex};

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair as RsaKey, KeySize};
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;
use tokio_util::task::TaskTracker;

pub struct Signer {
    algorithm: Algorithm,
    key: EncodingKey,
    pub kid: Option<String>,
    /// Of an RSA or Ed25519 key.
    pub pem: String,
    pub jwk: Value,
}

impl Signer {
    pub fn secret(secret: &str) -> Self {
        Self {
            algorithm: Algorithm::HS256,
            key: EncodingKey::from_secret(secret.as_bytes()),
            kid: None,
            pem: String::new(),
            jwk: Value::Null,
        }
    }

    pub fn rsa(kid: Option<&str>) -> Self {
        let pair = RsaKey::generate(KeySize::Rsa2048).unwrap();
        let private: Pkcs8V1Der<'_> = pair.as_der().unwrap();
        let public: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let (n, e) = (pair.public_key().modulus(), pair.public_key().exponent());
        Self {
            algorithm: Algorithm::RS256,
            key: EncodingKey::from_rsa_pem(pem("PRIVATE KEY", private.as_ref()).as_bytes()).unwrap(),
            kid: kid.map(str::to_owned),
            pem: pem("PUBLIC KEY", public.as_ref()),
            jwk: json!({
                "kty": "RSA", "kid": kid, "use": "sig", "alg": "RS256",
                "n": text(n.big_endian_without_leading_zero()), "e": text(e.big_endian_without_leading_zero()),
            }),
        }
    }

    pub fn ed(kid: Option<&str>) -> Self {
        let private = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(private.as_ref()).unwrap();
        let public: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
        Self {
            algorithm: Algorithm::EdDSA,
            key: EncodingKey::from_ed_der(private.as_ref()),
            kid: kid.map(str::to_owned),
            pem: pem("PUBLIC KEY", public.as_ref()),
            jwk: json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": URL_SAFE_NO_PAD.encode(pair.public_key())}),
        }
    }

    pub fn sign(&self, claims: &Value) -> String {
        let header = Header { kid: self.kid.clone(), ..Header::new(self.algorithm) };
        encode(&header, claims, &self.key).unwrap()
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// A token put together by hand, for tokens that no library would create.
pub fn forged(header: &Value, claims: &Value, signature: &str) -> String {
    let text = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.{signature}", text(header), text(claims))
}

/// An issuer's key set. With `None`, the issuer responds with an error.
pub struct KeySet {
    pub url: String,
    keys: Arc<Mutex<(Option<Vec<Value>>, usize)>>,
    _task: AbortOnDropHandle<()>,
}

impl KeySet {
    pub async fn start(keys: Option<Vec<Value>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/keys", listener.local_addr().unwrap());
        let keys = Arc::new(Mutex::new((keys, 0)));
        let served = keys.clone();
        let answer = move || {
            let served = served.clone();
            async move {
                let mut state = served.lock().unwrap();
                state.1 += 1;
                match &state.0 {
                    Some(keys) => (StatusCode::OK, json!({ "keys": keys }).to_string()),
                    None => (StatusCode::BAD_GATEWAY, String::new()),
                }
            }
        };
        let router = Router::new().route("/keys", get(answer));
        let task = TaskTracker::new().spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, keys, _task: AbortOnDropHandle::new(task) }
    }

    pub fn set(&self, keys: Option<Vec<Value>>) {
        self.keys.lock().unwrap().0 = keys;
    }

    /// How often the key set was fetched.
    pub fn asked(&self) -> usize {
        self.keys.lock().unwrap().1
    }
}
