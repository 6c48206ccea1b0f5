//! A cache of recently verified tokens, because verifying a signature costs more than a whole request. Its keys are digests, so no
//! token is stored.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Identity;

/// Also how long a key that was removed from a key set may still be accepted.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);
/// About 300 bytes each.
const TOKENS_MAX: usize = 10_000;

pub type Digest = [u8; 32];

#[derive(Default)]
pub struct Seen {
    known: Mutex<HashMap<Digest, (Arc<Identity>, Instant)>>,
}

impl Seen {
    pub fn get(&self, digest: &Digest, now: Instant) -> Option<Arc<Identity>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(digest).filter(|(_, until)| now < *until).map(|(identity, _)| identity.clone())
    }

    /// `left` is how long the token is valid.
    pub fn put(&self, digest: Digest, identity: Arc<Identity>, left: Duration, now: Instant) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= TOKENS_MAX {
            known.retain(|_, (_, until)| now < *until);
        }
        // So many valid tokens in a minute: starting over is cheaper than tracking their age.
        if known.len() >= TOKENS_MAX {
            known.clear();
        }
        known.insert(digest, (identity, now + left.min(REMEMBERED_FOR)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Kind;

    #[test]
    fn a_token_is_known_for_a_minute_or_until_it_expires_and_there_are_never_too_many() {
        let (seen, now) = (Seen::default(), Instant::now());
        let nobody = Arc::new(Identity {
            kind: Kind::Token,
            subject: None,
            key: None,
            role: None,
            grants: None,
            until: None,
            revoked: None,
        });
        seen.put([1; 32], nobody.clone(), Duration::from_secs(5), now);
        seen.put([2; 32], nobody.clone(), Duration::from_secs(500), now);
        let known = |digest, seconds| seen.get(&[digest; 32], now + Duration::from_secs(seconds)).is_some();
        assert!(known(1, 4) && !known(1, 5) && known(2, 59) && !known(2, 60) && !known(3, 0));
        for n in 0..2 * TOKENS_MAX {
            let mut digest = [9; 32];
            digest[..8].copy_from_slice(&n.to_le_bytes());
            seen.put(digest, nobody.clone(), Duration::from_secs(500), now);
        }
        assert!(seen.known.lock().unwrap().len() <= TOKENS_MAX);
    }
}
