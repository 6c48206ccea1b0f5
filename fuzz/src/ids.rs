//! Ids and times in text form: parsing and formatting round-trip.

use queen_engine::fuzzing::{TransactionHash, message_id};
use queen_protocol::{LeaseId, Trace, TraceParent, format_micros, format_millis, parse_time};

use crate::Input;

pub fn ids(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Some(lease) = LeaseId::parse(&text) {
        let written = lease.to_string();
        assert_eq!(LeaseId::parse(&written), Some(lease));
        assert!(written.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte)));
    }
    if let Some(parent) = TraceParent::parse(&text) {
        let written = parent.to_string();
        assert_eq!((written.len(), TraceParent::parse(&written)), (55, Some(parent)));
    }
    if let Some(state) = Trace::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", Some(&text))
        .and_then(|trace| trace.state)
    {
        // It must be valid in a header.
        assert!(
            state.len() <= 512 && state.bytes().all(|byte| byte == b'\t' || (0x20..0x7f).contains(&byte))
        );
    }
    match parse_time("from", &text) {
        Ok(micros) => {
            assert_eq!(parse_time("from", &format_micros(micros)), Ok(micros), "{text}");
            assert_eq!(parse_time("from", &format_millis(micros)).map(|ms| micros - ms < 1_000), Ok(true));
        }
        Err(refused) => assert!(refused.0.starts_with("from is not")),
    }
    let mut input = Input::new(data);
    let (at, offset, number) = (input.number(), input.number(), input.number());
    let (at, offset, number) = ((at >> 16) as i64, (offset >> 23) as i64, (number >> 32) as i64);
    let id = message_id(at, offset, number);
    assert_eq!(id.get_version_num(), 7);
    assert!(id < message_id(at, offset + 1, number), "ids sort like offsets");
    let hash = TransactionHash::new(&text, true);
    assert!(TransactionHash::read_all(&hash.to_bytes()).eq([hash]));
}
