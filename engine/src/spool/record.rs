//! The contents of a spool file: records with a mark, a length and a checksum, so that a torn end can be told from a
//! damaged middle, and records behind the damage are still found. Pure: bytes in, records out.

use std::ops::Range;

/// Starts every record. Bodies are JSON, which contains no NUL, so no pushed payload can pass for a record once the
/// record around it is damaged.
const MARK: [u8; 4] = *b"\x00QS\x01";

/// Mark, length of the body, checksum of number and body, number.
const HEADER_BYTES: usize = 4 + 4 + 4 + 8;

/// Larger than any request body can be.
pub const BODY_BYTES_MAX: usize = 1 << 30;

/// The database stores numbers as `bigint`, and there must be a next one.
const NUMBER_MAX: u64 = i64::MAX as u64 - 1;

#[derive(Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Counts up from record to record, through all files of a spool.
    pub number: u64,
    pub body: &'a [u8],
}

/// What a file holds.
#[derive(Debug, PartialEq, Eq)]
pub struct Contents<'a> {
    pub records: Vec<Record<'a>>,
    /// Bytes in the middle that are not records. What was stored there is lost.
    pub damaged: Vec<Range<usize>>,
    /// Where the last whole record ends: what follows was being written when the power failed.
    pub end: usize,
}

pub fn size(body: &[u8]) -> usize {
    HEADER_BYTES + body.len()
}

pub fn write(out: &mut Vec<u8>, number: u64, body: &[u8]) {
    out.extend_from_slice(&MARK);
    out.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(&checksum(number, body).to_le_bytes());
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(body);
}

pub fn read(bytes: &[u8]) -> Contents<'_> {
    let mut contents = Contents { records: Vec::new(), damaged: Vec::new(), end: 0 };
    let mut at = 0;
    while at < bytes.len() {
        if let Some(record) = record_at(bytes, at) {
            if at > contents.end {
                contents.damaged.push(contents.end..at);
            }
            at += size(record.body);
            contents.end = at;
            contents.records.push(record);
        } else {
            at = next_mark(bytes, at + 1);
        }
    }
    contents
}

fn next_mark(bytes: &[u8], from: usize) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    memchr::memmem::find(rest, &MARK).map_or(bytes.len(), |found| from + found)
}

fn record_at(bytes: &[u8], at: usize) -> Option<Record<'_>> {
    let header = bytes.get(at..at + HEADER_BYTES)?;
    let (mark, rest) = header.split_first_chunk::<4>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let number = u64::from_le_bytes(*rest.first_chunk::<8>()?);
    let length = u32::from_le_bytes(*length) as usize;
    if *mark != MARK || length > BODY_BYTES_MAX || number > NUMBER_MAX {
        return None;
    }
    let body = bytes.get(at + HEADER_BYTES..)?.get(..length)?;
    (checksum(number, body) == u32::from_le_bytes(*sum)).then_some(Record { number, body })
}

fn checksum(number: u64, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(body);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(bodies: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, body) in bodies.iter().enumerate() {
            write(&mut out, number as u64, body);
        }
        out
    }

    #[test]
    fn a_number_that_nothing_can_follow_is_damage() {
        let mut bytes = file(&[b"kept".to_vec()]);
        write(&mut bytes, u64::MAX, b"checksum and all");
        write(&mut bytes, 1, b"kept as well");
        let contents = read(&bytes);
        assert_eq!(contents.records.iter().map(|record| record.number).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(contents.damaged.len(), 1);
    }

    #[test]
    fn nothing_is_in_an_empty_file() {
        assert_eq!(read(&[]), Contents { records: Vec::new(), damaged: Vec::new(), end: 0 });
    }

    proptest! {
        #[test]
        fn a_torn_end_is_not_damage(bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 1..10), cut in any::<prop::sample::Index>()) {
            let whole = file(&bodies);
            let cut = cut.index(whole.len() + 1);
            let contents = read(&whole[..cut]);
            let mut end = 0;
            let mut expected = Vec::new();
            for (number, body) in bodies.iter().enumerate() {
                if end + size(body) > cut { break; }
                end += size(body);
                expected.push((number as u64, body.as_slice()));
            }
            let found: Vec<_> = contents.records.iter().map(|record| (record.number, record.body)).collect();
            prop_assert_eq!(found, expected);
            prop_assert_eq!(contents.end, end);
            prop_assert!(contents.damaged.is_empty());
        }

        #[test]
        fn one_changed_byte_costs_one_record(bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 2..10), at in any::<prop::sample::Index>(), flip in 1u8..) {
            let mut bytes = file(&bodies);
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            let contents = read(&bytes);
            let mut end = 0;
            let mut hit = 0;
            for (number, body) in bodies.iter().enumerate() {
                end += size(body);
                if at < end { hit = number as u64; break; }
            }
            let found: Vec<u64> = contents.records.iter().map(|record| record.number).collect();
            let expected: Vec<u64> = (0..bodies.len() as u64).filter(|&number| number != hit).collect();
            prop_assert_eq!(found, expected);
            // The last record of a file may have been torn instead.
            prop_assert_eq!(contents.damaged.len(), usize::from(hit + 1 < bodies.len() as u64));
        }
    }
}
