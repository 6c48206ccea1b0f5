//! Both runs side by side. Pure.

use super::half::{Half, TableState};
use crate::report::{Table, millis, significant, thousands};

const HEADINGS: [&str; 3] = ["", "free", "pinned"];
/// Smaller tables without changes are omitted.
const MEGABYTES_MIN: f64 = 0.5;

/// Throughput of the second run in percent of the first.
pub fn percent(free: &Half, pinned: &Half) -> Option<f64> {
    let measured = free.messages_per_second > 0.0;
    measured.then(|| pinned.messages_per_second / free.messages_per_second * 100.0)
}

pub fn summary(free: &Half, pinned: &Half) -> Table {
    let mut table = Table::new(1, HEADINGS);
    let mut add = |name: &str, value: &dyn Fn(&Half) -> String| {
        table.push(vec![name.to_owned(), value(free), value(pinned)]);
    };
    add("msg/s", &|half| thousands(half.messages_per_second));
    add("p50 ms", &|half| millis(half.p50_us));
    add("p99 ms", &|half| millis(half.p99_us));
    add("row versions died per message", &|half| per_message(half, |state| state.died));
    add("dead tuples left per message", &|half| per_message(half, |state| state.dead));
    let matters = |state: &&TableState| state.died > 0 || state.megabytes >= MEGABYTES_MIN;
    let states = free.tables.iter().chain(&pinned.tables).filter(matters);
    let mut listed: Vec<&str> = Vec::new();
    for name in states.map(|state| state.name.as_str()) {
        if listed.contains(&name) {
            continue;
        }
        listed.push(name);
        add(&format!("{name} MB"), &|half| of_table(half, name, |state| significant(state.megabytes)));
        add(&format!("{name} dead tuples"), &|half| {
            of_table(half, name, |state| thousands(state.dead as f64))
        });
    }
    table
}

/// Messages per second in each tenth of the time.
pub fn tenths(free: &Half, pinned: &Half) -> Table {
    let mut table = Table::new(1, ["tenth", "free msg/s", "pinned msg/s"]);
    let both = free.messages_per_second_by_tenth.iter().zip(pinned.messages_per_second_by_tenth);
    for (index, (free, pinned)) in both.enumerate() {
        table.push(vec![(index + 1).to_string(), thousands(*free), thousands(pinned)]);
    }
    table
}

fn per_message(half: &Half, count: fn(&TableState) -> i64) -> String {
    match half.messages {
        0 => "-".to_owned(),
        messages => significant(half.tables.iter().map(count).sum::<i64>() as f64 / messages as f64),
    }
}

fn of_table(half: &Half, name: &str, value: impl Fn(&TableState) -> String) -> String {
    half.tables.iter().find(|state| state.name == name).map_or_else(|| "-".to_owned(), value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::TENTHS;

    fn half(messages_per_second: f64, megabytes: f64, dead: i64) -> Half {
        let state =
            |name: &str, megabytes, died, dead| TableState { name: name.to_owned(), megabytes, died, dead };
        Half {
            messages_per_second,
            messages_per_second_by_tenth: [messages_per_second; TENTHS],
            messages: 1_000,
            tables: vec![state("consumers", megabytes, 300, dead), state("queues", 0.1, 0, 0)],
            ..Half::default()
        }
    }

    #[test]
    fn the_pinned_run_stands_beside_the_free_one() {
        let (free, pinned) = (half(2_000.0, 1.0, 0), half(1_500.0, 80.0, 300));
        assert_eq!(percent(&free, &pinned), Some(75.0));
        let text = summary(&free, &pinned).text();
        assert!(text.contains("consumers MB") && !text.contains("queues"), "{text}");
        let dead = text.lines().find(|line| line.starts_with("dead tuples left")).unwrap();
        assert!(dead.ends_with("0.300"), "{text}");
        assert_eq!(tenths(&free, &pinned).text().lines().count(), 1 + TENTHS);
    }

    #[test]
    fn nothing_is_divided_by_nothing() {
        assert_eq!(percent(&Half::default(), &half(1.0, 1.0, 1)), None);
        assert!(summary(&Half::default(), &Half::default()).text().contains('-'));
    }
}
