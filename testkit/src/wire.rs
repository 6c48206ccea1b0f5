//! Finds the ends of messages in PostgreSQL's byte streams. Understands their framing, not their content.

/// Client messages that the server answers with `ReadyForQuery`: Sync, Query, FunctionCall.
pub const REQUEST_ENDS: &[u8] = b"SQF";
/// `ReadyForQuery`: the reply is complete, and what it did is committed.
pub const REPLY_ENDS: &[u8] = b"Z";

/// Follows one direction of one connection.
#[derive(Debug)]
pub struct Frames {
    /// The first message of a client has a length but no kind.
    untyped: bool,
    header: Vec<u8>,
    /// Bytes missing from the current message, once its header is complete.
    body: Option<usize>,
}

impl Frames {
    pub fn of_client() -> Self {
        Self { untyped: true, header: Vec::new(), body: None }
    }

    pub fn of_server() -> Self {
        Self { untyped: false, ..Self::of_client() }
    }

    /// Takes the next piece of the stream and returns the offsets at which messages of these kinds end.
    pub fn ends(&mut self, chunk: &[u8], kinds: &[u8]) -> Vec<usize> {
        let mut ends = Vec::new();
        let mut at = 0;
        while at < chunk.len() {
            match self.body {
                None => {
                    self.header.push(chunk[at]);
                    at += 1;
                    self.body = self.body_bytes();
                }
                Some(missing) => {
                    let step = missing.min(chunk.len() - at);
                    at += step;
                    self.body = Some(missing - step);
                }
            }
            if self.body == Some(0) {
                if !self.untyped && kinds.contains(&self.header[0]) {
                    ends.push(at);
                }
                *self = Self::of_server();
            }
        }
        ends
    }

    fn body_bytes(&self) -> Option<usize> {
        let length = self.header.get(usize::from(!self.untyped)..)?;
        let length = u32::from_be_bytes(length.try_into().ok()?);
        // The length includes itself.
        Some((length as usize).saturating_sub(4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] = b"\0\0\0\x08abcdP\0\0\0\x06xyS\0\0\0\x04Q\0\0\0\x05\0X\0\0\0\x04";

    #[test]
    fn ends_are_found_whole() {
        assert_eq!(Frames::of_client().ends(STREAM, REQUEST_ENDS), [20, 26]);
    }

    #[test]
    fn ends_are_found_however_the_stream_is_cut() {
        for size in 1..STREAM.len() {
            let mut frames = Frames::of_client();
            let mut found = Vec::new();
            for (index, chunk) in STREAM.chunks(size).enumerate() {
                found.extend(frames.ends(chunk, REQUEST_ENDS).iter().map(|end| index * size + end));
            }
            assert_eq!(found, [20, 26], "in chunks of {size}");
        }
    }
}
