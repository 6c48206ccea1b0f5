//! One run as rows, several runs as medians with ranges.

use serde::Serialize;

use crate::harness::{Clock, Operation, TENTHS, Tally};
use crate::measure::Cost;

/// One operation of one scenario in one run.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub scenario: String,
    pub operation: &'static str,
    /// `service` or `response`: when latencies start.
    pub clock: &'static str,
    pub seconds: f64,
    pub messages: u64,
    /// None where messages are timed, and not requests.
    pub requests: Option<u64>,
    pub messages_per_second: f64,
    pub requests_per_second: Option<f64>,
    /// In each tenth of the planned time; zeros if there was no plan.
    pub messages_by_tenth: [u64; TENTHS],
    pub p50_us: u64,
    pub p99_us: u64,
    pub p999_us: u64,
    pub max_us: u64,
    /// Of the whole scenario, only in its first row.
    pub errors: u64,
    /// Of the whole scenario, in its first row.
    pub cost: Option<Cost<f64>>,
}

impl Row {
    pub fn new(scenario: &str, operation: Operation, clock: Clock, seconds: f64, tally: &Tally) -> Row {
        let rate = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let requests = (operation != Operation::Delivery).then_some(tally.requests);
        Row {
            scenario: scenario.to_owned(),
            operation: operation.name(),
            clock: clock.name(),
            seconds,
            messages: tally.messages,
            requests,
            messages_per_second: rate(tally.messages),
            requests_per_second: requests.map(rate),
            messages_by_tenth: tally.tenths,
            p50_us: tally.latency_us.value_at_quantile(0.5),
            p99_us: tally.latency_us.value_at_quantile(0.99),
            p999_us: tally.latency_us.value_at_quantile(0.999),
            max_us: tally.latency_us.max(),
            errors: 0,
            cost: None,
        }
    }

    fn is_like(&self, other: &Row) -> bool {
        self.scenario == other.scenario && self.operation == other.operation
    }
}

/// One operation of one scenario over all runs.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    pub scenario: String,
    pub operation: &'static str,
    pub clock: &'static str,
    pub seconds: Spread,
    pub messages_per_second: Spread,
    pub requests_per_second: Option<Spread>,
    pub p50_us: Spread,
    pub p99_us: Spread,
    pub p999_us: Spread,
    pub max_us: Spread,
    pub errors: u64,
    pub cost: Option<Cost<Spread>>,
    pub runs: Vec<Row>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Summary {
    /// In the order in which the rows first appear. Only the late costs are taken from the rows of a budget pass: its times are those
    /// of a cold broker.
    pub fn of_all(rows: Vec<Row>, budget: &[Row]) -> Vec<Summary> {
        let mut groups: Vec<Vec<Row>> = Vec::new();
        for row in rows {
            match groups.iter_mut().find(|group| group[0].is_like(&row)) {
                Some(group) => group.push(row),
                None => groups.push(vec![row]),
            }
        }
        groups.into_iter().map(|group| Summary::of(group, budget)).collect()
    }

    fn of(runs: Vec<Row>, budget: &[Row]) -> Summary {
        let over = |value: &dyn Fn(&Row) -> Option<f64>| Spread::of(runs.iter().filter_map(value).collect());
        let always = |value: &dyn Fn(&Row) -> f64| {
            over(&|row| Some(value(row))).expect("a group holds at least one row")
        };
        let costs: Vec<Cost<f64>> = runs.iter().filter_map(|row| row.cost).collect();
        let mut cost = (!costs.is_empty()).then(|| Cost::combine(&costs, Spread::of));
        let late = budget.iter().find(|row| row.is_like(&runs[0])).and_then(|row| row.cost);
        if let (Some(cost), Some(late)) = (&mut cost, late) {
            let once = |value: Option<f64>| Spread::of(value.into_iter().collect());
            (cost.commits, cost.dead_tuples) = (once(late.commits), once(late.dead_tuples));
        }
        Summary {
            scenario: runs[0].scenario.clone(),
            operation: runs[0].operation,
            clock: runs[0].clock,
            seconds: always(&|row| row.seconds),
            messages_per_second: always(&|row| row.messages_per_second),
            requests_per_second: over(&|row| row.requests_per_second),
            p50_us: always(&|row| row.p50_us as f64),
            p99_us: always(&|row| row.p99_us as f64),
            p999_us: always(&|row| row.p999_us as f64),
            max_us: always(&|row| row.max_us as f64),
            errors: runs.iter().map(|row| row.errors).sum(),
            cost,
            runs,
        }
    }
}

impl Spread {
    /// None for an empty list.
    pub fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = match values.len() {
            0 => return None,
            odd if odd % 2 == 1 => values[middle],
            _ => f64::midpoint(values[middle - 1], values[middle]),
        };
        Some(Spread { median, min: values[0], max: values[values.len() - 1] })
    }

    /// The median, and the range if there is one.
    pub fn cell(self, format: impl Fn(f64) -> String) -> String {
        match self.min == self.max {
            true => format(self.median),
            false => format!("{} ({}–{})", format(self.median), format(self.min), format(self.max)),
        }
    }
}

#[cfg(test)]
pub mod tests {
    use std::time::Duration;

    use super::*;

    /// A row of two seconds.
    pub fn row(scenario: &str, operation: Operation, messages: u64, latency_ms: u64) -> Row {
        let mut tally = Tally { messages, requests: 10, ..Tally::default() };
        tally.latency(Duration::from_millis(latency_ms));
        Row { errors: 1, ..Row::new(scenario, operation, Clock::Service, 2.0, &tally) }
    }

    #[test]
    fn runs_of_one_scenario_become_a_median_with_its_range() {
        let runs = [400, 100, 200].map(|messages| row("push-10", Operation::Push, messages * 2, messages));
        let summaries = Summary::of_all(runs.into(), &[]);
        assert_eq!(summaries.len(), 1);
        let spread = summaries[0].messages_per_second;
        assert_eq!(spread, Spread { median: 200.0, min: 100.0, max: 400.0 });
        assert_eq!(spread.cell(|value| value.to_string()), "200 (100–400)");
        assert_eq!(summaries[0].errors, 3);
        assert_eq!(Spread::of(vec![1.0, 3.0]).unwrap().median, 2.0);
        assert_eq!(Spread::of(vec![]), None);
    }

    #[test]
    fn late_costs_come_from_the_budget_pass_and_all_others_do_not() {
        let with = |cost| Row { cost: Some(cost), ..row("push-10", Operation::Push, 2, 1) };
        let timed = with(Cost { statements: Some(1.0), ..Cost::default() });
        let budget = with(Cost { statements: Some(9.0), commits: Some(2.0), ..Cost::default() });
        let cost = Summary::of_all(vec![timed], &[budget])[0].cost.unwrap();
        assert_eq!(cost.statements.unwrap().median, 1.0);
        assert_eq!(cost.commits.unwrap().median, 2.0);
        assert_eq!(cost.dead_tuples, None);
    }
}
