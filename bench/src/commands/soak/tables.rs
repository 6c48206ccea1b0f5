//! Tables of the parts and the trends. Pure.

use super::part::Part;
use super::verdict::Trend;
use crate::report::{Table, millis, significant, thousands};

pub fn parts(parts: &[Part]) -> Table {
    let headings =
        ["part", "msg/s", "p50 ms", "p99 ms", "broker MB", "tables MB", "without log MB", "dead tuples"];
    let mut table = Table::new(0, headings);
    for part in parts {
        table.push(vec![
            part.number.to_string(),
            thousands(part.messages_per_second),
            millis(part.p50_us),
            millis(part.p99_us),
            significant(part.resident_mb),
            significant(part.tables_mb),
            significant(part.state_mb),
            thousands(part.dead_tuples),
        ]);
    }
    table
}

pub fn trends(trends: &[Trend]) -> Table {
    let mut table = Table::new(1, ["", "beginning", "end", "flat"]);
    for trend in trends {
        let flat = if trend.is_flat() { "yes" } else { "no" };
        table.push(vec![
            trend.name.to_owned(),
            significant(trend.beginning),
            significant(trend.end),
            flat.to_owned(),
        ]);
    }
    table
}
