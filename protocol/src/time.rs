//! Times on the wire: written as ISO 8601 in UTC, read as any ISO 8601.

use crate::BadRequest;
use jiff::{Timestamp, civil::DateTime, tz::TimeZone};

/// The range that can be written and read again, to the second. PostgreSQL's infinities are
/// beyond it, and become its ends.
const MICROS_MIN: i64 = -377_705_023_201_000_000;
const MICROS_MAX: i64 = 253_402_207_200_000_000;

/// Microseconds since 1970 as `2026-01-01T10:00:00.123456Z`.
pub fn format_micros(micros: i64) -> String {
    format!("{:.6}", stamp(micros))
}

/// Like [`format_micros`], to the millisecond, as the control plane writes times.
pub fn format_millis(micros: i64) -> String {
    format!("{:.3}", stamp(micros))
}

fn stamp(micros: i64) -> Timestamp {
    Timestamp::from_microsecond(micros.clamp(MICROS_MIN, MICROS_MAX)).unwrap_or(Timestamp::MAX)
}

/// Microseconds since 1970. A time without a zone is UTC.
pub fn parse_time(what: &str, text: &str) -> Result<i64, BadRequest> {
    let text = text.trim();
    let stamp = text.parse::<Timestamp>().ok().or_else(|| {
        let local = text.parse::<DateTime>().ok()?;
        local.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
    });
    stamp
        .map(|stamp| stamp.as_microsecond().clamp(MICROS_MIN, MICROS_MAX))
        .ok_or_else(|| BadRequest(format!("{what} is not an ISO-8601 time: {text:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_any_zone_and_written_in_utc() {
        let micros = parse_time("from", "2026-01-01T12:00:00.123456+02:00").unwrap();
        assert_eq!(format_micros(micros), "2026-01-01T10:00:00.123456Z");
        assert_eq!(parse_time("from", "2026-01-01T10:00:00.123456").unwrap(), micros);
        assert_eq!(format_micros(1_767_261_600_000_000), "2026-01-01T10:00:00.000000Z");
        assert!(parse_time("from", "yesterday").is_err());
    }

    #[test]
    fn what_is_written_can_be_read_up_to_the_end_of_time() {
        for micros in [i64::MIN, MICROS_MIN, -1, 0, MICROS_MAX, MICROS_MAX + 999_999, i64::MAX] {
            let end = micros.clamp(MICROS_MIN, MICROS_MAX);
            assert_eq!(parse_time("from", &format_micros(micros)), Ok(end), "{}", format_micros(micros));
            assert!(parse_time("from", &format_millis(micros)).is_ok());
        }
        assert_eq!(parse_time("from", "9999-12-30T22:00:00.999999999Z"), Ok(MICROS_MAX));
    }
}
