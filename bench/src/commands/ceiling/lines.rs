//! PostgreSQL alone and the broker on it, side by side, and the required share of the ceiling. Pure.

use serde::Serialize;

use super::alone::{CONNECTIONS, Rate};
use crate::report::{Spread, Summary, Table, thousands};
use crate::scenarios::{Scenario, Shape};

/// A request for one message costs the broker as much as one for many, and PostgreSQL much less.
const GOAL_PERCENT_SINGLE: f64 = 35.0;
const GOAL_PERCENT: f64 = 60.0;

#[derive(Debug, Serialize)]
pub struct Line {
    pub scenario: String,
    /// At each number of connections, in each run.
    pub postgres_runs: Vec<Vec<Rate>>,
    /// At the fastest number of connections of each run.
    pub postgres_calls_per_second: Option<Spread>,
    pub postgres_messages_per_second: Option<Spread>,
    pub broker_messages_per_second: Option<Spread>,
    /// Ratio of the medians.
    pub percent: Option<f64>,
    /// Ratio to PostgreSQL on one connection, which has as many requests in progress as the clients.
    pub percent_of_one_connection: Option<f64>,
    pub goal_percent: f64,
    pub met: Option<bool>,
}

impl Line {
    pub fn new(scenario: Scenario, postgres_runs: Vec<Vec<Rate>>, broker: Option<&Summary>) -> Line {
        let rate = |rate: &Rate| rate.messages_per_second;
        let fastest = |rates: &Vec<Rate>| rates.iter().copied().max_by(|a, b| rate(a).total_cmp(&rate(b)));
        let best: Vec<Rate> = postgres_runs.iter().filter_map(fastest).collect();
        let postgres = Spread::of(best.iter().map(rate).collect());
        let broker = broker.map(|summary| summary.messages_per_second);
        let percent_of = |postgres: Option<Spread>| {
            let (postgres, broker) = postgres.zip(broker).filter(|(postgres, _)| postgres.median > 0.0)?;
            Some(broker.median / postgres.median * 100.0)
        };
        let percent = percent_of(postgres);
        let goal_percent = if batch(scenario) == Some(1) { GOAL_PERCENT_SINGLE } else { GOAL_PERCENT };
        Line {
            scenario: scenario.to_string(),
            postgres_calls_per_second: Spread::of(best.iter().map(|rate| rate.calls_per_second).collect()),
            postgres_messages_per_second: postgres,
            broker_messages_per_second: broker,
            percent,
            percent_of_one_connection: percent_of(on(&postgres_runs, 1)),
            goal_percent,
            met: percent.map(|percent| percent >= goal_percent),
            postgres_runs,
        }
    }
}

/// Messages per second on this many connections.
fn on(runs: &[Vec<Rate>], connections: usize) -> Option<Spread> {
    let rates = runs.iter().flatten().filter(|rate| rate.connections == connections);
    Spread::of(rates.map(|rate| rate.messages_per_second).collect())
}

fn batch(scenario: Scenario) -> Option<u32> {
    match scenario {
        Scenario::Push(Shape { batch, .. }) | Scenario::Pop { batch, .. } => Some(batch),
        _ => None,
    }
}

pub fn table(lines: &[Line]) -> Table {
    let on_connections = CONNECTIONS.map(|connections| format!("msg/s on {connections}"));
    let headings = ["scenario"].into_iter().chain(on_connections.iter().map(String::as_str)).chain([
        "best calls/s",
        "best msg/s",
        "broker msg/s",
        "percent",
        "goal",
        "met",
        "percent of 1",
    ]);
    let mut table = Table::new(1, headings);
    for line in lines {
        let or_nothing = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let median = |spread: Option<Spread>| or_nothing(spread.map(|spread| thousands(spread.median)));
        let range = |spread: Option<Spread>| or_nothing(spread.map(|spread| spread.cell(thousands)));
        let percent = |percent: Option<f64>| or_nothing(percent.map(|percent| format!("{percent:.0} %")));
        let met = line.met.map(|met| if met { "yes" } else { "no" });
        let mut cells = vec![line.scenario.clone()];
        cells.extend(CONNECTIONS.map(|connections| median(on(&line.postgres_runs, connections))));
        cells.extend([
            median(line.postgres_calls_per_second),
            range(line.postgres_messages_per_second),
            range(line.broker_messages_per_second),
            percent(line.percent),
            format!("≥{:.0} %", line.goal_percent),
            met.unwrap_or("?").to_owned(),
            percent(line.percent_of_one_connection),
        ]);
        table.push(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Operation;
    use crate::report::tests::row;
    use crate::scenarios;

    fn line(scenario: &str, postgres: f64, broker_messages: u64) -> Line {
        let scenario = scenarios::select(&[scenario.to_owned()]).unwrap()[0];
        let rate = |connections, messages_per_second| Rate {
            connections,
            calls_per_second: 10.0,
            messages_per_second,
        };
        let runs = vec![vec![rate(1, postgres / 2.0), rate(2, postgres), rate(4, postgres / 4.0)]; 3];
        let rows = vec![row(&scenario.to_string(), Operation::Push, broker_messages, 1)];
        Line::new(scenario, runs, Summary::of_all(rows, &[]).first())
    }

    #[test]
    fn the_fastest_number_of_connections_is_the_ceiling() {
        // The row covers two seconds, so half of its messages.
        let line = line("push-1", 1_000.0, 800);
        assert_eq!(line.postgres_messages_per_second.unwrap().median, 1_000.0);
        assert_eq!((line.percent, line.percent_of_one_connection), (Some(40.0), Some(80.0)));
    }

    #[test]
    fn a_batch_of_one_has_the_lower_goal() {
        let of = |scenario| line(scenario, 1_000.0, 800);
        assert_eq!((of("push-1").goal_percent, of("push-1").met), (35.0, Some(true)));
        assert_eq!((of("push-10").goal_percent, of("push-10").met), (60.0, Some(false)));
    }

    #[test]
    fn what_was_not_measured_has_no_verdict() {
        let scenario = scenarios::select(&["pop-wildcard-1".to_owned()]).unwrap()[0];
        let line = Line::new(scenario, Vec::new(), None);
        assert_eq!((line.percent, line.met), (None, None));
        let text = table(&[line, self::line("push-1", 1_000.0, 800)]).text();
        assert!(text.contains("?") && text.contains("40 %"), "{text}");
    }
}
