//! Finds where heads and bodies end in the data of a connection, as hyper does. Data that hyper refuses ends the connection, and
//! may be misread here.

use memchr::memchr_iter;

/// Finds the empty line after a head. Like hyper, it accepts a lone line feed as the end of a line, and skips empty lines
/// before the head.
pub struct Lines {
    begun: bool,
    /// At the beginning of a line.
    fresh: bool,
}

impl Lines {
    pub fn of_head() -> Self {
        Self { begun: false, fresh: false }
    }

    /// How many of these bytes belong to it, if its end is among them.
    pub fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut begins = 0;
        for at in memchr_iter(b'\n', bytes) {
            self.pass(&bytes[begins..at]);
            if self.fresh {
                return Some(at + 1);
            }
            (self.fresh, begins) = (self.begun, at + 1);
        }
        self.pass(&bytes[begins..]);
        None
    }

    /// Reads one line, or a part of it.
    fn pass(&mut self, line: &[u8]) {
        if line.iter().any(|byte| *byte != b'\r') {
            (self.begun, self.fresh) = (true, false);
        }
    }
}

/// The rest of a body.
pub enum Rest {
    Bytes(u64),
    /// In the size of a chunk.
    Size(u64),
    /// In the rest of the line of the size.
    Extension(u64),
    /// In a chunk, including its line break.
    Chunk(u64),
    /// In the trailers: the current line so far.
    Trailer(Line),
}

/// Ends only with a carriage return and a line feed.
pub enum Line {
    Empty,
    EmptyReturned,
    Text,
    TextReturned,
}

impl Rest {
    /// `length` is `None` for a chunked body.
    pub fn of(length: Option<u64>) -> Self {
        length.map_or(Self::Size(0), Self::Bytes)
    }

    /// How many of these bytes belong to it, if its end is among them.
    pub fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        loop {
            if let Self::Bytes(0) = self {
                return Some(at);
            }
            let byte = *bytes.get(at)?;
            match self {
                Self::Bytes(left) | Self::Chunk(left) => {
                    let step = (*left).min((bytes.len() - at) as u64);
                    at += step as usize;
                    *left -= step;
                    if let Self::Chunk(0) = self {
                        *self = Self::Size(0);
                    }
                    continue;
                }
                Self::Trailer(line) => {
                    *line = match (&line, byte) {
                        (Line::EmptyReturned, b'\n') => return Some(at + 1),
                        (Line::TextReturned, b'\n') => Line::Empty,
                        (Line::Empty, b'\r') => Line::EmptyReturned,
                        (_, b'\r') => Line::TextReturned,
                        _ => Line::Text,
                    };
                }
                Self::Size(0) | Self::Extension(0) if byte == b'\n' => *self = Self::Trailer(Line::Empty),
                Self::Size(size) | Self::Extension(size) if byte == b'\n' => {
                    *self = Self::Chunk(size.saturating_add(2));
                }
                Self::Size(size) => match char::from(byte).to_digit(16) {
                    Some(digit) => *size = size.saturating_mul(16).saturating_add(u64::from(digit)),
                    None => *self = Self::Extension(*size),
                },
                Self::Extension(_) => {}
            }
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For any division of the bytes into reads.
    fn ends_before(rest: &[u8], all: &str, mut part: impl FnMut(&[u8]) -> Option<usize>, size: usize) {
        let mut passed = 0;
        for piece in all.as_bytes().chunks(size) {
            if let Some(end) = part(piece) {
                assert_eq!(&all.as_bytes()[passed + end..], rest, "{all:?} in pieces of {size}");
                return;
            }
            passed += piece.len();
        }
        panic!("{all:?} has no end in pieces of {size}");
    }

    #[test]
    fn a_head_ends_with_an_empty_line() {
        for head in
            ["GET / HTTP/1.1\r\na: b\r\n\r\n", "\r\n\n\r\nGET / HTTP/1.1\n\n", "GET /\n\r\n", "GET /\r\n\n"]
        {
            for size in [1, 2, 3, 100] {
                let mut lines = Lines::of_head();
                ends_before(b"\r\n\nnext", &format!("{head}\r\n\nnext"), |piece| lines.end(piece), size);
            }
        }
        assert_eq!(Lines::of_head().end(b"\r\n\r\n\n\nGET / HTTP/1.1\r\na:\r\n"), None);
    }

    #[test]
    fn a_body_ends_after_its_length_or_its_last_chunk() {
        for (length, body) in [
            (Some(0), ""),
            (Some(8), "bo\r\n\r\ndy"),
            (None, "0\r\n\r\n"),
            (None, "A\r\n0\r\n\r\n67890\r\n2 ;x=00\r\nab\r\n00;last\r\n\r\n"),
            (None, "1\r\na\r\n0\r\nT: v\r\nU: w\r\n\r\n"),
            (None, "0\r\nT: v\n\nfoo\r\n\r\n"),
            (None, "0\r\n\nX\r\n\r\n"),
        ] {
            for size in [1, 2, 3, 100] {
                let mut rest = Rest::of(length);
                ends_before(b"\r\nnext", &format!("{body}\r\nnext"), |piece| rest.end(piece), size);
            }
        }
        for open in ["", "5\r\n0\r\n\r\n", "0\r\n", "0\r\nT: v\r\n", "ffffffffffffffffff\r\nx"] {
            assert_eq!(Rest::of(None).end(open.as_bytes()), None, "{open:?}");
        }
    }
}
