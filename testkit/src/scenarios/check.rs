//! Checks all files of `clients/scenarios`: that they parse as the types of `format.rs`, and rules that types cannot express.

use std::collections::HashSet;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::faults::Armed;
use super::format::{
    Ack, Buffer, Configure, Consume, Expect, Letters, Long, Nothing, Pop, Position, Push, Record, Renew,
    Scenario, Time, Transaction, Which,
};

const KINDS: &str = "bad_use bad_request unauthorized forbidden not_found conflict rate_limited unavailable server network timeout \
    refused rolled_back outcome_unknown operation_failed buffer_full closed decode";

/// Expectations that every verb accepts.
const ANY: &str = "tookAtLeastMs tookAtMostMs error";

/// Checks a verb's fields and returns the expectations that apply to it.
fn check_verb(verb: &str, fields: &Value) -> Result<&'static str, String> {
    match verb {
        "configure" => read::<Configure>(fields).map(|_| ""),
        "push" => {
            check_messages(&read::<Push>(fields)?.messages)?;
            Ok("statuses operation")
        }
        "buffer" => {
            let buffer = read::<Buffer>(fields)?;
            check_messages(&buffer.messages)?;
            match buffer.after_close.is_empty() || buffer.close {
                true => Ok("statuses"),
                false => Err("afterClose needs close".to_owned()),
            }
        }
        "pop" => {
            let pop = read::<Pop>(fields)?;
            check_source(pop.queue.as_ref(), &pop.namespace, &pop.task)?;
            match pop.lease.is_some_and(|lease| lease.0 % 1_000 > 0) {
                true => Err("a lease must be whole seconds".to_owned()),
                false => Ok("data dataUnordered count partitions traceparents"),
            }
        }
        "consume" => {
            let consume = read::<Consume>(fields)?;
            check_source(consume.queue.as_ref(), &consume.namespace, &consume.task)?;
            Ok("data dataUnordered count handled failed batches leaseLost errorsToldAtLeast stopTookAtMostMs")
        }
        "ack" => read::<Ack>(fields).map(|_| "success"),
        "renew" => read::<Renew>(fields).map(|_| ""),
        "transaction" => match read::<Transaction>(fields)?.commits {
            Some(0) => Err("a transaction must be committed at least once".to_owned()),
            _ => Ok(""),
        },
        "deadLetters" => read::<Letters>(fields).map(|_| "data dataUnordered count errors"),
        "redrive" | "purge" => read::<Letters>(fields).map(|_| "count"),
        "seek" => match read::<Position>(fields)?.to {
            Some(_) => Ok(""),
            None => Err("a seek needs a position".to_owned()),
        },
        "depth" => read::<Position>(fields).map(|_| "depth"),
        "close" => read::<Nothing>(fields).map(|_| ""),
        "sleep" => read::<Time>(fields).map(|_| ""),
        "fault" => read::<Armed>(fields).map(|_| ""),
        "kill" | "start" => read::<Which>(fields).map(|_| ""),
        "record" => read::<Record>(fields).map(|_| {
            "count countAtLeast countAtMost statuses sameTransactionIds itemsAtMost gapAtLeastMs gapAtMostMs \
             brokersUsed authorization"
        }),
        _ => Err("unknown verb".to_owned()),
    }
}

fn check_step(step: &Map<String, Value>, saved: &mut HashSet<String>) -> Result<(), String> {
    let mut verbs = step.keys().filter(|key| *key != "expect" && *key != "save");
    let (Some(verb), None) = (verbs.next(), verbs.next()) else {
        return Err("a step needs exactly one verb".to_owned());
    };
    let fields = &step[verb];
    if verb == "parallel" {
        let branches: Vec<Vec<Map<String, Value>>> = read(fields)?;
        return branches.iter().flatten().try_for_each(|step| check_step(step, saved));
    }
    let about = |why: String| format!("{why} in {}", Value::Object(step.clone()));
    let allowed = check_verb(verb, fields).map_err(about)?;
    if let Some(expect) = step.get("expect") {
        let read = read::<Expect>(expect).map_err(about)?;
        let kind = read.error.as_ref().and_then(|error| error.kind.as_deref());
        if let Some(kind) = kind.filter(|kind| !KINDS.split(' ').any(|known| known == *kind)) {
            return Err(about(format!("unknown error kind {kind:?}")));
        }
        let names = expect.as_object().into_iter().flat_map(Map::keys);
        let mut strange =
            names.filter(|name| !allowed.split(' ').chain(ANY.split(' ')).any(|word| word == *name));
        if let Some(name) = strange.next() {
            return Err(about(format!("{name} does not apply to {verb}")));
        }
    }
    let mut used: Vec<&Value> = vec![&fields["messages"]];
    if verb == "transaction" {
        let acks = fields["ack"].as_array().into_iter().flatten();
        used = acks.map(|ack| if ack.is_string() { ack } else { &ack["messages"] }).collect();
    }
    for name in used.iter().filter_map(|name| name.as_str()) {
        if !saved.contains(name) {
            return Err(about(format!("nothing was saved as {name:?}")));
        }
    }
    match (step.get("save"), verb.as_str()) {
        (Some(Value::String(name)), "pop") => drop(saved.insert(name.clone())),
        (Some(_), _) => return Err(about("only popped messages can be saved".to_owned())),
        (None, _) => {}
    }
    Ok(())
}

fn check_messages(messages: &[Value]) -> Result<(), String> {
    let long = messages.iter().filter(|message| message.get("payload").is_some());
    long.map(read::<Long>).try_for_each(|message| message.map(drop))
}

fn check_source(
    queue: Option<&String>,
    namespace: &Option<String>,
    task: &Option<String>,
) -> Result<(), String> {
    match queue.is_some() != (namespace.is_some() || task.is_some()) {
        true => Ok(()),
        false => Err("needs a queue or labels".to_owned()),
    }
}

fn read<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    T::deserialize(value).map_err(|error| error.to_string())
}

fn check(text: &str) -> Result<Vec<String>, String> {
    let scenarios: Vec<Scenario> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    for scenario in &scenarios {
        let mut saved = HashSet::new();
        if scenario.steps.is_empty() || !matches!(scenario.urls, None | Some(1 | 2)) {
            return Err(format!("{}: no steps, or a wrong number of urls", scenario.name));
        }
        for step in &scenario.steps {
            check_step(step, &mut saved).map_err(|why| format!("{}: {why}", scenario.name))?;
        }
    }
    Ok(scenarios.into_iter().map(|scenario| scenario.name).collect())
}

#[test]
fn every_scenario_says_only_what_a_runner_understands() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../clients/scenarios");
    let files = std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    let mut names = Vec::new();
    for file in files.filter(|file| file.extension().is_some_and(|ext| ext == "json")) {
        let text = std::fs::read_to_string(&file).unwrap();
        names.extend(check(&text).unwrap_or_else(|why| panic!("{}: {why}", file.display())));
    }
    let distinct: HashSet<&String> = names.iter().collect();
    assert_eq!(distinct.len(), names.len(), "names must be unique");
    assert!(names.len() >= 50, "{} scenarios", names.len());
}

#[test]
fn what_no_runner_would_understand_is_noticed() {
    let step = |text: &str| check(&format!(r#"[{{"name": "n", "steps": [{text}]}}]"#));
    assert!(
        step(r#"{"push": {"queue": "$q", "messages": [{"n": 1}]}, "expect": {"statuses": ["queued"]}}"#)
            .is_ok()
    );
    for bad in [
        r#"{"shove": {"queue": "$q"}}"#,
        r#"{"push": {"queue": "$q", "messages": [1], "group": "g"}}"#,
        r#"{"push": {"queue": "$q", "messages": [1]}, "expect": {"depth": 1}}"#,
        r#"{"push": {"queue": "$q", "messages": [1]}, "expect": {"status": 1}}"#,
        r#"{"push": {"queue": "$q", "messages": [1]}, "expect": {"error": {"kind": "odd"}}}"#,
        r#"{"push": {"queue": "$q", "messages": [{"payload": 1, "id": "x"}]}}"#,
        r#"{"push": {"queue": "$q", "messages": [1], "deadline": "1 s"}}"#,
        r#"{"push": {"queue": "$q", "messages": [1]}, "pop": {"queue": "$q"}}"#,
        r#"{"ack": {"messages": "never", "status": "completed"}}"#,
        r#"{"transaction": {"ack": ["never"]}}"#,
        r#"{"transaction": {"push": [{"queue": "$q", "payload": 1}], "commits": 0}}"#,
        r#"{"pop": {"partition": "p"}}"#,
        r#"{"pop": {"queue": "$q", "lease": "100ms"}}"#,
        r#"{"consume": {"queue": "$q", "mode": "each", "handler": {"do": "sleep"}}}"#,
        r#"{"fault": {"path": "/", "fault": {"explode": true}}}"#,
        r#"{"parallel": [[{"sleep": "soon"}]]}"#,
    ] {
        assert!(step(bad).is_err(), "{bad}");
    }
    assert!(check(r#"[{"name": "n", "client": {"retries": 3}, "steps": [{"sleep": "1s"}]}]"#).is_err());
}
