//! Times as people write them: ages, durations and points in time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use queen_protocol::parse_time;

use queen_protocol::units::some_seconds;

/// `3m ago` for an ISO 8601 time.
pub fn ago(time: &str) -> String {
    match (micros(time), now()) {
        (Some(then), now) if then <= now => format!("{} ago", span((now - then) as f64 / 1e6)),
        (Some(then), now) => format!("in {}", span((then - now) as f64 / 1e6)),
        (None, _) => time.to_owned(),
    }
}

/// `850ms`, `12s`, `3m`, `5h`, `12d`.
pub fn span(seconds: f64) -> String {
    match seconds {
        s if s.abs() < 0.001 => "0s".to_owned(),
        s if s < 1.0 => format!("{:.0}ms", s * 1e3),
        s if s < 10.0 => format!("{s:.1}s"),
        s if s < 100.0 => format!("{s:.0}s"),
        s if s < 5_400.0 => format!("{:.0}m", s / 60.0),
        s if s < 129_600.0 => format!("{:.0}h", s / 3_600.0),
        s => format!("{:.0}d", s / 86_400.0),
    }
}

/// An ISO 8601 time, or an age: `2h`.
pub fn point(text: &str) -> Result<SystemTime, String> {
    if text.contains(char::is_alphabetic)
        && let Ok(ago) = some_seconds(text)
    {
        return Ok(SystemTime::now() - ago);
    }
    let since = micros(text).and_then(|micros| u64::try_from(micros).ok());
    since
        .map(|micros| UNIX_EPOCH + Duration::from_micros(micros))
        .ok_or_else(|| "must be a time like 2026-01-31T12:00:00Z, or an age like 15m, 2h or 7d".to_owned())
}

fn micros(time: &str) -> Option<i64> {
    parse_time("time", time).ok()
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_one_unit_and_few_digits() {
        let spans: Vec<_> = [0.0, 0.25, 3.21, 59.0, 600.0, 7_200.0, 864_000.0].map(span).into();
        assert_eq!(spans, ["0s", "250ms", "3.2s", "59s", "10m", "2h", "10d"]);
    }

    #[test]
    fn times_are_shown_relative_to_now() {
        assert_eq!(ago("soon"), "soon");
        assert!(ago("2020-01-01T00:00:00Z").ends_with("d ago"));
        assert!(ago("2999-01-01T00:00:00Z").starts_with("in "));
    }

    #[test]
    fn a_point_in_time_is_a_date_or_a_while_ago() {
        assert_eq!(point("1970-01-01T00:00:01Z").unwrap(), UNIX_EPOCH + Duration::from_secs(1));
        let two_hours = SystemTime::now().duration_since(point("2h").unwrap()).unwrap().as_secs();
        assert!((7_199..=7_260).contains(&two_hours), "{two_hours}");
        for bad in ["soon", "", "5", "2 parsecs", "1969-01-01T00:00:00Z"] {
            assert!(point(bad).is_err(), "{bad}");
        }
    }
}
