//! The only reader of time. Everything that decides takes the time as an argument.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
pub fn now() -> Instant {
    Instant::now()
}

/// Microseconds since 1970 by this machine's clock: for ages, which may be off by the difference between clocks.
#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
pub fn wall() -> i64 {
    micros(SystemTime::now())
}

/// The same in seconds.
pub fn wall_seconds() -> f64 {
    wall() as f64 / 1e6
}

/// Microseconds since 1970, from a time PostgreSQL sent.
pub fn micros(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
        Err(before) => -i64::try_from(before.duration().as_micros()).unwrap_or(i64::MAX),
    }
}

/// A time PostgreSQL sent, for people.
pub fn millis(time: SystemTime) -> String {
    queen_protocol::format_millis(micros(time))
}

/// The reverse, for a time a client sent.
pub fn system_time(micros: i64) -> SystemTime {
    let distance = Duration::from_micros(micros.unsigned_abs());
    if micros >= 0 { UNIX_EPOCH + distance } else { UNIX_EPOCH - distance }
}
