//! W3C trace context: the `traceparent` and `tracestate` of a message. Invalid ones are dropped, as the standard
//! requires: a trace that starts anew does less harm than a push that fails.

use std::fmt;

/// Longer ones are dropped; the standard requires support for no more.
const STATE_BYTES_MAX: usize = 512;
const STATE_MEMBERS_MAX: usize = 32;

/// `00-<trace id>-<span id>-<flags>`.
const PARENT_BYTES: usize = 55;

/// A span of a trace, as the parent of other spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceParent {
    trace_id: u128,
    span_id: u64,
    flags: u8,
}

/// A context as it is passed on. `state` is opaque: its meaning is up to vendors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trace<'a> {
    pub parent: TraceParent,
    pub state: Option<&'a str>,
}

impl TraceParent {
    /// `None` if one of the ids is zero, which means "no trace".
    pub fn new(trace_id: u128, span_id: u64, flags: u8) -> Option<Self> {
        (trace_id != 0 && span_id != 0).then_some(Self { trace_id, span_id, flags })
    }

    /// An unknown later version is parsed as far as the current one defines it, and written as the current one.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let head = bytes.get(..PARENT_BYTES)?;
        let version = number(&head[..2])?;
        let goes_on = match bytes.get(PARENT_BYTES) {
            None => true,
            Some(next) => version > 0 && *next == b'-',
        };
        if !goes_on || version == 0xff || [head[2], head[35], head[52]] != [b'-'; 3] {
            return None;
        }
        let flags = number(&head[53..])? as u8;
        let span_id = u64::try_from(number(&head[36..52])?).ok()?;
        Self::new(number(&head[3..35])?, span_id, if version == 0 { flags } else { flags & 1 })
    }

    pub fn trace_id(self) -> u128 {
        self.trace_id
    }

    pub fn span_id(self) -> u64 {
        self.span_id
    }

    pub fn flags(self) -> u8 {
        self.flags
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

impl<'a> Trace<'a> {
    /// `None` without a valid `traceparent`; a `tracestate` alone has no meaning.
    pub fn parse(parent: &str, state: Option<&'a str>) -> Option<Self> {
        let parent = TraceParent::parse(parent)?;
        Some(Self { parent, state: state.filter(|state| is_state(state)) })
    }
}

/// Whether this is a list of `key=value` pairs that may be passed on.
pub fn is_state(text: &str) -> bool {
    let member = |member: &str| {
        member.trim().is_empty()
            || member.split_once('=').is_some_and(|(key, value)| !key.trim().is_empty() && !value.is_empty())
    };
    let visible = text.bytes().all(|byte| (0x20..0x7f).contains(&byte) || byte == b'\t');
    !text.trim().is_empty()
        && text.len() <= STATE_BYTES_MAX
        && visible
        && text.split(',').count() <= STATE_MEMBERS_MAX
        && text.split(',').all(member)
}

/// Lower case only, because other programs would compare an upper-case id as a different one.
fn number(hex: &[u8]) -> Option<u128> {
    hex.iter().try_fold(0, |number: u128, byte| {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn the_example_of_the_standard_is_read_and_written() {
        let parent = TraceParent::parse(GOOD).unwrap();
        assert_eq!(parent.trace_id(), 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!((parent.span_id(), parent.flags()), (0x00f0_67aa_0ba9_02b7, 1));
        assert_eq!(parent.to_string(), GOOD);
    }

    #[test]
    fn what_the_standard_forbids_is_dropped() {
        let bad = [
            "",
            "00",
            &GOOD[..54],
            &GOOD.to_uppercase(),
            &GOOD.replace('-', "_"),
            &format!("{GOOD}-more"),
            &format!("{GOOD} "),
            &format!("ff{}", &GOOD[2..]),
            &format!("0g{}", &GOOD[2..]),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-001",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x",
            "00-4bf92f3577b34da6a3ce929d0e0e47ä6-00f067aa0ba902b7-0",
        ];
        for text in bad {
            assert_eq!(TraceParent::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_later_version_is_read_as_far_as_it_is_known() {
        let later = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ff-what-the-future-brings";
        assert_eq!(TraceParent::parse(later).unwrap().to_string(), GOOD);
        assert_eq!(TraceParent::parse(&later.replace("-what", ".what")), None);
    }

    #[test]
    fn a_state_is_kept_only_if_it_is_one() {
        let state = |text| Trace::parse(GOOD, Some(text)).unwrap().state;
        for good in ["rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", "a=1, b=2,", "t@v=x y"] {
            assert_eq!(state(good), Some(good));
        }
        let long = "a=1,".repeat(33);
        for bad in ["", " ", "a", "=1", "a=", "a=1\n", "a=ä", &long, &format!("a={}", "1".repeat(511))] {
            assert_eq!(state(bad), None, "{bad}");
        }
        assert_eq!(Trace::parse("nonsense", Some("a=1")), None);
    }

    proptest! {
        #[test]
        fn every_context_survives_being_written(trace_id in 1u128.., span_id in 1u64.., flags: u8) {
            let parent = TraceParent::new(trace_id, span_id, flags).unwrap();
            prop_assert_eq!(TraceParent::parse(&parent.to_string()), Some(parent));
        }

        #[test]
        fn no_text_breaks_the_parser(text in any::<String>(), at in 0usize..55, with in any::<char>()) {
            let _ = (TraceParent::parse(&text), is_state(&text));
            let changed: String = GOOD.chars().enumerate().map(|(i, c)| if i == at { with } else { c }).collect();
            if let Some(parent) = TraceParent::parse(&changed) {
                prop_assert!(parent.to_string().len() == GOOD.len());
            }
        }
    }
}
