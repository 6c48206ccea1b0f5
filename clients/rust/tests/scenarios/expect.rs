//! Compares the expectations of a step with what it has observed.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::Seen;
use crate::fields::Fields;

pub fn check(expect: Option<Value>, mut seen: Seen) -> Result<()> {
    let expect = expect.unwrap_or(json!({}));
    let Value::Object(expect) = expect else { bail!("an expectation is an object") };
    let error = seen.error.take();
    match (error, expect.get("error")) {
        (None, None) => {}
        (Some(error), None) => bail!("it failed: {error}"),
        (None, Some(expected)) => bail!("it did not fail, but should with {expected}"),
        (Some(error), Some(expected)) => check_error(expected, &error)?,
    }
    for (key, expected) in expect.iter().filter(|(key, _)| *key != "error") {
        check_one(key, expected, &seen).with_context(|| format!("expected {key} {expected}"))?;
    }
    Ok(())
}

fn check_error(expected: &Value, error: &queen_client::Error) -> Result<()> {
    let mut fields = Fields::new(expected.clone())?;
    let is = |what: &str, good: bool| {
        ensure!(good, "{what} is wrong: expected {expected}, got {error:?}");
        Ok(())
    };
    if let Some(kind) = fields.text("kind")? {
        is("kind", error.kind().word() == kind)?;
    }
    if let Some(status) = fields.number("status")? {
        is("status", error.status().map(u64::from) == Some(status))?;
    }
    if let Some(text) = fields.text("contains")? {
        is("text", error.text().contains(&text))?;
    }
    if let Some(attempts) = fields.number("attempts")? {
        is("attempts", u64::from(error.attempts()) == attempts)?;
    }
    if let Some(attempts) = fields.number("attemptsAtLeast")? {
        is("attempts", u64::from(error.attempts()) >= attempts)?;
    }
    if let Some(count) = fields.number("undelivered")? {
        is("undelivered", error.undelivered().len() as u64 == count)?;
    }
    if let Some(statuses) = fields.take("statuses") {
        let words: Vec<_> = error.results().iter().map(|result| result.status.word()).collect();
        is("statuses", json!(words) == statuses)?;
    }
    fields.finish()
}

fn check_one(key: &str, expected: &Value, seen: &Seen) -> Result<()> {
    let value = |name: &str| seen.values.get(name).with_context(|| format!("this verb shows no {name}"));
    let number = |name: &str| value(name)?.as_u64().with_context(|| format!("there is no {name}"));
    let bound = || expected.as_u64().context("a bound is a number");
    let requests = || value("requests")?.as_array().context("requests are a list");
    match key {
        "statuses" | "data" | "count" | "traceparents" | "errors" | "success" | "handled" | "failed"
        | "batches" | "leaseLost" | "depth" | "authorization" => same(expected, value(key)?),
        "operation" => {
            let operations = value("operations")?.as_array().context("a list")?;
            let all = operations.iter().all(|operation| operation == expected);
            ensure!(all && !operations.is_empty(), "got {operations:?}");
            Ok(())
        }
        "dataUnordered" => same(&sorted(expected)?, &sorted(value("data")?)?),
        "partitions" => {
            let set =
                |value: &Value| -> Result<BTreeSet<String>> { Ok(serde_json::from_value(value.clone())?) };
            ensure!(set(expected)? == set(value("partitions")?)?, "got {}", value("partitions")?);
            Ok(())
        }
        "errorsToldAtLeast" => at_least(number("errorsTold")?, bound()?),
        "stopTookAtMostMs" => at_most(number("stopTookMs")?, bound()?),
        "tookAtLeastMs" => at_least(number("tookMs")?, bound()?),
        "tookAtMostMs" => at_most(number("tookMs")?, bound()?),
        "countAtLeast" => at_least(number("count")?, bound()?),
        "countAtMost" => at_most(number("count")?, bound()?),
        "itemsAtMost" => {
            let bound = bound()?;
            requests()?
                .iter()
                .try_for_each(|request| at_most(request["items"].as_u64().context("items")?, bound))
        }
        "brokersUsed" => {
            let brokers: BTreeSet<_> =
                requests()?.iter().map(|request| request["broker"].to_string()).collect();
            same(expected, &json!(brokers.len()))
        }
        "sameTransactionIds" => {
            let ids: BTreeSet<_> =
                requests()?.iter().map(|request| request["transactionIds"].to_string()).collect();
            let any = requests()?.iter().all(|request| request["transactionIds"][0].is_string());
            same(expected, &json!(ids.len() == 1 && any))
        }
        "gapAtLeastMs" | "gapAtMostMs" => {
            let times: Option<Vec<u64>> =
                requests()?.iter().map(|request| request["atMs"].as_u64()).collect();
            let gaps: Vec<u64> = times.context("times")?.windows(2).map(|two| two[1] - two[0]).collect();
            let bounds: Vec<u64> = serde_json::from_value(expected.clone())?;
            ensure!(bounds.len() <= gaps.len(), "only {} gaps", gaps.len());
            let test = if key == "gapAtLeastMs" { at_least } else { at_most };
            gaps.into_iter().zip(bounds).try_for_each(|(gap, bound)| test(gap, bound))
        }
        other => bail!("unknown expectation {other:?}"),
    }
}

fn same(expected: &Value, got: &Value) -> Result<()> {
    ensure!(expected == got, "got {got}");
    Ok(())
}

fn at_least(got: u64, bound: u64) -> Result<()> {
    ensure!(got >= bound, "got {got}");
    Ok(())
}

fn at_most(got: u64, bound: u64) -> Result<()> {
    ensure!(got <= bound, "got {got}");
    Ok(())
}

fn sorted(value: &Value) -> Result<Value> {
    let mut list = value.as_array().context("a list")?.clone();
    list.sort_by_key(ToString::to_string);
    Ok(Value::Array(list))
}
