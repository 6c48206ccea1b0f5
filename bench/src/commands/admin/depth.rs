//! Whether counts equal those of the ledger once traffic has stopped, and how soon.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::load;
use super::traffic::Ledger;
use crate::client::Client;
use crate::report::thousands;
use crate::setup::Setup;
use crate::wire::expect_status;

const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug, Serialize)]
pub struct Exactness {
    /// Seconds until all counts were exact; `None` if they never were.
    pub seconds: Option<f64>,
    /// The numbers as last returned, before measuring on demand.
    pub numbers: Vec<Number>,
    /// Whether they were exact after measuring on demand. Only checked if waiting did not help.
    pub refreshed: Option<bool>,
    /// The largest difference in the first responses.
    pub first_difference: u64,
}

#[derive(Debug, PartialEq, Serialize)]
pub struct Number {
    pub of: String,
    pub expected: u64,
    pub answered: u64,
}

impl Number {
    fn difference(&self) -> u64 {
        self.expected.abs_diff(self.answered)
    }
}

impl Exactness {
    pub fn violation(&self) -> Option<String> {
        if self.seconds.is_some() {
            return None;
        }
        let wrong = self.numbers.iter().filter(|number| number.difference() > 0);
        let named =
            |number: &Number| format!("{} is {}, not {}", number.of, number.answered, number.expected);
        let wrong: Vec<String> = wrong.map(named).collect();
        let refreshed = if self.refreshed == Some(true) { "right" } else { "wrong as well" };
        Some(format!("numbers stayed inexact: {}; measured on demand they are {refreshed}", wrong.join(", ")))
    }
}

impl fmt::Display for Exactness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = thousands(self.first_difference as f64);
        match self.seconds {
            Some(seconds) => {
                let ms = thousands(seconds * 1e3);
                write!(
                    f,
                    "Depths and total were exact {ms} ms after the last acknowledgement (first off by {first})."
                )
            }
            None => write!(f, "Depths and total did not become exact (first off by {first})."),
        }
    }
}

/// Polls until the depth of each group and the total of the queue equal the ledger.
pub async fn wait_until_exact(
    setup: &Setup,
    queue: &str,
    ledger: &Ledger,
    patience: Duration,
) -> Result<Exactness> {
    let mut client = setup.client();
    let started = Instant::now();
    let mut first_difference = None;
    loop {
        let numbers = ask(&mut client, queue, ledger).await?;
        let elapsed = started.elapsed();
        let off = difference(&numbers);
        let first_difference = *first_difference.get_or_insert(off);
        if off == 0 {
            let seconds = Some(elapsed.as_secs_f64());
            return Ok(Exactness { seconds, numbers, refreshed: None, first_difference });
        }
        if elapsed > patience {
            load::refresh(setup).await?;
            let refreshed = Some(difference(&ask(&mut client, queue, ledger).await?) == 0);
            return Ok(Exactness { seconds: None, numbers, refreshed, first_difference });
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn difference(numbers: &[Number]) -> u64 {
    numbers.iter().map(Number::difference).max().unwrap_or_default()
}

async fn ask(client: &mut Client, queue: &str, ledger: &Ledger) -> Result<Vec<Number>> {
    #[derive(Deserialize)]
    struct Depth {
        pending: u64,
    }
    #[derive(Deserialize)]
    struct Detail {
        totals: Totals,
    }
    #[derive(Deserialize)]
    struct Totals {
        total: u64,
    }
    let mut numbers = Vec::new();
    for (group, expected) in ledger.pending() {
        let depth: Depth =
            get(client, &format!("/api/v1/resources/queues/{queue}/depth?group={group}")).await?;
        numbers.push(Number { of: format!("the depth of {group}"), expected, answered: depth.pending });
    }
    let detail: Detail = get(client, &format!("/api/v1/resources/queues/{queue}?limit=1")).await?;
    numbers.push(Number {
        of: "the total".to_owned(),
        expected: ledger.pushed(),
        answered: detail.totals.total,
    });
    Ok(numbers)
}

async fn get<T: DeserializeOwned>(client: &mut Client, path: &str) -> Result<T> {
    let reply = client.get(path).await?;
    expect_status(path, &reply, 200)?;
    Ok(serde_json::from_slice(&reply.body)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_stays_wrong_is_named() {
        let number = |of: &str, answered| Number { of: of.to_owned(), expected: 100, answered };
        let numbers = vec![number("the depth of first", 100), number("the depth of second", 97)];
        let wrong = Exactness { seconds: None, numbers, refreshed: Some(true), first_difference: 5 };
        let text = wrong.violation().unwrap();
        assert!(
            text.contains("the depth of second is 97, not 100") && text.ends_with("they are right"),
            "{text}"
        );
        assert!(!text.contains("first"), "{text}");
        assert_eq!(Exactness { seconds: Some(0.1), ..wrong }.violation(), None);
    }
}
