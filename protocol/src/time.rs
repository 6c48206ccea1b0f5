//! Times on the wire: ISO-8601 in UTC out, anything ISO-8601 in.

use crate::BadRequest;
use jiff::{Timestamp, civil::DateTime, tz::TimeZone};

/// Microseconds since 1970 as `2026-01-01T10:00:00.123456Z`.
pub fn format_micros(micros: i64) -> String {
    match Timestamp::from_microsecond(micros) {
        Ok(time) => format!("{time:.6}"),
        Err(_) => "9999-12-31T23:59:59.999999Z".to_owned(),
    }
}

/// The same to the millisecond, as the admin plane writes times.
pub fn format_millis(micros: i64) -> String {
    match Timestamp::from_microsecond(micros) {
        Ok(time) => format!("{time:.3}"),
        Err(_) => "9999-12-31T23:59:59.999Z".to_owned(),
    }
}

/// Microseconds since 1970. A time without a zone is UTC.
pub fn parse_time(what: &str, text: &str) -> Result<i64, BadRequest> {
    let text = text.trim();
    let stamp = text.parse::<Timestamp>().ok().or_else(|| {
        let local = text.parse::<DateTime>().ok()?;
        local.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
    });
    stamp
        .map(Timestamp::as_microsecond)
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
}
