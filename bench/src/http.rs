//! Parses HTTP/1.1 responses from bytes. Pure: it owns no connection.

use anyhow::{Result, anyhow, bail};
use httparse::Status;

/// More than any broker sends.
const HEADERS_MAX: usize = 32;

/// The head of a response: everything needed to find its end.
#[derive(Debug, PartialEq)]
pub struct Head {
    pub status: u16,
    /// Bytes of the head itself; the body follows.
    pub bytes: usize,
    pub length: Length,
    /// The connection can be reused.
    pub keep_alive: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    Known(usize),
    Chunked,
}

/// None while the head is incomplete.
pub fn head(buffer: &[u8]) -> Result<Option<Head>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let Status::Complete(bytes) = response.parse(buffer)? else { return Ok(None) };
    let status = response.code.ok_or_else(|| anyhow!("a response without a status"))?;
    let mut length = (status == 204 || status == 304).then_some(Length::Known(0));
    let mut keep_alive = response.version == Some(1);
    for header in response.headers.iter() {
        if header.name.eq_ignore_ascii_case("content-length") {
            let text = std::str::from_utf8(header.value)?;
            length = Some(Length::Known(text.trim().parse()?));
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            if !header.value.eq_ignore_ascii_case(b"chunked") {
                bail!("a response in an unknown encoding");
            }
            length = Some(Length::Chunked);
        } else if header.name.eq_ignore_ascii_case("connection") {
            keep_alive = !header.value.eq_ignore_ascii_case(b"close");
        }
    }
    let length = length.ok_or_else(|| anyhow!("a response of unknown length"))?;
    Ok(Some(Head { status, bytes, length, keep_alive }))
}

/// The body, and how many bytes it took; none while it is incomplete. Starts over with each call: no scenario has long chunked
/// responses.
pub fn chunked(buffer: &[u8]) -> Result<Option<(Vec<u8>, usize)>> {
    let mut body = Vec::new();
    let mut at = 0;
    loop {
        let size = httparse::parse_chunk_size(&buffer[at..]).map_err(|_| anyhow!("a broken chunk"))?;
        let Status::Complete((line_bytes, chunk_bytes)) = size else { return Ok(None) };
        let start = at + line_bytes;
        let end = start + usize::try_from(chunk_bytes)?;
        let Some(chunk) = buffer.get(start..end + 2) else { return Ok(None) };
        // The last chunk is empty. Trailers, which brokers do not send, would fail here.
        if !chunk.ends_with(b"\r\n") {
            bail!("a chunk of another length than announced");
        }
        body.extend_from_slice(&buffer[start..end]);
        at = end + 2;
        if chunk_bytes == 0 {
            return Ok(Some((body, at)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_tells_where_the_answer_ends() {
        let text = b"HTTP/1.1 201 Created\r\nContent-Length: 12\r\nx: y\r\n\r\nbody";
        let expected =
            Head { status: 201, bytes: text.len() - 4, length: Length::Known(12), keep_alive: true };
        assert_eq!(head(text).unwrap(), Some(expected));
        for cut in 0..text.len() - 4 {
            assert_eq!(head(&text[..cut]).unwrap(), None, "{cut}");
        }
    }

    #[test]
    fn an_answer_may_be_empty_chunked_or_the_last() {
        let of = |text: &str| head(text.as_bytes()).unwrap().unwrap();
        assert_eq!(of("HTTP/1.1 204 No Content\r\n\r\n").length, Length::Known(0));
        assert_eq!(of("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").length, Length::Chunked);
        assert!(!of("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\n").keep_alive);
        assert!(head(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
        assert!(head(b"nonsense\r\n\r\n").is_err());
    }

    #[test]
    fn chunks_are_joined_once_all_are_there() {
        let text = b"4\r\nwiki\r\nA;x=y\r\npedia, too\r\n0\r\n\r\nHTTP";
        let complete = text.len() - 4;
        assert_eq!(chunked(text).unwrap(), Some((b"wikipedia, too".to_vec(), complete)));
        for cut in 0..complete {
            assert_eq!(chunked(&text[..cut]).unwrap(), None, "{cut}");
        }
        assert!(chunked(b"3\r\nwiki\r\n").is_err());
        assert!(chunked(b"x\r\n").is_err());
    }
}
