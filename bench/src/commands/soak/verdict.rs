//! Decides whether anything grew. Pure.

use serde::Serialize;

use super::part::Part;

/// The parts that count as the beginning. Before them, caches still fill up.
const BEGINNING: std::ops::Range<usize> = 4..7;
const END_PARTS: usize = 3;

/// One figure at the beginning and at the end.
#[derive(Clone, Debug, Serialize)]
pub struct Trend {
    pub name: &'static str,
    pub beginning: f64,
    pub end: f64,
    /// The end may exceed the beginning by this factor, plus this amount.
    pub factor: f64,
    pub allowance: f64,
}

impl Trend {
    pub fn is_flat(&self) -> bool {
        self.end <= self.beginning * self.factor + self.allowance
    }
}

/// The tolerances leave room for noise, and thereby for a slow leak. Between the middle of the beginning and the middle
/// of the end are three of ten parts: a broker of 60 MB that gains more than 3.5 MB in them is noticed. In half an hour
/// that is a leak of about 23 MB per hour, in a day half a megabyte per hour; `--seconds` sets the duration.
pub fn trends(parts: &[Part]) -> Vec<Trend> {
    let trend = |name, value: fn(&Part) -> f64, factor, allowance| {
        let (beginning, end) = ends(parts, value);
        Trend { name, beginning, end, factor, allowance }
    };
    let (rate, end_rate) = ends(parts, |part| part.messages_per_second);
    vec![
        trend("broker MB", |part| part.resident_mb, 1.025, 2.0),
        trend("tables MB", |part| part.tables_mb, 1.1, 4.0),
        trend("tables without the log MB", |part| part.state_mb, 1.1, 2.0),
        // Their number varies between vacuums.
        trend("dead tuples", |part| part.dead_tuples, 1.3, 3_000.0),
        trend("p50 µs", |part| part.p50_us, 1.25, 1_000.0),
        trend("p99 µs", |part| part.p99_us, 1.4, 5_000.0),
        Trend {
            name: "msg/s behind",
            beginning: 0.0,
            end: (rate - end_rate).max(0.0),
            factor: 1.0,
            allowance: rate / 20.0,
        },
    ]
}

fn ends(parts: &[Part], value: fn(&Part) -> f64) -> (f64, f64) {
    let beginning = parts.get(BEGINNING).map_or(0.0, |parts| middle(parts, value));
    (beginning, middle(&parts[parts.len().saturating_sub(END_PARTS)..], value))
}

/// Load sustained with the transaction relative to that without.
pub fn percent(free: &[Part], pinned: &[Part]) -> Option<f64> {
    let mean = |parts: &[Part]| {
        parts.iter().map(|part| part.messages_per_second).sum::<f64>() / parts.len().max(1) as f64
    };
    let free = mean(free);
    (free > 0.0).then(|| mean(pinned) / free * 100.0)
}

fn middle(parts: &[Part], value: fn(&Part) -> f64) -> f64 {
    let mut values: Vec<f64> = parts.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(number: u32) -> Part {
        Part {
            number,
            messages_per_second: 10_000.0,
            p50_us: 4_000.0,
            p99_us: 20_000.0,
            resident_mb: 60.0,
            tables_mb: 300.0,
            state_mb: 20.0,
            dead_tuples: 10_000.0,
        }
    }

    /// Names of the figures that grow when `change` is applied to each part.
    fn grown(change: fn(&mut Part)) -> Vec<&'static str> {
        let mut parts: Vec<Part> = (1..=10).map(part).collect();
        parts.iter_mut().for_each(change);
        trends(&parts).iter().filter(|trend| !trend.is_flat()).map(|trend| trend.name).collect()
    }

    #[test]
    fn steady_figures_are_flat_and_what_fills_up_at_first_does_not_count() {
        assert!(grown(|_| {}).is_empty());
        assert!(grown(|part| part.p50_us *= if part.number <= 4 { 0.1 } else { 1.0 }).is_empty());
        assert!(grown(|part| part.resident_mb *= if part.number == 9 { 9.0 } else { 1.0 }).is_empty());
    }

    #[test]
    fn every_figure_can_be_found_growing() {
        assert_eq!(grown(|part| part.resident_mb *= 1.0 + f64::from(part.number) / 20.0), ["broker MB"]);
        assert_eq!(grown(|part| part.resident_mb += 3.9 / 3.0 * f64::from(part.number)), ["broker MB"]);
        assert!(grown(|part| part.resident_mb += 3.5 / 3.0 * f64::from(part.number)).is_empty());
        assert_eq!(grown(|part| part.tables_mb *= 1.0 + f64::from(part.number) / 5.0), ["tables MB"]);
        assert_eq!(
            grown(|part| part.state_mb *= 1.0 + f64::from(part.number) / 5.0),
            ["tables without the log MB"]
        );
        assert_eq!(grown(|part| part.dead_tuples *= f64::from(part.number)), ["dead tuples"]);
        assert_eq!(grown(|part| part.p50_us *= f64::from(part.number)), ["p50 µs"]);
        assert_eq!(grown(|part| part.p99_us *= f64::from(part.number)), ["p99 µs"]);
        assert_eq!(grown(|part| part.messages_per_second /= f64::from(part.number)), ["msg/s behind"]);
    }

    #[test]
    fn the_pinned_run_is_measured_by_the_free_one() {
        let slow = Part { messages_per_second: 7_500.0, ..part(1) };
        assert_eq!(percent(&[part(1), part(2)], &[slow]), Some(75.0));
        assert_eq!(percent(&[], &[part(1)]), None);
    }
}
