//! Cost of an operation at each point, and its ratio to the first point. Pure.

use serde::Serialize;

use super::point::Point;
use crate::measure::Memory;
use crate::report::{Row, Table, millis, significant, thousands, times};

/// A ratio that is worse by more than a quarter is flagged.
const TOLERANCE: f64 = 1.25;

/// One operation at one point.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    pub point: Point,
    pub operation: &'static str,
    pub figures: Figures,
    /// Ratios to the first point of the axis.
    pub ratios: Figures,
    /// Figures that are worse than at the first point by more than a quarter.
    pub beyond: Vec<&'static str>,
}

/// Per message or delivery, except for the rate and the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    pub messages_per_second: Option<f64>,
    pub p50_us: Option<f64>,
    /// CPU time of broker and PostgreSQL.
    pub cpu_us: Option<f64>,
    pub statements: Option<f64>,
    pub wal_bytes: Option<f64>,
    /// Memory of the broker at the end.
    pub resident_mb: Option<f64>,
}

impl Figures {
    pub fn of(row: &Row, memory: Option<Memory>) -> Figures {
        let cost = row.cost.unwrap_or_default();
        Figures {
            messages_per_second: Some(row.messages_per_second),
            p50_us: Some(row.p50_us as f64),
            cpu_us: cost.broker_cpu_us.zip(cost.postgres_cpu_us).map(|(broker, postgres)| broker + postgres),
            statements: cost.statements,
            wal_bytes: cost.wal_bytes,
            resident_mb: memory.map(|memory| memory.resident_mb),
        }
    }

    fn to(&self, first: &Figures) -> Figures {
        let ratio = |value: Option<f64>, first: Option<f64>| {
            value.zip(first).filter(|(_, first)| *first > 0.0).map(|(value, first)| value / first)
        };
        Figures {
            messages_per_second: ratio(self.messages_per_second, first.messages_per_second),
            p50_us: ratio(self.p50_us, first.p50_us),
            cpu_us: ratio(self.cpu_us, first.cpu_us),
            statements: ratio(self.statements, first.statements),
            wal_bytes: ratio(self.wal_bytes, first.wal_bytes),
            resident_mb: ratio(self.resident_mb, first.resident_mb),
        }
    }

    /// For ratios. Memory is not per operation, so it may grow.
    fn beyond(&self) -> Vec<&'static str> {
        let slower = self.messages_per_second.map(|ratio| 1.0 / ratio);
        let named = [
            ("msg/s", slower),
            ("p50", self.p50_us),
            ("CPU", self.cpu_us),
            ("statements", self.statements),
            ("WAL", self.wal_bytes),
        ];
        let worse = |ratio: Option<f64>| ratio.is_some_and(|ratio| ratio > TOLERANCE);
        named.into_iter().filter(|(_, ratio)| worse(*ratio)).map(|(name, _)| name).collect()
    }
}

/// The points of one axis in order, with the figures of each operation.
pub fn lines(measured: &[(Point, Vec<(&'static str, Figures)>)]) -> Vec<Line> {
    let mut lines = Vec::new();
    for (point, operations) in measured {
        for (operation, figures) in operations {
            let first = measured.iter().find(|(first, _)| first.axis == point.axis);
            let first = first.and_then(|(_, all)| all.iter().find(|(name, _)| name == operation));
            let ratios = first.map(|(_, first)| figures.to(first)).unwrap_or_default();
            lines.push(Line { point: *point, operation, figures: *figures, ratios, beyond: ratios.beyond() });
        }
    }
    lines
}

pub fn table(lines: &[Line]) -> Table {
    let headings = [
        "point",
        "operation",
        "msg/s",
        "p50 ms",
        "CPU µs",
        "statements",
        "WAL bytes",
        "broker MB",
        "beyond 25 %",
    ];
    let mut table = Table::new(2, headings);
    for Line { point, operation, figures, ratios, beyond } in lines {
        let cell = |value: Option<f64>, ratio: Option<f64>, format: fn(f64) -> String| {
            let Some(value) = value else { return "-".to_owned() };
            match ratio {
                Some(ratio) => format!("{} ({})", format(value), times(ratio)),
                None => format(value),
            }
        };
        table.push(vec![
            point.to_string(),
            (*operation).to_owned(),
            cell(figures.messages_per_second, ratios.messages_per_second, thousands),
            cell(figures.p50_us, ratios.p50_us, millis),
            cell(figures.cpu_us, ratios.cpu_us, significant),
            cell(figures.statements, ratios.statements, significant),
            cell(figures.wal_bytes, ratios.wal_bytes, significant),
            cell(figures.resident_mb, ratios.resident_mb, significant),
            if beyond.is_empty() { "-".to_owned() } else { beyond.join(", ") },
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Axis;

    fn figures(rate: f64, p50_us: f64, resident_mb: f64) -> Figures {
        let resident_mb = Some(resident_mb);
        Figures { messages_per_second: Some(rate), p50_us: Some(p50_us), resident_mb, ..Figures::default() }
    }

    fn measured(sizes: &[(u32, Figures)]) -> Vec<Line> {
        let of =
            |&(size, figures): &(u32, Figures)| (Point { axis: Axis::Groups, size }, vec![("push", figures)]);
        lines(&sizes.iter().map(of).collect::<Vec<_>>())
    }

    #[test]
    fn a_point_is_held_against_the_first_of_its_axis() {
        let first = (1, figures(1_000.0, 100.0, 10.0));
        let lines = measured(&[first, (10, figures(810.0, 120.0, 90.0)), (100, figures(700.0, 130.0, 10.0))]);
        assert_eq!(lines[0].ratios.messages_per_second, Some(1.0));
        assert_eq!(lines[1].beyond, Vec::<&str>::new(), "memory may grow, and a fifth slower is within");
        assert_eq!(lines[2].beyond, ["msg/s", "p50"]);
        assert_eq!(lines[2].ratios.cpu_us, None);
        let text = table(&lines).text();
        assert!(text.contains("100 groups") && text.contains("700 (0.700×)"), "{text}");
    }

    #[test]
    fn nothing_is_held_against_nothing() {
        let lines = measured(&[(1, figures(0.0, 0.0, 1.0)), (10, figures(5.0, 1.0, 1.0))]);
        assert_eq!(lines[1].ratios.messages_per_second, None);
        assert_eq!(lines[1].beyond, Vec::<&str>::new());
    }
}
