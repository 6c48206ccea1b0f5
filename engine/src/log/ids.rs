//! Ids that are computed: messages, transactions, partitions.

use std::hash::{BuildHasherDefault, Hasher};

use sha2::{Digest, Sha256};
use uuid::Uuid;

/// A UUIDv7 of 48 bits of milliseconds, 42 bits of offset and 32 bits of partition number, so that in a partition
/// the order of ids is the order of delivery. The same bits as `queen.message_id` in SQL.
pub fn message_id(created_at_micros: i64, offset: i64, number: i64) -> Uuid {
    let millis = (created_at_micros.div_euclid(1000) as u128) & 0xffff_ffff_ffff;
    let offset = offset as u128;
    let high = (offset >> 30) & 0xfff;
    let low = offset & 0x3fff_ffff;
    let number = (number as u128) & 0xffff_ffff;
    Uuid::from_u128(millis << 80 | 0x7 << 76 | high << 64 | 0b10 << 62 | low << 32 | number)
}

/// The offset that a computed id names in this partition. `None`: the id belongs to another partition, or was not
/// computed.
pub fn offset_of(id: Uuid, number: i64) -> Option<i64> {
    let bits = id.as_u128();
    let offset = ((bits >> 64) as i64 & 0xfff) << 30 | (bits >> 32) as i64 & 0x3fff_ffff;
    // Compared without the time.
    let same = (message_id(0, offset, number).as_u128() ^ bits) << 48 == 0;
    same.then_some(offset)
}

/// A UUIDv7 whose last byte is the shard: 0 while there is one database.
pub fn partition_id() -> Uuid {
    let mut bytes = *Uuid::now_v7().as_bytes();
    bytes[15] = 0;
    Uuid::from_bytes(bytes)
}

/// Separates the sender's transaction id from the part that makes the id of a replay new.
const REPLAYED: &str = "~replay-";
const UUID_CHARS: usize = 36;
/// The same limit as for ids that senders choose.
const TRANSACTION_ID_CHARS_MAX: usize = 255;

/// A new transaction id for a message that is pushed again: the sender's, so that the message can still be found, and
/// a new part. The sender's alone would not do, because it has to be unique in its partition. If it is too long for
/// both, only the new part is used.
pub fn replay_id(transaction_id: &str) -> String {
    let original = original_id(transaction_id).unwrap_or(transaction_id);
    let new = Uuid::now_v7().to_string();
    match original.chars().count() + REPLAYED.len() + UUID_CHARS <= TRANSACTION_ID_CHARS_MAX {
        true => format!("{original}{REPLAYED}{new}"),
        false => new,
    }
}

/// The transaction id that the sender of a replayed message gave it; `None`: not a replay. Also works on the escaped
/// form inside a JSON string.
pub fn original_id(transaction_id: &str) -> Option<&str> {
    let (rest, new) = transaction_id.split_at_checked(transaction_id.len().checked_sub(UUID_CHARS)?)?;
    let original = rest.strip_suffix(REPLAYED)?;
    Uuid::try_parse(new).is_ok().then_some(original)
}

/// Sixteen bytes that stand for a transaction id in the log. The top bit says that a client chose the id: only
/// those can ever repeat, so only those are remembered for deduplication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TransactionHash(u128);

const CHOSEN: u128 = 1 << 127;

impl TransactionHash {
    pub const BYTES: usize = 16;

    /// SHA-256, cut short. A false match would lose a message, so it must be infeasible to make one.
    pub fn new(transaction_id: &str, chosen_by_client: bool) -> Self {
        let digest = Sha256::digest(transaction_id);
        let mut bytes = [0; Self::BYTES];
        bytes.copy_from_slice(&digest[..Self::BYTES]);
        let hash = u128::from_be_bytes(bytes) & !CHOSEN;
        Self(if chosen_by_client { hash | CHOSEN } else { hash })
    }

    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        self.0.to_be_bytes()
    }

    pub fn is_chosen(self) -> bool {
        self.0 & CHOSEN != 0
    }

    /// Equal for equal transaction ids, whether a client chose them or not.
    pub fn without_flag(self) -> u128 {
        self.0 & !CHOSEN
    }

    pub fn flagged(self, chosen_by_client: bool) -> Self {
        Self(if chosen_by_client { self.0 | CHOSEN } else { self.0 & !CHOSEN })
    }

    /// Enough to say "never seen"; a "seen" is checked against the log.
    pub fn fingerprint(self) -> u32 {
        self.0 as u32
    }

    pub fn read_all(packed: &[u8]) -> impl Iterator<Item = Self> + '_ {
        packed.as_chunks::<{ Self::BYTES }>().0.iter().map(|bytes| Self(u128::from_be_bytes(*bytes)))
    }
}

/// How an ack names its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference {
    pub hash: TransactionHash,
    /// Which of several messages with the transaction id; `None`: the first.
    pub id: Option<Uuid>,
}

/// For tables by [`TransactionHash::without_flag`], which is a hash already.
#[derive(Default)]
pub struct AsIs(u64);

pub type BuildAsIs = BuildHasherDefault<AsIs>;

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only transaction hashes are looked up")
    }
    fn write_u128(&mut self, hash: u128) {
        self.0 = hash as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_replay_is_new_and_names_the_senders_id() {
        let once = replay_id("o-1");
        let twice = replay_id(&once);
        assert_ne!(once, twice);
        assert_eq!((original_id(&once), original_id(&twice)), (Some("o-1"), Some("o-1")));
        for id in
            ["", "o-1", "~replay-", "é~replay-019a0000-0000-7000-8000-00000000000", &Uuid::nil().to_string()]
        {
            assert_eq!(original_id(id), None, "{id}");
        }
        assert_eq!(replay_id(&"é".repeat(211)).chars().count(), 255);
        assert_eq!(replay_id(&"x".repeat(212)).len(), 36);
    }

    #[test]
    fn a_message_id_is_a_version_7_uuid() {
        let id = message_id(1_700_000_000_123_456, 5, 9);
        assert_eq!(id.get_version_num(), 7);
        assert_eq!(id.get_variant(), uuid::Variant::RFC4122);
        assert_eq!(id.to_string(), "018bcfe5-687b-7000-8000-000500000009");
    }

    #[test]
    fn a_partition_id_keeps_its_last_byte_for_the_shard() {
        let id = partition_id();
        assert_eq!((id.get_version_num(), id.as_bytes()[15]), (7, 0));
    }

    proptest! {
        #[test]
        fn ids_of_a_partition_sort_like_its_offsets(
            at in 0i64..4_000_000_000_000_000, later in 0i64..10_000, offset in 0i64..(1 << 41), step in 1i64..1000, number: u32
        ) {
            let first = message_id(at, offset, i64::from(number));
            let second = message_id(at + later, offset + step, i64::from(number));
            prop_assert!(first < second);
            prop_assert!(first.to_string() < second.to_string());
        }

        #[test]
        fn an_id_says_where_its_message_is(
            at in 0i64..4_000_000_000_000_000, offset in 0i64..(1 << 42), number: u32, other: u32
        ) {
            let id = message_id(at, offset, i64::from(number));
            prop_assert_eq!(offset_of(id, i64::from(number)), Some(offset));
            prop_assume!(other != number);
            prop_assert_eq!(offset_of(id, i64::from(other)), None);
        }

        #[test]
        fn two_partitions_never_share_an_id(offset in 0i64..(1 << 41), a: u32, b: u32) {
            prop_assume!(a != b);
            prop_assert_ne!(message_id(0, offset, i64::from(a)), message_id(0, offset, i64::from(b)));
        }
    }
}
