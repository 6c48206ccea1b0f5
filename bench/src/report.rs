//! Turns what was measured into a table and a JSON file. Measures nothing itself.

use std::fmt::Write as _;

use serde::Serialize;

use crate::cpu::CpuSeconds;
use crate::harness::{Operation, Tally};

/// One operation of one scenario in one run.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub scenario: String,
    pub operation: &'static str,
    pub seconds: f64,
    pub messages: u64,
    /// None where messages, not requests, are timed.
    pub requests: Option<u64>,
    pub messages_per_second: f64,
    pub requests_per_second: Option<f64>,
    pub p50_us: u64,
    pub p99_us: u64,
    pub p999_us: u64,
    pub max_us: u64,
    /// Of the whole scenario, told once, in its first row.
    pub errors: u64,
    /// Of the whole scenario, in its first row.
    pub cpu_seconds: Option<CpuSeconds>,
}

impl Row {
    pub fn new(
        scenario: &str,
        operation: Operation,
        seconds: f64,
        tally: &Tally,
        errors: u64,
        cpu_seconds: Option<CpuSeconds>,
    ) -> Row {
        let rate = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let requests = (operation != Operation::Delivery).then_some(tally.requests);
        Row {
            scenario: scenario.to_owned(),
            operation: operation.name(),
            seconds,
            messages: tally.messages,
            requests,
            messages_per_second: rate(tally.messages),
            requests_per_second: requests.map(rate),
            p50_us: tally.latency_us.value_at_quantile(0.5),
            p99_us: tally.latency_us.value_at_quantile(0.99),
            p999_us: tally.latency_us.value_at_quantile(0.999),
            max_us: tally.latency_us.max(),
            errors,
            cpu_seconds,
        }
    }
}

/// Everything about a run of the bench, as written to the JSON file.
#[derive(Serialize)]
pub struct Report {
    pub command: Vec<String>,
    pub commit: Option<String>,
    pub cpus: usize,
    pub broker: String,
    pub ended_unix_seconds: u64,
    pub summaries: Vec<Summary>,
    pub notes: Vec<String>,
    pub violations: Vec<String>,
    pub error_texts: Vec<String>,
}

/// One operation of one scenario over all runs.
#[derive(Serialize)]
pub struct Summary {
    pub scenario: String,
    pub operation: &'static str,
    pub messages_per_second: Spread,
    pub requests_per_second: Option<Spread>,
    pub p50_us: Spread,
    pub p99_us: Spread,
    pub p999_us: Spread,
    pub max_us: Spread,
    pub errors: u64,
    pub broker_cpu_seconds: Option<Spread>,
    pub postgres_cpu_seconds: Option<Spread>,
    pub bench_cpu_seconds: Option<Spread>,
    pub runs: Vec<Row>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// In the order in which the rows first came.
pub fn summarise(rows: Vec<Row>) -> Vec<Summary> {
    let mut groups: Vec<Vec<Row>> = Vec::new();
    for row in rows {
        let same =
            |group: &&mut Vec<Row>| group[0].scenario == row.scenario && group[0].operation == row.operation;
        match groups.iter_mut().find(same) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups.into_iter().map(Summary::of).collect()
}

impl Summary {
    fn of(runs: Vec<Row>) -> Summary {
        let over = |value: &dyn Fn(&Row) -> Option<f64>| Spread::of(runs.iter().filter_map(value).collect());
        let always = |value: &dyn Fn(&Row) -> f64| {
            over(&|row| Some(value(row))).expect("a group holds at least one row")
        };
        Summary {
            scenario: runs[0].scenario.clone(),
            operation: runs[0].operation,
            messages_per_second: always(&|row| row.messages_per_second),
            requests_per_second: over(&|row| row.requests_per_second),
            p50_us: always(&|row| row.p50_us as f64),
            p99_us: always(&|row| row.p99_us as f64),
            p999_us: always(&|row| row.p999_us as f64),
            max_us: always(&|row| row.max_us as f64),
            errors: runs.iter().map(|row| row.errors).sum(),
            broker_cpu_seconds: over(&|row| row.cpu_seconds?.broker),
            postgres_cpu_seconds: over(&|row| row.cpu_seconds?.postgres),
            bench_cpu_seconds: over(&|row| row.cpu_seconds?.bench),
            runs,
        }
    }
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = match values.len() {
            0 => return None,
            odd if odd % 2 == 1 => values[middle],
            _ => f64::midpoint(values[middle - 1], values[middle]),
        };
        Some(Spread { median, min: values[0], max: values[values.len() - 1] })
    }

    /// The median, and the range when there was more than one run.
    fn cell(self, runs: usize, format: impl Fn(f64) -> String) -> String {
        match runs {
            1 => format(self.median),
            _ => format!("{} ({}–{})", format(self.median), format(self.min), format(self.max)),
        }
    }
}

const HEADINGS: [&str; 12] = [
    "scenario",
    "operation",
    "msg/s",
    "req/s",
    "p50 ms",
    "p99 ms",
    "p99.9 ms",
    "max ms",
    "errors",
    "broker cpu s",
    "postgres cpu s",
    "bench cpu s",
];

pub fn table(summaries: &[Summary]) -> String {
    let mut lines: Vec<Vec<String>> = vec![HEADINGS.map(str::to_owned).into()];
    lines.extend(summaries.iter().map(cells));
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEADINGS.len()).map(width).collect();
    let mut table = String::new();
    for line in &lines {
        let mut text = String::new();
        for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
            let pad = " ".repeat(width - cell.chars().count());
            // Words stand left, numbers right.
            let written =
                if column < 2 { write!(text, "{cell}{pad}  ") } else { write!(text, "{pad}{cell}  ") };
            written.expect("a String takes every write");
        }
        table.push_str(text.trim_end());
        table.push('\n');
    }
    table
}

fn cells(summary: &Summary) -> Vec<String> {
    let runs = summary.runs.len();
    let dash = || "-".to_owned();
    let cpu = |spread: Option<Spread>| spread.map_or_else(dash, |spread| format!("{:.2}", spread.median));
    vec![
        summary.scenario.clone(),
        summary.operation.to_owned(),
        summary.messages_per_second.cell(runs, thousands),
        summary.requests_per_second.map_or_else(dash, |spread| thousands(spread.median)),
        summary.p50_us.cell(runs, millis),
        summary.p99_us.cell(runs, millis),
        millis(summary.p999_us.median),
        millis(summary.max_us.median),
        summary.errors.to_string(),
        cpu(summary.broker_cpu_seconds),
        cpu(summary.postgres_cpu_seconds),
        cpu(summary.bench_cpu_seconds),
    ]
}

fn millis(micros: f64) -> String {
    format!("{:.2}", micros / 1e3)
}

fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn row(scenario: &str, operation: Operation, messages: u64, latency_ms: u64) -> Row {
        let mut tally = Tally { messages, requests: 10, ..Tally::default() };
        tally.latency(Duration::from_millis(latency_ms));
        let cpu = CpuSeconds { broker: Some(0.5), postgres: None, bench: Some(0.25) };
        Row::new(scenario, operation, 2.0, &tally, 1, Some(cpu))
    }

    #[test]
    fn columns_line_up_and_missing_values_are_dashes() {
        let rows = vec![row("push-10", Operation::Push, 2_469_134, 1), row("x", Operation::Delivery, 3, 1)];
        let table = table(&summarise(rows));
        let expected = "\
scenario  operation      msg/s  req/s  p50 ms  p99 ms  p99.9 ms  max ms  errors  broker cpu s  postgres cpu s  bench cpu s
push-10   push       1,234,567      5    1.00    1.00      1.00    1.00       1          0.50               -         0.25
x         delivery           2      -    1.00    1.00      1.00    1.00       1          0.50               -         0.25
";
        assert_eq!(table, expected);
    }

    #[test]
    fn runs_of_one_scenario_become_a_median_with_its_range() {
        let runs = [400, 100, 200].map(|messages| row("push-10", Operation::Push, messages * 2, messages));
        let summaries = summarise(runs.into());
        assert_eq!(summaries.len(), 1);
        let spread = summaries[0].messages_per_second;
        assert_eq!(spread, Spread { median: 200.0, min: 100.0, max: 400.0 });
        assert_eq!(summaries[0].errors, 3);
        assert!(table(&summaries).contains("200 (100–400)"));
        assert_eq!(Spread::of(vec![1.0, 3.0]).unwrap().median, 2.0);
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(["0", "999", "1,000", "12,345,678"], [0.2, 999.0, 1e3, 12_345_678.0].map(thousands));
    }
}
