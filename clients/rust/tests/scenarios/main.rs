//! The scenario suite of all clients (`clients/scenarios`), performed with this one.
//!
//! `queen-testkit scenarios -- COMMAND` sets up the environment. Without it, the test starts itself within one.
//! `QUEEN_SCENARIOS_ONLY` runs only scenarios whose name contains this text.

mod consume;
mod control;
mod expect;
mod fields;
mod verbs;

use std::collections::HashMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::Command;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail, ensure};
use queen_client::{Message, Queen, QueuedOperation};
use serde_json::{Map, Value};
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

use control::Control;
use fields::{Fields, duration};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_behaves_as_all_clients_do() {
    let outcome = match std::env::var_os("QUEEN_SCENARIOS_CONTROL") {
        Some(_) => all().await,
        None => around(),
    };
    outcome.unwrap_or_else(|error| panic!("{error:#}"));
}

/// Starts the environment with this program in it.
fn around() -> Result<()> {
    let own = std::env::current_exe()?;
    let beside = own.ancestors().nth(2).context("a test is in target/debug/deps")?.join("queen-testkit");
    let harness = std::env::var_os("QUEEN_TESTKIT").map_or(beside, PathBuf::from);
    ensure!(harness.exists(), "{} is missing: cargo build --workspace", harness.display());
    let mut command = Command::new(harness);
    command.args(["scenarios", "--"]).arg(own).args([
        "--exact",
        "the_client_behaves_as_all_clients_do",
        "--nocapture",
    ]);
    let status = command.status()?;
    ensure!(status.success(), "the suite ended with {status}");
    Ok(())
}

async fn all() -> Result<()> {
    let variable = |name| std::env::var(name).with_context(|| format!("{name} is missing"));
    let urls: Vec<String> = variable("QUEEN_SCENARIOS_URLS")?.split(',').map(str::to_owned).collect();
    let control = Control::new(&variable("QUEEN_SCENARIOS_CONTROL")?);
    let only = variable("QUEEN_SCENARIOS_ONLY").unwrap_or_default();
    let mut files: Vec<PathBuf> = std::fs::read_dir(variable("QUEEN_SCENARIOS_DIR")?)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    let (mut count, mut failures) = (0, Vec::new());
    for file in files {
        let scenarios: Vec<Value> = serde_json::from_slice(&std::fs::read(&file)?)?;
        for scenario in scenarios {
            let name = scenario["name"].as_str().context("a scenario has a name")?.to_owned();
            if !name.contains(&only) {
                continue;
            }
            count += 1;
            let began = now();
            let outcome = perform(&control, &urls, scenario).await;
            let word = if outcome.is_ok() { "ok" } else { "FAILED" };
            eprintln!("{word:>6} {:>5} ms  {name}", began.elapsed().as_millis());
            failures.extend(outcome.err().map(|error| format!("{name}: {error:#}")));
        }
    }
    ensure!(count > 0, "there is no such scenario");
    ensure!(failures.is_empty(), "{} of {count} failed:\n{}", failures.len(), failures.join("\n"));
    eprintln!("all {count} scenarios passed");
    Ok(())
}

async fn perform(control: &Control, urls: &[String], scenario: Value) -> Result<()> {
    let mut scenario = Fields::new(scenario)?;
    scenario.take("name");
    let count = scenario.number("urls")?.unwrap_or(1);
    let options = Fields::new(scenario.take("client").unwrap_or(Value::Object(Map::new())))?;
    let steps = scenario.take("steps").context("a scenario has steps")?;
    scenario.finish()?;
    control.post("/reset", &Value::Null).await?;
    let queen = client(&urls[..usize::try_from(count)?], options)?;
    let world = World {
        queen: queen.clone(),
        control: control.clone(),
        names: Mutex::default(),
        saved: Mutex::default(),
    };
    let outcome = run(Arc::new(world), steps).await;
    queen.close();
    outcome
}

fn client(urls: &[String], mut options: Fields) -> Result<Queen> {
    let mut builder = Queen::builder().urls(urls);
    if let Some(token) = options.text("token")? {
        builder = builder.token(token);
    }
    if let Some(time) = options.duration("requestTimeout")? {
        builder = builder.request_timeout(time);
    }
    if let Some(time) = options.duration("deadline")? {
        builder = builder.deadline(time);
    }
    if let Some(time) = options.duration("retryDelay")? {
        builder = builder.retry_delay(time);
    }
    if let Some(time) = options.duration("maxRetryDelay")? {
        builder = builder.max_retry_delay(time);
    }
    if let Some(retry) = options.flag("retryOn429")? {
        builder = builder.retry_on_429(retry);
    }
    if let Some(honor) = options.flag("honorRetryAfter")? {
        builder = builder.honor_retry_after(honor);
    }
    match options.text("queuedOperationBehavior")?.as_deref() {
        None => {}
        Some("return") => builder = builder.queued_operation_behavior(QueuedOperation::Return),
        Some("poll") => builder = builder.queued_operation_behavior(QueuedOperation::Poll),
        Some(other) => bail!("unknown behaviour {other:?}"),
    }
    options.finish()?;
    Ok(builder.build()?)
}

/// State shared by the steps of a scenario.
pub struct World {
    queen: Queen,
    control: Control,
    names: Mutex<HashMap<String, String>>,
    saved: Mutex<HashMap<String, Vec<Message<Value>>>>,
}

impl World {
    pub fn saved(&self, name: &str) -> Result<Vec<Message<Value>>> {
        let saved = self.saved.lock().expect("nobody panics here");
        saved.get(name).cloned().with_context(|| format!("nothing is saved as {name:?}"))
    }

    /// Replaces `$word` in any text with a unique name.
    fn named(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.name(&text)),
            Value::Array(list) => list.into_iter().map(|value| self.named(value)).collect(),
            Value::Object(map) => map.into_iter().map(|(key, value)| (key, self.named(value))).collect(),
            other => other,
        }
    }

    fn name(&self, text: &str) -> String {
        let mut parts = text.split('$');
        let mut named = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(part.len());
            let (word, rest) = part.split_at(end);
            if word.is_empty() {
                named.push('$');
            } else {
                let mut names = self.names.lock().expect("nobody panics here");
                let fresh = || format!("{word}-{}", &Uuid::now_v7().simple().to_string()[24..]);
                named.push_str(names.entry(word.to_owned()).or_insert_with(fresh));
            }
            named.push_str(rest);
        }
        named
    }
}

/// Boxed, because steps may contain steps.
fn run(world: Arc<World>, steps: Value) -> Pin<Box<dyn Future<Output = Result<()>> + Send>> {
    Box::pin(async move {
        let Value::Array(steps) = steps else { bail!("steps are a list") };
        for (number, step) in (1..).zip(steps) {
            let mut step = Fields::new(world.named(step))?;
            if let Some(lists) = step.take("parallel") {
                step.finish()?;
                parallel(&world, lists).await.with_context(|| format!("step {number}"))?;
                continue;
            }
            let (expect, save) = (step.take("expect"), step.text("save")?);
            let (verb, fields) = step.only()?;
            let performed = perform_step(&world, &verb, fields, expect, save).await;
            performed.with_context(|| format!("step {number}, {verb}"))?;
        }
        Ok(())
    })
}

async fn parallel(world: &Arc<World>, lists: Value) -> Result<()> {
    let Value::Array(lists) = lists else { bail!("parallel is a list of lists") };
    let mut running: JoinSet<_> = lists.into_iter().map(|list| run(world.clone(), list)).collect();
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(())
}

async fn perform_step(
    world: &World,
    verb: &str,
    fields: Value,
    expect: Option<Value>,
    save: Option<String>,
) -> Result<()> {
    let began = now();
    if verb == "sleep" {
        tokio::time::sleep(duration(&fields)?).await;
        return expect::check(expect, Seen::default());
    }
    let mut seen = verbs::perform(world, verb, Fields::new(fields)?).await?;
    seen.values.insert("tookMs".to_owned(), u64::try_from(began.elapsed().as_millis())?.into());
    if let Some(name) = save {
        let messages = seen.messages.take().with_context(|| format!("{verb} has nothing to save"))?;
        world.saved.lock().expect("nobody panics here").insert(name, messages);
    }
    expect::check(expect, seen)
}

/// What a step has observed.
#[derive(Default)]
pub struct Seen {
    pub values: Map<String, Value>,
    pub messages: Option<Vec<Message<Value>>>,
    pub error: Option<queen_client::Error>,
}

impl Seen {
    pub fn new(values: Value) -> Self {
        let Value::Object(values) = values else { panic!("what is seen has names") };
        Self { values, ..Self::default() }
    }
}

impl From<queen_client::Error> for Seen {
    fn from(error: queen_client::Error) -> Self {
        Self { error: Some(error), ..Self::default() }
    }
}

#[expect(clippy::disallowed_methods, reason = "a suite measures")]
pub fn now() -> Instant {
    Instant::now()
}
