//! `queen-bench client`: CPU cost per message of the Rust client compared with the broker, both at full
//! speed in one run. The client is used as a program would use it; otherwise this process only counts. A
//! missed goal is not a failure.

mod load;

use anyhow::Result;
use queen_client::Queen;
use serde::Serialize;

use self::load::{LOADS, Load};
use super::{write, write_json};
use crate::environment::{Machine, Site, Source};
use crate::options::ClientOptions;
use crate::report::{Table, section, significant, thousands};

/// Share of the broker's CPU time for the same messages.
const GOAL: f64 = 0.5;

#[derive(Serialize)]
struct Results {
    rows: Vec<Row>,
    goal: f64,
}

/// Cost of a load, in microseconds of CPU time per message.
#[derive(Serialize)]
struct Row {
    load: &'static str,
    messages_per_second: f64,
    client_us: f64,
    broker_us: f64,
    postgres_us: f64,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.client_us / self.broker_us
    }
}

pub async fn run(options: ClientOptions) -> Result<bool> {
    let messages = options.messages.unwrap_or(if options.quick { 2_000 } else { 400_000 });
    let site = Site::open(&Source::queen(&options.queen)).await?;
    let queen = Queen::connect(site.target.url())?;
    // One-time work happens before the measurement.
    load::warm_up(&queen, messages / 10).await?;
    let mut rows = Vec::new();
    for load in LOADS {
        eprintln!("{}", load.name());
        rows.push(measure(&site, &queen, load, messages).await?);
    }
    site.close().await?;

    let table = table(&rows);
    let verdict = verdict(&rows);
    println!("{}\n{verdict}", table.text());
    let machine = Machine::here();
    if let Some(file) = &options.markdown {
        let words = format!("Microseconds of CPU time per message. {verdict}");
        write(file, section(&machine, &words, &[table]).as_bytes())?;
    }
    write_json(options.json.as_deref(), machine, Results { rows, goal: GOAL })?;
    Ok(true)
}

async fn measure(site: &Site, queen: &Queen, load: Load, messages: u64) -> Result<Row> {
    let (before, began) = (site.watch.sample(), tokio::time::Instant::now());
    let done = load.run(queen, messages).await?;
    let seconds = began.elapsed().as_secs_f64();
    let used = site.watch.sample().since(before);
    let each = |seconds: Option<f64>| seconds.unwrap_or_default() * 1e6 / done as f64;
    Ok(Row {
        load: load.name(),
        messages_per_second: done as f64 / seconds,
        client_us: each(used.bench),
        broker_us: each(used.broker),
        postgres_us: each(used.postgres),
    })
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(1, ["", "msg/s", "client µs", "broker µs", "postgres µs", "client : broker"]);
    for row in rows {
        table.push(vec![
            row.load.to_owned(),
            thousands(row.messages_per_second),
            significant(row.client_us),
            significant(row.broker_us),
            significant(row.postgres_us),
            significant(row.ratio()),
        ]);
    }
    table
}

fn verdict(rows: &[Row]) -> String {
    let over: Vec<&str> = rows.iter().filter(|row| row.ratio() >= GOAL).map(|row| row.load).collect();
    match over.is_empty() {
        true => format!("The client costs less than {GOAL} of the broker in all loads."),
        false => format!("The goal of less than {GOAL} of the broker is missed by: {}.", over.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(load: &'static str, client_us: f64) -> Row {
        Row { load, messages_per_second: 1_000.0, client_us, broker_us: 2.0, postgres_us: 3.0 }
    }

    #[test]
    fn who_misses_the_goal_is_named() {
        assert!(verdict(&[row("a", 0.99)]).ends_with("in all loads."));
        assert!(verdict(&[row("a", 0.99), row("b", 1.0)]).ends_with("by: b."));
        assert!(table(&[row("a", 1.0)]).text().ends_with("3.00            0.500\n"));
    }
}
