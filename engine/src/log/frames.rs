//! Frames: the messages of a segment as JSON lines, one envelope per line. The payload comes last, so that it can be
//! cut out without parsing it.

use std::borrow::Cow;
use std::fmt::Write;

use queen_protocol::Trace;
use uuid::Uuid;

use crate::crypt::{Keys, Unreadable};

const TRANSACTION_ID: &str = "{\"transactionId\":";
const PAYLOAD: &str = ",\"payload\":";
const MESSAGE_ID: &str = ",\"messageId\":";
const TRACE_ID: &str = ",\"traceId\":";
const TRACE_PARENT: &str = ",\"traceparent\":";
const TRACE_STATE: &str = ",\"tracestate\":";
const PRODUCER_SUB: &str = ",\"producerSub\":";
const KEY_ID: &str = ",\"keyId\":";

/// Appends one envelope, without a line end.
///
/// The payload keeps the sender's bytes except for line breaks, which in valid JSON are only white space and would end
/// the line here. `key_id`: the key with which the payload is encrypted.
#[expect(clippy::too_many_arguments, reason = "one for each field of the envelope")]
pub fn write_frame(
    out: &mut String,
    transaction_id: &str,
    message_id: Option<Uuid>,
    trace_id: Option<Uuid>,
    trace: Option<Trace<'_>>,
    producer_sub: Option<&str>,
    key_id: Option<&str>,
    payload: &str,
) {
    out.push_str(TRANSACTION_ID);
    write_string(out, transaction_id);
    if let Some(id) = message_id {
        let _ = write!(out, "{MESSAGE_ID}\"{id}\"");
    }
    if let Some(id) = trace_id {
        let _ = write!(out, "{TRACE_ID}\"{id}\"");
    }
    if let Some(trace) = trace {
        let _ = write!(out, "{TRACE_PARENT}\"{}\"", trace.parent);
        if let Some(state) = trace.state {
            out.push_str(TRACE_STATE);
            write_string(out, state);
        }
    }
    if let Some(sub) = producer_sub {
        out.push_str(PRODUCER_SUB);
        write_string(out, sub);
    }
    if let Some(id) = key_id {
        out.push_str(KEY_ID);
        write_string(out, id);
    }
    out.push_str(PAYLOAD);
    if memchr::memchr2(b'\n', b'\r', payload.as_bytes()).is_some() {
        out.extend(payload.chars().map(|c| if c == '\n' || c == '\r' { ' ' } else { c }));
    } else {
        out.push_str(payload);
    }
    out.push('}');
}

/// Adds to each frame the message id that was promised when the message was accepted, before it had a place in the
/// log. As many ids as lines.
pub fn with_ids(frames: &str, ids: &[Uuid]) -> String {
    let mut out = String::with_capacity(frames.len() + ids.len() * 52);
    for (index, (line, id)) in frames.split('\n').zip(ids).enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let rest = line.strip_prefix(TRANSACTION_ID).and_then(split_string);
        let Some((transaction_id, rest)) = rest else { continue };
        let _ = write!(out, "{TRANSACTION_ID}{transaction_id}{MESSAGE_ID}\"{id}\"{rest}");
    }
    out
}

/// A JSON string. Line breaks are escaped, so a frame stays one line.
pub fn write_string(out: &mut String, text: &str) {
    out.push('"');
    if text.bytes().all(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\') {
        out.push_str(text);
    } else {
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                c if (c as u32) < 0x20 => {
                    let _ = write!(out, "\\u{:04x}", c as u32);
                }
                c => out.push(c),
            }
        }
    }
    out.push('"');
}

/// One envelope, cut into the pieces a pop answer is made of. All of them are still JSON.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// With its quotes.
    pub transaction_id: &'a str,
    /// Only if the message was promised an id.
    pub message_id: Option<&'a str>,
    pub trace_id: Option<&'a str>,
    pub trace_parent: Option<&'a str>,
    pub trace_state: Option<&'a str>,
    pub producer_sub: Option<&'a str>,
    /// The key with which the payload is encrypted. Only this shows that it is encrypted: a payload may
    /// look like any other.
    pub key_id: Option<&'a str>,
    pub payload: &'a str,
}

impl<'a> Frame<'a> {
    /// The id that the message was promised before it had a place in the log.
    pub fn promised(&self) -> Option<Uuid> {
        Uuid::try_parse(self.message_id?.trim_matches('"')).ok()
    }

    /// `None` for a line that `write_frame` did not write.
    pub fn parse(line: &'a str) -> Option<Self> {
        let rest = line.strip_prefix(TRANSACTION_ID)?;
        let (transaction_id, rest) = split_string(rest)?;
        let (message_id, rest) = optional(rest, MESSAGE_ID)?;
        let (trace_id, rest) = optional(rest, TRACE_ID)?;
        let (trace_parent, rest) = optional(rest, TRACE_PARENT)?;
        let (trace_state, rest) = match trace_parent {
            Some(_) => optional(rest, TRACE_STATE)?,
            None => (None, rest),
        };
        let (producer_sub, rest) = optional(rest, PRODUCER_SUB)?;
        let (key_id, rest) = match rest.strip_prefix(PAYLOAD) {
            Some(rest) => (None, rest),
            None => {
                let (key_id, rest) = split_string(rest.strip_prefix(KEY_ID)?)?;
                (Some(key_id), rest.strip_prefix(PAYLOAD)?)
            }
        };
        let payload = rest.strip_suffix('}')?;
        Some(Self {
            transaction_id,
            message_id,
            trace_id,
            trace_parent,
            trace_state,
            producer_sub,
            key_id,
            payload,
        })
    }

    /// The sender's JSON.
    pub fn open(&self, keys: &Keys) -> Result<Cow<'a, str>, Unreadable> {
        let Some(key_id) = self.key_id else { return Ok(Cow::Borrowed(self.payload)) };
        let transaction_id = read_string(self.transaction_id);
        Ok(Cow::Owned(keys.open(&read_string(key_id), self.payload, &transaction_id)?))
    }

    /// Whether its sender asked for it to be traced.
    pub fn is_traced(&self) -> bool {
        self.trace_id.is_some() || self.trace_parent.is_some()
    }
}

/// Reads the JSON string a frame holds.
pub fn read_string(json: &str) -> String {
    serde_json::from_str(json).unwrap_or_default()
}

fn optional<'a>(rest: &'a str, key: &str) -> Option<(Option<&'a str>, &'a str)> {
    match rest.strip_prefix(key) {
        Some(value) => split_string(value).map(|(value, rest)| (Some(value), rest)),
        None => Some((None, rest)),
    }
}

/// The JSON string at the start, quotes included, and what follows it.
fn split_string(text: &str) -> Option<(&str, &str)> {
    let bytes = text.as_bytes();
    if *bytes.first()? != b'"' {
        return None;
    }
    let mut end = 1;
    while *bytes.get(end)? != b'"' {
        end += if bytes[end] == b'\\' { 2 } else { 1 };
    }
    text.split_at_checked(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use queen_protocol::TraceParent;

    #[test]
    fn a_frame_is_one_readable_line() {
        let mut line = String::new();
        let trace = Uuid::from_u128(1);
        write_frame(&mut line, "o-1", None, Some(trace), None, Some("bob"), None, "{\n  \"n\": 1\r\n}");
        assert_eq!(
            line,
            r#"{"transactionId":"o-1","traceId":"00000000-0000-0000-0000-000000000001","producerSub":"bob","payload":{   "n": 1  }}"#
        );
    }

    #[test]
    fn an_id_that_was_promised_stands_in_the_frame() {
        let mut frames = String::new();
        write_frame(&mut frames, "a\"b", None, None, None, Some("bob"), Some("k"), "1");
        frames.push('\n');
        write_frame(&mut frames, "c", None, None, None, None, None, "{\"messageId\":2}");
        let frames = with_ids(&frames, &[Uuid::from_u128(1), Uuid::from_u128(2)]);
        let parsed: Vec<_> = frames.split('\n').map(|line| Frame::parse(line).unwrap()).collect();
        assert_eq!(parsed[0].message_id, Some("\"00000000-0000-0000-0000-000000000001\""));
        assert_eq!((parsed[0].transaction_id, parsed[0].producer_sub), ("\"a\\\"b\"", Some("\"bob\"")));
        assert_eq!((parsed[0].key_id, parsed[0].payload, parsed[1].key_id), (Some("\"k\""), "1", None));
        assert_eq!((parsed[1].payload, parsed[1].trace_id), ("{\"messageId\":2}", None));
    }

    proptest! {
        #[test]
        fn whatever_goes_in_comes_out(
            id in any::<String>(), sub in prop::option::of(any::<String>()), text in any::<String>(),
            parent in prop::option::of((1u128.., 1u64..)), state in prop::option::of(any::<String>()),
            key in prop::option::of(any::<String>())
        ) {
            let parent = parent.and_then(|(trace, span)| TraceParent::new(trace, span, 1));
            let trace = parent.map(|parent| Trace { parent, state: state.as_deref() });
            let payload = serde_json::to_string(&serde_json::json!({ "payload": text, ",\"payload\":": id })).unwrap();
            let mut line = String::new();
            write_frame(&mut line, &id, None, None, trace, sub.as_deref(), key.as_deref(), &payload);
            let line = with_ids(&line, &[Uuid::from_u128(5)]);
            prop_assert!(!line.contains('\n'));
            let frame = Frame::parse(&line).unwrap();
            prop_assert_eq!(read_string(frame.transaction_id), id);
            prop_assert_eq!(frame.producer_sub.map(read_string), sub);
            prop_assert_eq!(frame.trace_parent.map(read_string), parent.map(|parent| parent.to_string()));
            prop_assert_eq!(frame.trace_state.map(read_string), state.filter(|_| parent.is_some()));
            prop_assert_eq!(frame.is_traced(), parent.is_some());
            prop_assert_eq!(frame.key_id.map(read_string), key);
            prop_assert_eq!(frame.payload, payload);
            prop_assert!(serde_json::from_str::<serde_json::Value>(&line).is_ok());
        }
    }
}
