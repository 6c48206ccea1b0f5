//! Encryption at rest: the keys of a broker, and how a payload is sealed and opened. It knows no queue and no table.
//!
//! A sealed payload is a JSON object, so that a frame stays a line of JSON. It is never recognized by its shape: the
//! frame names the key beside it, and a payload that a sender wrote in the same shape is a payload like any other.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, Nonce, RandomizedNonceKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

const KEY_BYTES: usize = 32;
const TAG_BYTES: usize = 16;
const KEY_ID_MAX: usize = 64;

/// Prefixed to the transaction id in what is authenticated, so that nothing else that is ever sealed with the same key
/// can pass for a payload.
const PURPOSE: &[u8] = b"queen payload 1\0";

/// Clones share them. `Debug` shows ids only, never a key.
#[derive(Clone, Default)]
pub struct Keys(Arc<Ring>);

#[derive(Default)]
struct Ring {
    current: Option<Key>,
    old: Vec<Key>,
}

struct Key {
    id: String,
    cipher: RandomizedNonceKey,
}

/// A sealed payload, and under which key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    pub key_id: String,
    /// JSON without line breaks.
    pub envelope: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    #[error("it is encrypted with key {0:?}, which this broker was not given")]
    UnknownKey(String),
    #[error(
        "it does not fit key {0:?}: it was changed in the database, or the key is another one of this name"
    )]
    Damaged(String),
}

#[derive(Debug, thiserror::Error)]
#[error("a payload cannot be encrypted")]
pub struct SealError;

/// Why keys are refused. Reveals nothing about the keys themselves.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    #[error("a key is 64 hexadecimal digits (32 bytes), or ID:DIGITS")]
    Digits,
    #[error("the id of a key is 1 to {KEY_ID_MAX} letters, digits, '.', '-' and '_'")]
    Id,
    #[error("key id {0:?} is given twice")]
    Twice(String),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    encrypted: &'a str,
    iv: &'a str,
    auth_tag: &'a str,
    key_id: &'a str,
}

impl Keys {
    /// `current` seals and opens; those in `old` (separated by commas) only open.
    pub fn parse(current: Option<&str>, old: Option<&str>) -> Result<Self, BadKey> {
        let current = current.map(Key::parse).transpose()?;
        let old = old.into_iter().flat_map(|keys| keys.split(',')).map(Key::parse);
        let old = old.collect::<Result<Vec<_>, _>>()?;
        let ids: Vec<&str> = current.iter().chain(&old).map(|key| key.id.as_str()).collect();
        let twice = ids.iter().enumerate().find(|(index, id)| ids[..*index].contains(id));
        if let Some((_, id)) = twice {
            return Err(BadKey::Twice((*id).to_owned()));
        }
        Ok(Self(Arc::new(Ring { current, old })))
    }

    /// Whether there is a key to seal with.
    pub fn can_seal(&self) -> bool {
        self.0.current.is_some()
    }

    /// The key that seals comes first.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.0.current.iter().chain(&self.0.old).map(|key| key.id.as_str())
    }

    /// `None` without a key to seal with.
    pub fn seal(&self, payload: &str, transaction_id: &str) -> Result<Option<Sealed>, SealError> {
        let Some(key) = &self.0.current else { return Ok(None) };
        let mut bytes = Vec::with_capacity(payload.len() + TAG_BYTES);
        bytes.extend_from_slice(payload.as_bytes());
        let aad = Aad::from(authenticated(transaction_id));
        let nonce = key.cipher.seal_in_place_append_tag(aad, &mut bytes).map_err(|_| SealError)?;
        let (secret, tag) = bytes.split_at(payload.len());
        let (encrypted, iv, auth_tag) =
            (STANDARD.encode(secret), STANDARD.encode(nonce.as_ref()), STANDARD.encode(tag));
        let envelope =
            Envelope { encrypted: &encrypted, iv: &iv, auth_tag: &auth_tag, key_id: key.id.as_str() };
        let envelope = serde_json::to_string(&envelope).map_err(|_| SealError)?;
        Ok(Some(Sealed { key_id: key.id.clone(), envelope }))
    }

    pub fn open(&self, key_id: &str, envelope: &str, transaction_id: &str) -> Result<String, Unreadable> {
        let mut keys = self.0.current.iter().chain(&self.0.old);
        let key = keys.find(|key| key.id == key_id);
        let key = key.ok_or_else(|| Unreadable::UnknownKey(key_id.to_owned()))?;
        key.open(envelope, transaction_id).ok_or_else(|| Unreadable::Damaged(key_id.to_owned()))
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ids()).finish()
    }
}

impl Key {
    fn parse(text: &str) -> Result<Self, BadKey> {
        let text = text.trim();
        let (id, digits) = match text.rsplit_once(':') {
            Some((id, digits)) => (Some(id), digits),
            None => (None, text),
        };
        let bytes = unhex(digits).filter(|bytes| bytes.len() == KEY_BYTES).ok_or(BadKey::Digits)?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if id.is_some_and(|id| id.is_empty() || id.len() > KEY_ID_MAX || !id.chars().all(plain)) {
            return Err(BadKey::Id);
        }
        let named_by_itself = || Sha256::digest(&bytes).iter().take(4).map(|b| format!("{b:02x}")).collect();
        let id = id.map_or_else(named_by_itself, str::to_owned);
        let cipher = RandomizedNonceKey::new(&AES_256_GCM, &bytes).map_err(|_| BadKey::Digits)?;
        Ok(Self { id, cipher })
    }

    fn open(&self, envelope: &str, transaction_id: &str) -> Option<String> {
        let envelope: Envelope<'_> = serde_json::from_str(envelope).ok()?;
        let nonce = Nonce::try_assume_unique_for_key(&STANDARD.decode(envelope.iv).ok()?).ok()?;
        let mut bytes = STANDARD.decode(envelope.encrypted).ok()?;
        let tag = STANDARD.decode(envelope.auth_tag).ok().filter(|tag| tag.len() == TAG_BYTES)?;
        if envelope.key_id != self.id {
            return None;
        }
        let length = bytes.len();
        bytes.extend_from_slice(&tag);
        self.cipher.open_in_place(nonce, Aad::from(authenticated(transaction_id)), &mut bytes).ok()?;
        bytes.truncate(length);
        String::from_utf8(bytes).ok()
    }
}

/// What a payload is bound to: the one thing that stays with a message in the log, among dead letters, among deferred
/// operations and in the spool. A replayed dead letter gets a new transaction id, and is sealed again.
fn authenticated(transaction_id: &str) -> Vec<u8> {
    [PURPOSE, transaction_id.as_bytes()].concat()
}

fn unhex(digits: &str) -> Option<Vec<u8>> {
    if !digits.len().is_multiple_of(2) || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let pairs = (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16));
    pairs.collect::<Result<_, _>>().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ONE: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const TWO: &str = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff";

    fn sealed(keys: &Keys, payload: &str, transaction: &str) -> Sealed {
        keys.seal(payload, transaction).unwrap().unwrap()
    }

    #[test]
    fn a_key_that_makes_no_sense_is_refused_without_being_shown() {
        let refused = |current: &str, old: Option<&str>| Keys::parse(Some(current), old).unwrap_err();
        for bad in ["", "secret", &ONE[2..], &format!("{ONE}00"), &ONE.replace('0', "g"), "a:", "a:b:c"] {
            assert_eq!(refused(bad, None), BadKey::Digits, "{bad}");
            assert!(bad.len() < 5 || !refused(bad, None).to_string().contains(bad));
        }
        for bad in [format!(":{ONE}"), format!("a b:{ONE}"), format!("ä:{ONE}"), format!("{TWO}{TWO}:{ONE}")]
        {
            assert_eq!(refused(&bad, None), BadKey::Id, "{bad}");
        }
        assert_eq!(refused(&format!("a:{ONE}"), Some(&format!("a:{TWO}"))), BadKey::Twice("a".to_owned()));
        assert_eq!(refused(ONE, Some(ONE)), BadKey::Twice("630dcd29".to_owned()), "by its own name");
        assert_eq!(refused(ONE, Some("")), BadKey::Digits, "an empty list is no list");
        assert_eq!(refused(ONE, Some(&format!("{TWO},"))), BadKey::Digits);
    }

    #[test]
    fn keys_are_never_shown() {
        let keys = Keys::parse(Some(&format!("new:{ONE}")), Some(TWO)).unwrap();
        assert_eq!(format!("{keys:?}"), "[\"new\", \"af961376\"]");
    }

    #[test]
    fn an_old_key_opens_and_the_new_one_seals() {
        let before = Keys::parse(Some(&format!("a:{ONE}")), None).unwrap();
        let old = sealed(&before, "1", "t");
        let after = Keys::parse(Some(&format!("b:{TWO}")), Some(&format!("a:{ONE}"))).unwrap();
        assert_eq!(after.open(&old.key_id, &old.envelope, "t").as_deref(), Ok("1"));
        assert_eq!(sealed(&after, "1", "t").key_id, "b");
        let without = Keys::parse(Some(TWO), None).unwrap();
        let refused = without.open(&old.key_id, &old.envelope, "t");
        assert_eq!(refused, Err(Unreadable::UnknownKey("a".to_owned())));
        let another = Keys::parse(Some(&format!("a:{TWO}")), None).unwrap();
        let refused = another.open(&old.key_id, &old.envelope, "t");
        assert_eq!(refused, Err(Unreadable::Damaged("a".to_owned())));
        let reading = Keys::parse(None, Some(&format!("a:{ONE}"))).unwrap();
        assert_eq!(reading.seal("1", "t").unwrap(), None);
        assert_eq!(reading.open("a", &old.envelope, "t").as_deref(), Ok("1"));
    }

    #[test]
    fn what_other_programs_seal_is_opened() {
        // Computed with Python's `cryptography` from the same key, payload and transaction id.
        let keys = Keys::parse(Some(&format!("k:{ONE}")), None).unwrap();
        let envelope = r#"{"encrypted":"dZ7BscFN758yndQ=","iv":"AAAAAAAAAAAAAAAA","authTag":"qmpuM0D1OZzmvpnOvTB2TA==","keyId":"k"}"#;
        assert_eq!(keys.open("k", envelope, "order-1").as_deref(), Ok(r#"{"total":5}"#));
    }

    proptest! {
        #[test]
        fn whatever_is_sealed_is_opened_and_no_two_look_alike(payload in any::<String>(), transaction in any::<String>()) {
            let keys = Keys::parse(Some(ONE), None).unwrap();
            let (one, two) = (sealed(&keys, &payload, &transaction), sealed(&keys, &payload, &transaction));
            prop_assert!(!one.envelope.contains('\n'));
            prop_assert_ne!(&one.envelope, &two.envelope);
            prop_assert_eq!(keys.open(&one.key_id, &one.envelope, &transaction), Ok(payload));
        }

        #[test]
        fn a_changed_byte_is_noticed(payload in ".{0,40}", at in any::<prop::sample::Index>(), flip in 1u8..) {
            let keys = Keys::parse(Some(ONE), None).unwrap();
            let sealed = sealed(&keys, &payload, "t");
            let mut bytes = sealed.envelope.into_bytes();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            // Bytes that are not text cannot be read from the database in the first place.
            if let Ok(envelope) = String::from_utf8(bytes) {
                let opened = keys.open(&sealed.key_id, &envelope, "t");
                prop_assert_eq!(opened, Err(Unreadable::Damaged(sealed.key_id)));
            }
        }

        #[test]
        fn a_payload_belongs_to_its_message(payload in any::<String>(), mine in any::<String>(), other in any::<String>()) {
            prop_assume!(mine != other);
            let keys = Keys::parse(Some(ONE), None).unwrap();
            let sealed = sealed(&keys, &payload, &mine);
            prop_assert!(keys.open(&sealed.key_id, &sealed.envelope, &other).is_err());
        }
    }
}
