//! Tables of the admin queries and their costs. Pure.

use super::cost::Cost;
use super::routes::RouteFigures;
use super::{GOAL_P50_US, GOAL_RATIO};
use crate::report::{Spread, Table, millis, significant, thousands};

pub fn is_met(route: &RouteFigures) -> bool {
    route.error.is_none() && (route.p50_us as f64) < GOAL_P50_US
}

pub fn routes(routes: &[RouteFigures]) -> Table {
    let headings = ["GET /api/v1/…", "requests", "p50 ms", "p99 ms", "max ms", "response kB", "goal", "met"];
    let mut table = Table::new(1, headings);
    for route in routes {
        table.push(vec![
            route.name.to_owned(),
            thousands(route.asked as f64),
            millis(route.p50_us as f64),
            millis(route.p99_us as f64),
            millis(route.max_us as f64),
            significant(route.bytes as f64 / 1e3),
            format!("p50 <{} ms", GOAL_P50_US / 1e3),
            yes_or_no(is_met(route)),
        ]);
    }
    table
}

pub fn cost(cost: &Cost) -> Table {
    let headings = [
        "pair",
        "with msg/s",
        "without msg/s",
        "ratio",
        "with CPU µs",
        "without CPU µs",
        "statistics ms",
        "goal",
        "met",
    ];
    let mut table = Table::new(1, headings);
    let or_nothing = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), significant);
    for (index, pair) in cost.pairs.iter().enumerate() {
        table.push(vec![
            (index + 1).to_string(),
            thousands(pair.with.messages_per_second),
            thousands(pair.without.messages_per_second),
            or_nothing(pair.ratio()),
            or_nothing(pair.with.cpu_us),
            or_nothing(pair.without.cpu_us),
            significant(pair.with.statistics_ms),
            "-".to_owned(),
            "-".to_owned(),
        ]);
    }
    let over = |value: &dyn Fn(usize) -> Option<f64>| {
        let spread = Spread::of((0..cost.pairs.len()).filter_map(value).collect());
        spread.map(|spread| spread.median)
    };
    let rate = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), thousands);
    table.push(vec![
        "median".to_owned(),
        rate(over(&|index| Some(cost.pairs[index].with.messages_per_second))),
        rate(over(&|index| Some(cost.pairs[index].without.messages_per_second))),
        or_nothing(cost.ratio.map(|ratio| ratio.median)),
        or_nothing(over(&|index| cost.pairs[index].with.cpu_us)),
        or_nothing(over(&|index| cost.pairs[index].without.cpu_us)),
        or_nothing(over(&|index| Some(cost.pairs[index].with.statistics_ms))),
        format!("ratio ≥{GOAL_RATIO}"),
        cost.ratio.map_or_else(|| "-".to_owned(), |ratio| yes_or_no(ratio.median >= GOAL_RATIO)),
    ]);
    table
}

pub fn verdict(cost: &Cost) -> String {
    let (Some(ratio), Some(share)) = (cost.ratio, cost.share_percent) else {
        return "Nothing was measured with and without statistics.".to_owned();
    };
    format!(
        "With statistics the broker reaches {:.1} % of the messages without them ({:.1}–{:.1} %); their calls kept one \
         connection busy for {} % of the time.",
        ratio.median * 100.0,
        ratio.min * 100.0,
        ratio.max * 100.0,
        significant(share.median),
    )
}

fn yes_or_no(met: bool) -> String {
    if met { "yes" } else { "no" }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::cost::{Leg, Pair};
    use super::*;

    fn route(p50_us: u64) -> RouteFigures {
        RouteFigures { name: "resources/overview", asked: 10, p50_us, ..RouteFigures::default() }
    }

    #[test]
    fn a_route_meets_its_goal_below_the_limit_and_without_errors() {
        assert!(is_met(&route(49_999)));
        assert!(!is_met(&route(50_000)));
        assert!(!is_met(&RouteFigures { error: Some("500".to_owned()), ..route(1) }));
        let text = routes(&[route(60_000)]).text();
        assert!(text.contains("60.00") && text.trim_end().ends_with("no"), "{text}");
    }

    fn of_pairs(rates: &[(f64, f64)]) -> Cost {
        let leg = |messages_per_second| Leg { messages_per_second, statistics_ms: 20.0, ..Leg::default() };
        let pairs: Vec<Pair> =
            rates.iter().map(|&(with, without)| Pair { with: leg(with), without: leg(without) }).collect();
        Cost {
            measured_seconds: 10.0,
            ratio: Spread::of(pairs.iter().filter_map(Pair::ratio).collect()),
            share_percent: Spread::of(pairs.iter().map(|_| 0.2).collect()),
            pairs,
            error_texts: Vec::new(),
        }
    }

    #[test]
    fn the_median_pair_decides() {
        let met = of_pairs(&[(99.0, 100.0), (50.0, 100.0), (120.0, 100.0)]);
        assert!(cost(&met).text().trim_end().ends_with("yes"), "{}", cost(&met).text());
        assert!(
            verdict(&met).contains("99.0 % of the messages without them (50.0–120.0 %)"),
            "{}",
            verdict(&met)
        );
        let missed = of_pairs(&[(97.0, 100.0)]);
        assert!(cost(&missed).text().trim_end().ends_with("no"));
    }

    #[test]
    fn nothing_is_divided_by_nothing() {
        let nothing = of_pairs(&[(1.0, 0.0)]);
        assert_eq!(nothing.ratio, None);
        assert!(verdict(&nothing).starts_with("Nothing"));
        assert!(cost(&nothing).text().trim_end().ends_with('-'));
    }
}
