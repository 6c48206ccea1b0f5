//! The tables: results, costs, and the comparison of two brokers.

use super::comparison::{Comparison, Figures, Verdict};
use super::contender::Contender;
use super::format::{millis, significant, thousands, times};
use super::summary::{Spread, Summary};
use super::table::Table;
use crate::measure::Cost;

const NOTHING: &str = "-";

pub fn results(summaries: &[Summary]) -> Table {
    let headings = [
        "scenario",
        "operation",
        "latency",
        "msg/s",
        "req/s",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "max ms",
        "errors",
    ];
    let mut table = Table::new(3, headings);
    for summary in summaries {
        table.push(vec![
            summary.scenario.clone(),
            summary.operation.to_owned(),
            summary.clock.to_owned(),
            summary.messages_per_second.cell(thousands),
            or_nothing(summary.requests_per_second, |spread| thousands(spread.median)),
            summary.p50_us.cell(millis),
            summary.p99_us.cell(millis),
            millis(summary.p999_us.median),
            millis(summary.max_us.median),
            summary.errors.to_string(),
        ]);
    }
    table
}

/// Per message except for the last column. `contenders` have the names used in this table.
pub fn costs(contenders: &[(&str, &Contender)]) -> Table {
    let no_cost = Cost::<f64>::default();
    let headings = ["scenario", "broker"].into_iter().chain(no_cost.columns().map(|(heading, _)| heading));
    let mut table = Table::new(2, headings);
    let mut scenarios: Vec<&str> = Vec::new();
    for summary in contenders.iter().flat_map(|(_, contender)| &contender.summaries) {
        if summary.cost.is_some() && !scenarios.contains(&summary.scenario.as_str()) {
            scenarios.push(&summary.scenario);
        }
    }
    for scenario in scenarios {
        for (name, contender) in contenders {
            let Some(cost) = contender.summary(scenario).and_then(|summary| summary.cost) else { continue };
            let cell = |(_, spread)| or_nothing(spread, |spread: Spread| significant(spread.median));
            let words = [scenario.to_owned(), (*name).to_owned()];
            table.push(words.into_iter().chain(cost.columns().map(cell)).collect());
        }
    }
    table
}

pub fn comparison(comparison: &Comparison) -> Table {
    let headings = [
        "scenario",
        "ours msg/s",
        "peer msg/s",
        "ratio",
        "latency",
        "ours p50 ms",
        "ours p99 ms",
        "peer p50 ms",
        "peer p99 ms",
        "p50 ratio",
        "p99 ratio",
        "goal",
        "met",
    ];
    let mut table = Table::new(1, headings);
    for line in &comparison.lines {
        let rate =
            |figures| or_nothing(figures, |figures: Figures| figures.messages_per_second.cell(thousands));
        let p50 = |figures| or_nothing(figures, |figures: Figures| millis(figures.p50_us.median));
        let p99 = |figures| or_nothing(figures, |figures: Figures| millis(figures.p99_us.median));
        let (goal, met) = verdict_cells(&line.verdicts);
        table.push(vec![
            line.scenario.clone(),
            rate(line.ours),
            rate(line.peer),
            or_nothing(line.throughput_ratio, times),
            or_nothing(line.clock, str::to_owned),
            p50(line.ours),
            p99(line.ours),
            p50(line.peer),
            p99(line.peer),
            or_nothing(line.p50_ratio, times),
            or_nothing(line.p99_ratio, times),
            goal,
            met,
        ]);
    }
    table
}

pub fn memory(contenders: &[(&str, &Contender)], verdicts: &[Verdict]) -> Table {
    let mut table = Table::new(1, ["memory after the series", "resident MB", "peak MB", "goal", "met"]);
    for (index, (name, contender)) in contenders.iter().enumerate() {
        let cell = |spread| or_nothing(spread, |spread: Spread| spread.cell(significant));
        // Only the first has goals: it is ours.
        let (goal, met) = verdict_cells(if index == 0 { verdicts } else { &[] });
        table.push(vec![(*name).to_owned(), cell(contender.resident_mb), cell(contender.peak_mb), goal, met]);
    }
    table
}

/// All goals, and whether they are met; if there are several, which are not.
fn verdict_cells(verdicts: &[Verdict]) -> (String, String) {
    let goals: Vec<&str> = verdicts.iter().map(|verdict| verdict.goal.as_str()).collect();
    let missed = verdicts.iter().filter(|verdict| verdict.met == Some(false));
    let missed: Vec<&str> = missed.map(|verdict| verdict.goal.as_str()).collect();
    let met = match (verdicts.len(), missed.len()) {
        (0, _) => NOTHING.to_owned(),
        (all, missed) if all == missed => "no".to_owned(),
        (_, 0) if verdicts.iter().any(|verdict| verdict.met.is_none()) => "?".to_owned(),
        (_, 0) => "yes".to_owned(),
        _ => format!("not {}", missed.join(", ")),
    };
    (if goals.is_empty() { NOTHING.to_owned() } else { goals.join(", ") }, met)
}

fn or_nothing<T>(value: Option<T>, format: impl Fn(T) -> String) -> String {
    value.map_or_else(|| NOTHING.to_owned(), format)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Operation;
    use crate::report::compare;
    use crate::report::contender::tests::contender;
    use crate::report::summary::Row;
    use crate::report::summary::tests::row;

    #[test]
    fn columns_line_up_and_missing_values_are_dashes() {
        let rows = vec![row("push-10", Operation::Push, 2_469_134, 1), row("x", Operation::Delivery, 3, 1)];
        let expected = "\
scenario  operation  latency      msg/s  req/s  p50 ms  p99 ms  p99.9 ms  max ms  errors
push-10   push       service  1,234,567      5    1.00    1.00      1.00    1.00       1
x         delivery   service          2      -    1.00    1.00      1.00    1.00       1
";
        assert_eq!(results(&Summary::of_all(rows, &[])).text(), expected);
    }

    #[test]
    fn a_comparison_shows_goals_and_gaps() {
        let rows = |messages| vec![row("end-to-end", Operation::Delivery, messages, 80)];
        let (ours, peer) = (contender(rows(1_400), 130.0), contender(rows(200), 60.0));
        let compared = compare(&ours, &peer);
        let text = comparison(&compared).text();
        assert!(text.contains("7.00×") && text.contains("≥6×, p99 ≤50 ms  not p99 ≤50 ms"), "{text}");
        let text = memory(&[("ours", &ours), ("peer", &peer)], &compared.memory).text();
        assert!(text.contains("≤120 MB   no"), "{text}");
        let alone = compare(&ours, &contender(Vec::new(), 1.0));
        assert!(comparison(&alone).text().contains(" - "));
    }

    #[test]
    fn costs_of_both_brokers_stand_below_each_other() {
        let costly = |statements| {
            let cost = Cost { statements: Some(statements), ..Cost::default() };
            contender(vec![Row { cost: Some(cost), ..row("push-1", Operation::Push, 2, 1) }], 1.0)
        };
        let text = costs(&[("ours", &costly(0.125)), ("peer", &costly(3.0))]).text();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("push-1    ours         0.125"), "{text}");
        assert!(lines[2].starts_with("push-1    peer          3.00"), "{text}");
    }
}
