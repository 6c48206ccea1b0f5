//! Frames: what is written is read back unchanged, and no stored line breaks the reader.

use queen_engine::fuzzing::{Frame, read_string, with_ids, write_frame};
use queen_protocol::{Trace, TraceParent};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::Input;

/// Everything in a frame.
pub struct Parts<'a> {
    pub transaction_id: &'a str,
    pub message_id: Option<Uuid>,
    pub trace_id: Option<Uuid>,
    pub trace: Option<Trace<'a>>,
    pub producer_sub: Option<&'a str>,
    /// The key it is encrypted with.
    pub key_id: Option<&'a str>,
    /// Valid JSON.
    pub payload: &'a str,
}

impl Parts<'_> {
    pub fn write(&self, out: &mut String) {
        let ids = (self.message_id, self.trace_id);
        let (sub, key) = (self.producer_sub, self.key_id);
        write_frame(out, self.transaction_id, ids.0, ids.1, self.trace, sub, key, self.payload);
    }

    pub fn check(&self, line: &str) {
        let frame = Frame::parse(line).expect("what was written can be read");
        let text = |uuid: Option<Uuid>| uuid.map(|uuid| uuid.to_string());
        assert_eq!(read_string(frame.transaction_id), self.transaction_id);
        assert_eq!(frame.message_id.map(read_string), text(self.message_id));
        assert_eq!(frame.trace_id.map(read_string), text(self.trace_id));
        assert_eq!(frame.trace_parent.map(read_string), self.trace.map(|trace| trace.parent.to_string()));
        assert_eq!(frame.trace_state.map(read_string).as_deref(), self.trace.and_then(|trace| trace.state));
        assert_eq!(frame.producer_sub.map(read_string).as_deref(), self.producer_sub);
        assert_eq!(frame.key_id.map(read_string).as_deref(), self.key_id);
        assert_eq!(frame.payload, self.payload.replace(['\n', '\r'], " "));
        assert!(!line.contains(['\n', '\r']) && is_json(line) && is_json(frame.payload));
    }
}

pub fn is_json(text: &str) -> bool {
    serde_json::from_str::<&RawValue>(text).is_ok()
}

pub fn check_round_trip(parts: &Parts<'_>) {
    let mut line = String::new();
    parts.write(&mut line);
    parts.check(&line);
}

/// A payload from any bytes: as they are if they are JSON, otherwise their text as a JSON string.
pub fn payload(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim();
    if is_json(text) { text.to_owned() } else { serde_json::to_string(text).expect("a text is JSON") }
}

pub fn frames(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for line in text.split('\n') {
        // Only checks that it ends and cuts no character in two.
        let _ = Frame::parse(line).map(|frame| read_string(frame.transaction_id));
    }
    let ids: Vec<Uuid> = (1..=text.split('\n').count() as u128).map(Uuid::from_u128).collect();
    let _ = with_ids(&text, &ids);

    let mut input = Input::new(data);
    let flags = input.byte();
    let wanted = |bit: u8| flags & 1 << bit != 0;
    let (id, state, sub) = (input.text(), input.text(), input.text());
    let parent = TraceParent::new(u128::from(input.number()), input.number(), input.byte());
    let payload = payload(input.rest());
    let trace = parent.map(|parent| Trace { parent, state: wanted(0).then_some(state.as_str()) });
    let mut parts = Parts {
        transaction_id: &id,
        message_id: None,
        trace_id: wanted(1).then(|| Uuid::from_u128(flags.into())),
        trace: trace.filter(|_| wanted(2)),
        producer_sub: wanted(3).then_some(sub.as_str()),
        key_id: wanted(4).then_some(state.as_str()),
        payload: &payload,
    };
    let mut line = String::new();
    parts.write(&mut line);
    parts.check(&line);
    // Adding an id later changes nothing else.
    let promised = Uuid::from_u128(7);
    let later = with_ids(&line, &[promised]);
    parts.message_id = Some(promised);
    parts.check(&later);
    let mut at_once = String::new();
    parts.write(&mut at_once);
    assert_eq!(later, at_once);
}
