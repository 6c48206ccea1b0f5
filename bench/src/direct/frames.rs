//! Writes segments like the broker (engine/src/log/frames.rs, ids.rs), so that a broker can read them.

use sha2::{Digest, Sha256};

use crate::wire::{Payloads, Stamp};

/// The arguments of `queen.push` for one partition.
#[derive(Debug, Default, PartialEq)]
pub struct Segment {
    /// 16 bytes per message.
    pub transactions: Vec<u8>,
    /// One line per message.
    pub frames: String,
    /// Bytes of the largest frame.
    pub bytes_max: i32,
}

pub struct FrameWriter {
    payloads: Payloads,
}

impl FrameWriter {
    pub fn new(payload_bytes: usize) -> FrameWriter {
        FrameWriter { payloads: Payloads::new(payload_bytes) }
    }

    pub fn segment(&mut self, base_offset: i64, count: u32) -> Segment {
        self.payloads.look_at_clock();
        let mut transactions = Vec::with_capacity(count as usize * 16);
        let mut frames = Vec::new();
        let mut bytes_max = 0;
        for index in 0..count {
            if index > 0 {
                frames.push(b'\n');
            }
            let start = frames.len();
            frames.extend_from_slice(br#"{"transactionId":""#);
            let id = frames.len();
            self.payloads.write_id(&mut frames);
            transactions.extend_from_slice(&transaction_hash(&frames[id..]));
            frames.extend_from_slice(br#"","payload":"#);
            let seq = u32::try_from(base_offset).unwrap_or(u32::MAX).saturating_add(index);
            self.payloads.write(Stamp { producer: 0, partition: 0, seq, sent: 0 }, &mut frames);
            frames.push(b'}');
            bytes_max = bytes_max.max(frames.len() - start);
        }
        let frames = String::from_utf8(frames).expect("ids and payloads are ASCII");
        Segment { transactions, frames, bytes_max: i32::try_from(bytes_max).unwrap_or(i32::MAX) }
    }
}

/// The first bit means that the client chose the id.
fn transaction_hash(id: &[u8]) -> [u8; 16] {
    let mut hash = [0; 16];
    hash.copy_from_slice(&Sha256::digest(id)[..16]);
    hash[0] |= 0x80;
    hash
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_segment_is_a_line_and_a_hash_a_message() {
        let segment = FrameWriter::new(200).segment(7, 3);
        assert_eq!(segment.transactions.len(), 48);
        let lines: Vec<&str> = segment.frames.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(segment.bytes_max as usize, lines[2].len());
        let last: Value = serde_json::from_str(lines[2]).unwrap();
        assert_eq!(last["payload"]["seq"], 9);
        assert_eq!(last["payload"].to_string().len(), 200);
        let id = last["transactionId"].as_str().unwrap();
        assert_eq!(segment.transactions[32..], transaction_hash(id.as_bytes()));
    }

    #[test]
    fn a_chosen_id_is_flagged_in_its_hash() {
        let expected = Sha256::digest("order-1");
        let hash = transaction_hash(b"order-1");
        assert_eq!((hash[0], &hash[1..]), (expected[0] | 0x80, &expected[1..16]));
    }
}
