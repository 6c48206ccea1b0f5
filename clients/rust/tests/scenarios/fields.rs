//! Reads the fields of an object one by one. Fields left over are unknown, which is an error.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

pub struct Fields(Map<String, Value>);

impl Fields {
    pub fn new(value: Value) -> Result<Self> {
        match value {
            Value::Object(map) => Ok(Self(map)),
            other => bail!("not an object: {other}"),
        }
    }

    pub fn take(&mut self, key: &str) -> Option<Value> {
        self.0.remove(key)
    }

    pub fn text(&mut self, key: &str) -> Result<Option<String>> {
        let text =
            |value: Value| value.as_str().map(str::to_owned).with_context(|| format!("{key} is a text"));
        self.take(key).map(text).transpose()
    }

    pub fn need(&mut self, key: &str) -> Result<String> {
        self.text(key)?.with_context(|| format!("{key} is missing"))
    }

    pub fn number(&mut self, key: &str) -> Result<Option<u64>> {
        let number = |value: Value| value.as_u64().with_context(|| format!("{key} is a number"));
        self.take(key).map(number).transpose()
    }

    pub fn flag(&mut self, key: &str) -> Result<Option<bool>> {
        let flag = |value: Value| value.as_bool().with_context(|| format!("{key} is true or false"));
        self.take(key).map(flag).transpose()
    }

    pub fn duration(&mut self, key: &str) -> Result<Option<Duration>> {
        self.take(key).map(|value| duration(&value).with_context(|| key.to_owned())).transpose()
    }

    pub fn list(&mut self, key: &str) -> Result<Vec<Value>> {
        match self.take(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => Ok(list),
            Some(other) => bail!("{key} is a list and not {other}"),
        }
    }

    /// All fields that are left, for a caller that handles them itself.
    pub fn rest(self) -> Value {
        Value::Object(self.0)
    }

    /// The only remaining field.
    pub fn only(self) -> Result<(String, Value)> {
        ensure!(self.0.len() == 1, "one verb, and not {:?}", self.0.keys().collect::<Vec<_>>());
        self.0.into_iter().next().context("one verb")
    }

    pub fn finish(self) -> Result<()> {
        ensure!(self.0.is_empty(), "not known here: {:?}", self.0.keys().collect::<Vec<_>>());
        Ok(())
    }
}

/// `5s` or `100ms`
pub fn duration(value: &Value) -> Result<Duration> {
    let text = value.as_str().with_context(|| format!("a duration is a text and not {value}"))?;
    if let Some(number) = text.strip_suffix("ms") {
        return Ok(Duration::from_millis(number.parse()?));
    }
    let number = text.strip_suffix('s').with_context(|| format!("{text:?} is no duration"))?;
    Ok(Duration::from_secs(number.parse()?))
}
