//! `POST /api/v1/configure`: a queue's options, and how a request changes them.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{BadRequest, check_name, check_new_name};

macro_rules! options {
    ($($(#[$doc:meta])* $field:ident: $kind:ty = $default:expr, $wire:literal;)*) => {
        /// Every option of a queue with its value in force. Seconds unless the name says otherwise.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize)]
        pub struct QueueOptions { $($(#[$doc])* #[serde(rename = $wire)] pub $field: $kind,)* }

        impl Default for QueueOptions {
            fn default() -> Self { Self { $($field: $default,)* } }
        }

        const NAMES: &[&str] = &[$($wire),*];

        impl QueueOptions {
            /// Merges: an absent key stays, `null` returns to the default, anything else must have the right type.
            pub fn merge(&mut self, changes: &Map<String, Value>) -> Result<(), BadRequest> {
                $(match changes.get($wire) {
                    None => {}
                    Some(Value::Null) => self.$field = $default,
                    Some(value) => self.$field = <$kind as OptionValue>::read($wire, value)?,
                })*
                Ok(())
            }
        }
    };
}

options! {
    lease_time: i32 = 300, "leaseTime";
    retry_limit: i32 = 3, "retryLimit";
    /// Milliseconds. Stored and echoed; a nacked batch is available at once.
    retry_delay: i32 = 1000, "retryDelay";
    /// Stored and echoed only.
    ttl: i32 = 3600, "ttl";
    /// Cap on messages pending in queue mode; 0 = none.
    max_size: i64 = 0, "maxSize";
    priority: i32 = 0, "priority";
    delayed_processing: i32 = 0, "delayedProcessing";
    window_buffer: i32 = 0, "windowBuffer";
    dead_letter_queue: bool = true, "deadLetterQueue";
    dlq_after_max_retries: bool = true, "dlqAfterMaxRetries";
    retention_enabled: bool = false, "retentionEnabled";
    retention_seconds: i32 = 0, "retentionSeconds";
    completed_retention_seconds: i32 = 0, "completedRetentionSeconds";
    max_wait_time_seconds: i32 = 0, "maxWaitTimeSeconds";
    encryption_enabled: bool = false, "encryptionEnabled";
    dedup_window_seconds: i32 = 3600, "dedupWindowSeconds";
    /// Milliseconds, brought into the range from 0 to `MIN_POP_WAIT_TIME_MAX`.
    min_pop_wait_time: i32 = 0, "minPopWaitTime";
}

/// They may stand among the options.
const LABELS: [&str; 2] = ["namespace", "task"];

/// Whether there is such an option. The error names one that is nearly the same.
pub fn check_option(name: &str) -> Result<(), BadRequest> {
    if NAMES.contains(&name) || LABELS.contains(&name) {
        return Ok(());
    }
    Err(BadRequest(match nearest(name, NAMES.iter().chain(&LABELS).copied()) {
        Some(nearest) => format!("unknown option {name:?}; the nearest there is: {nearest:?}"),
        None => format!("unknown option {name:?}"),
    }))
}

/// The known name with the least edits between the two, if they are few, no matter how it is capitalized and what joins its words.
pub fn nearest<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let letters = |text: &str| -> Vec<char> {
        text.chars()
            .filter(|c| c.is_alphanumeric())
            .take(NAME_CHARS_MAX)
            .flat_map(char::to_lowercase)
            .collect()
    };
    let unknown = letters(unknown);
    let distances = known.into_iter().map(|name| (edits(&unknown, &letters(name)), name));
    let (edits, nearest) = distances.min_by_key(|(edits, _)| *edits)?;
    // Further away it is another word, unless this is its beginning.
    (3 * edits <= unknown.len() || letters(nearest).starts_with(&unknown)).then_some(nearest)
}

/// Longer than any option or setting.
const NAME_CHARS_MAX: usize = 64;

fn edits(one: &[char], other: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, a) in one.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (to, b) in other.iter().enumerate() {
            let changed = diagonal + usize::from(a != b);
            diagonal = row[to + 1];
            row[to + 1] = changed.min(diagonal + 1).min(row[to] + 1);
        }
    }
    row[other.len()]
}

trait OptionValue: Sized {
    fn read(name: &str, value: &Value) -> Result<Self, BadRequest>;
}

impl OptionValue for bool {
    fn read(name: &str, value: &Value) -> Result<Self, BadRequest> {
        value.as_bool().ok_or_else(|| BadRequest(format!("option {name} must be true or false")))
    }
}

const MIN_POP_WAIT_TIME_MAX: i64 = 60_000;

/// JavaScript clients may send 60.0 for 60.
fn whole(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        value.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 9e15).map(|float| float as i64)
    })
}

impl OptionValue for i64 {
    fn read(name: &str, value: &Value) -> Result<Self, BadRequest> {
        match whole(value) {
            Some(number) if number >= 0 => Ok(number),
            _ => Err(BadRequest(format!("option {name} must be a whole number, 0 or more"))),
        }
    }
}

impl OptionValue for i32 {
    fn read(name: &str, value: &Value) -> Result<Self, BadRequest> {
        if name == "priority"
            && let Some(number) = value.as_i64()
        {
            return Self::try_from(number).map_err(|_| BadRequest(format!("option {name} is out of range")));
        }
        if name == "minPopWaitTime"
            && let Some(number) = whole(value)
        {
            return Ok(number.clamp(0, MIN_POP_WAIT_TIME_MAX) as Self);
        }
        let number = i64::read(name, value)?;
        Self::try_from(number).map_err(|_| BadRequest(format!("option {name} is out of range")))
    }
}

#[derive(Debug, Clone)]
pub struct Configure {
    pub queue: String,
    /// `None` leaves what is stored.
    pub namespace: Option<String>,
    pub task: Option<String>,
    pub changes: Map<String, Value>,
    /// Start from the defaults instead of from what is stored.
    pub replace: bool,
}

impl Configure {
    pub fn parse(body: &[u8]) -> Result<Self, BadRequest> {
        let Value::Object(mut body) = serde_json::from_slice(body)? else {
            return Err(BadRequest::new("the body must be an object"));
        };
        let Some(Value::String(queue)) = body.remove("queue") else {
            return Err(BadRequest::new("queue must be a string"));
        };
        check_new_name("queue", &queue)?;
        let replace = body.remove("mode").as_ref().and_then(Value::as_str) == Some("replace");
        let mut changes = match body.remove("options") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(options)) => options,
            Some(_) => return Err(BadRequest::new("options must be an object")),
        };
        let namespace = Self::label("namespace", &body, &changes)?;
        let task = Self::label("task", &body, &changes)?;
        for (key, value) in body {
            changes.entry(key).or_insert(value);
        }
        changes.retain(|key, _| !LABELS.contains(&key.as_str()));
        changes.keys().try_for_each(|key| check_option(key))?;
        QueueOptions::default().merge(&changes)?;
        Ok(Self { queue, namespace, task, changes, replace })
    }

    fn label(
        name: &str,
        body: &Map<String, Value>,
        options: &Map<String, Value>,
    ) -> Result<Option<String>, BadRequest> {
        match body.get(name).filter(|value| !value.is_null()).or_else(|| options.get(name)) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(label)) => check_name(name, label).map(|()| Some(label.clone())),
            Some(_) => Err(BadRequest(format!("{name} must be a string"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_stays_null_resets_and_a_wrong_type_is_refused() {
        let mut options = QueueOptions { lease_time: 7, retry_limit: 9, ..QueueOptions::default() };
        let configure =
            Configure::parse(br#"{"queue":"","options":{"retryLimit":null,"ttl":36},"priority":-2}"#)
                .unwrap();
        options.merge(&configure.changes).unwrap();
        assert_eq!((options.lease_time, options.retry_limit, options.ttl, options.priority), (7, 3, 36, -2));
        for (sent, kept) in [("-1", 0), ("-1e12", 0), ("60001", 60_000), ("1e12", 60_000), ("7.0", 7)] {
            let body = format!(r#"{{"queue":"q","minPopWaitTime":{sent}}}"#);
            options.merge(&Configure::parse(body.as_bytes()).unwrap().changes).unwrap();
            assert_eq!(options.min_pop_wait_time, kept, "{sent}");
        }
        for body in [
            r#"{"queue":"q","options":{"leaseTime":"long"}}"#,
            r#"{"queue":"q","options":{"leaseTime":-1}}"#,
            r#"{"queue":"q","options":{"leaseTime":1e12}}"#,
            r#"{"queue":"q","options":{"minPopWaitTime":0.5}}"#,
            r#"{"queue":"q","options":{"retentionEnabled":1}}"#,
            r#"{"queue":null}"#,
            r#"{"queue":"q","namespace":5}"#,
            r#"{"queue":".."}"#,
            r#"{"queue":"q","a\u0000":1}"#,
            r#"[]"#,
        ] {
            assert!(Configure::parse(body.as_bytes()).is_err(), "{body}");
        }
    }

    #[test]
    fn an_unknown_option_is_refused_with_the_nearest_known_one() {
        for (body, unknown, near) in [
            (r#"{"queue":"q","options":{"leasetime":60}}"#, "leasetime", "leaseTime"),
            (r#"{"queue":"q","options":{"lease_time":60}}"#, "lease_time", "leaseTime"),
            (r#"{"queue":"q","retentionSecond":60}"#, "retentionSecond", "retentionSeconds"),
            (r#"{"queue":"q","options":{"encryption":true}}"#, "encryption", "encryptionEnabled"),
            (r#"{"queue":"q","name_space":"n"}"#, "name_space", "namespace"),
        ] {
            let BadRequest(text) = Configure::parse(body.as_bytes()).unwrap_err();
            assert_eq!(text, format!("unknown option {unknown:?}; the nearest there is: {near:?}"));
        }
    }

    #[test]
    fn all_that_published_clients_send_is_known() {
        let body = br#"{"queue":"q","namespace":null,"task":null,"mode":"replace","options":{"leaseTime":300,"retryLimit":3,
            "retryDelay":1000,"ttl":36,"maxSize":1000,"priority":0,"delayedProcessing":0,"windowBuffer":100,
            "deadLetterQueue":true,"dlqAfterMaxRetries":true,"retentionEnabled":false,"retentionSeconds":0,
            "completedRetentionSeconds":0,"maxWaitTimeSeconds":0,"encryptionEnabled":false,"dedupWindowSeconds":3600,
            "minPopWaitTime":0,"namespace":"n","task":"t"}}"#;
        let configure = Configure::parse(body).unwrap();
        assert_eq!((configure.changes.len(), configure.namespace.as_deref()), (17, Some("n")));
        assert!(configure.replace);
    }
}
