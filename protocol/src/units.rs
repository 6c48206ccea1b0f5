//! Durations and sizes as people write them: `250ms`, `30s`, `64MiB`. A bare number has the unit that the
//! setting has always had. Pure.

use std::time::Duration;

/// More than any setting can need; beyond it, the unit is probably a mistake.
const BYTES_MAX: u64 = 1 << 40;

pub fn milliseconds(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_millis(1))
}

/// For settings by which something is divided, or that would never pause.
pub fn some_milliseconds(text: &str) -> Result<Duration, String> {
    milliseconds(text).and_then(not_zero)
}

pub fn seconds(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_secs(1))
}

pub fn some_seconds(text: &str) -> Result<Duration, String> {
    seconds(text).and_then(not_zero)
}

pub fn bytes(text: &str) -> Result<usize, String> {
    let (number, unit) = split(text)?;
    let factor = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(format!("unknown unit {unit:?}, use KiB, MiB or GiB")),
    };
    let bytes = number.checked_mul(factor).filter(|&bytes| bytes <= BYTES_MAX);
    bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(|| "too large".to_owned())
}

pub fn some_bytes(text: &str) -> Result<usize, String> {
    match bytes(text)? {
        0 => Err("must be more than 0".to_owned()),
        bytes => Ok(bytes),
    }
}

fn duration(text: &str, bare: Duration) -> Result<Duration, String> {
    let (number, unit) = split(text)?;
    let unit = match unit {
        "" => bare,
        "ms" => Duration::from_millis(1),
        "s" => Duration::from_secs(1),
        "m" => Duration::from_secs(60),
        "h" => Duration::from_secs(3_600),
        "d" => Duration::from_secs(86_400),
        _ => return Err(format!("unknown unit {unit:?}, use ms, s, m, h or d")),
    };
    u32::try_from(number)
        .ok()
        .and_then(|number| unit.checked_mul(number))
        .ok_or_else(|| "too large".to_owned())
}

fn not_zero(duration: Duration) -> Result<Duration, String> {
    if duration.is_zero() { Err("must be more than 0".to_owned()) } else { Ok(duration) }
}

fn split(text: &str) -> Result<(u64, &str), String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number = text[..end].parse().map_err(|_| "must start with a whole number".to_owned())?;
    Ok((number, text[end..].trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_number_keeps_its_old_unit_and_a_written_unit_wins() {
        assert_eq!(milliseconds("2000"), Ok(Duration::from_secs(2)));
        assert_eq!(milliseconds("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(seconds("30"), Ok(Duration::from_secs(30)));
        assert_eq!(seconds("250 ms"), Ok(Duration::from_millis(250)));
        assert_eq!(bytes("67108864"), bytes("64MiB"));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for text in ["", "fast", "-1", "5 parsecs", "1.5s", "99999999999"] {
            assert!(milliseconds(text).is_err(), "{text:?}");
        }
        for text in ["64 MB", "0x10", "18446744073709551615", "2048GiB", ""] {
            assert!(bytes(text).is_err(), "{text:?}");
        }
        assert!(some_milliseconds("0").is_err() && some_bytes("0KiB").is_err());
    }
}
