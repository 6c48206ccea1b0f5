//! The options of a queue, in one table that everything about them is made from or compared with.
//!
//! An entry is a column of `queen.queues` and a field of [`QueueOptions`]. Through [`OPTIONS`] it also is what the API
//! accepts and its OpenAPI document describes, the help of `queen queues configure`, the table in `docs/http-api.md`,
//! a field in the form of the dashboard, and a field in the types of all clients.
//!
//! To add an option: an entry here, a migration that adds its column, and the code that uses it. Then run `make docs`,
//! which writes the generated files.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::BadRequest;
use crate::nearest::nearest;

use Section::{DeadLetters, Delivery, NoEffect, Retention, Storage};
use Unit::{Count, Flag, Milliseconds, Seconds};

/// An option of a queue, as an entry of the table declares it.
#[derive(Debug, Clone, Serialize)]
pub struct QueueOption {
    /// Its name in the API: the column in camelCase.
    pub name: &'static str,
    /// Its name in SQL, Rust and Python.
    pub column: &'static str,
    /// Its name in the dashboard.
    pub label: &'static str,
    pub section: Section,
    pub unit: Unit,
    pub default: Value,
    pub min: i64,
    pub max: i64,
    /// Numbers out of range become the nearest that is in range. Otherwise they are refused.
    pub clamped: bool,
    pub meaning: &'static str,
    /// The first release that has it.
    pub since: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Section {
    Delivery,
    #[serde(rename = "Dead letters")]
    DeadLetters,
    Retention,
    Storage,
    #[serde(rename = "No effect")]
    NoEffect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    Flag,
    Count,
    Seconds,
    Milliseconds,
}

const FIRST_RELEASE: &str = "0.1.0";

macro_rules! options {
    ($(
        $(#[doc = $meaning:literal])+
        $column:ident: $kind:ty = $default:expr, $name:literal, $label:literal, $section:ident, $unit:ident
        $(, $key:ident: $value:expr)*;
    )*) => {
        /// The value of every option of a queue. It is read from a row of `queen.queues` and written as the API
        /// returns it.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        pub struct QueueOptions { $(
            $(#[doc = $meaning])+
            #[serde(rename(serialize = $name))]
            pub $column: $kind,
        )* }

        impl Default for QueueOptions {
            fn default() -> Self { Self { $($column: $default,)* } }
        }

        impl QueueOptions {
            /// Merges: an absent key stays, `null` returns to the default, anything else must have the right type.
            pub fn merge(&mut self, changes: &Map<String, Value>) -> Result<(), BadRequest> {
                for option in OPTIONS.iter() {
                    let Some(value) = changes.get(option.name) else { continue };
                    let value = if value.is_null() { &option.default } else { value };
                    match option.name {
                        $($name => self.$column = OptionValue::read(option, value)?,)*
                        _ => {}
                    }
                }
                Ok(())
            }

            pub fn get(&self, option: &QueueOption) -> Value {
                match option.name {
                    $($name => self.$column.into(),)*
                    _ => Value::Null,
                }
            }
        }

        /// The table.
        pub static OPTIONS: LazyLock<Vec<QueueOption>> = LazyLock::new(|| vec![$(
            QueueOption {
                label: $label,
                section: $section,
                unit: $unit,
                default: QueueOptions::default().$column.into(),
                $($key: $value,)*
                ..QueueOption::new::<$kind>($name, stringify!($column), concat!($($meaning),+))
            },
        )*]);
    };
}

// column: type = default, name, label, section, unit; where they are not the usual ones also min, max, clamped, since
options! {
    /// How long a lease lasts if the pop does not set a time; 0 means 60 seconds.
    lease_time: i32 = 300, "leaseTime", "Lease time", Delivery, Seconds;
    /// How many times a failed message is delivered again before it becomes a dead letter.
    retry_limit: i32 = 3, "retryLimit", "Retry limit", Delivery, Count;
    /// Deliver a message only when it is this old.
    delayed_processing: i32 = 0, "delayedProcessing", "Delivery delay", Delivery, Seconds;
    /// Hold a partition back until it has a full batch or its oldest waiting message is this old. A pop with `batch=1`
    /// always waits for the age.
    window_buffer: i32 = 0, "windowBuffer", "Batch window", Delivery, Seconds;
    /// The order in which a pop by label tries queues, highest first. It can be negative.
    priority: i32 = 0, "priority", "Priority", Delivery, Count, min: i32::MIN.into();

    /// Keep dead letters. They are dropped only if `dlqAfterMaxRetries` is false as well.
    dead_letter_queue: bool = true, "deadLetterQueue", "Keep dead letters", DeadLetters, Flag;
    /// Keep dead letters. They are dropped only if `deadLetterQueue` is false as well.
    dlq_after_max_retries: bool = true, "dlqAfterMaxRetries", "Keep after the last retry", DeadLetters, Flag;

    /// Enable `retentionSeconds` and `completedRetentionSeconds`. While this is false they have no effect, and messages
    /// are kept forever unless `maxWaitTimeSeconds` removes them.
    retention_enabled: bool = false, "retentionEnabled", "Remove old messages", Retention, Flag;
    /// Remove messages older than this, read or not; 0 keeps them.
    retention_seconds: i32 = 0, "retentionSeconds", "Keep at most", Retention, Seconds;
    /// Remove messages older than this once every group that reads the partition has passed them; 0 keeps them.
    completed_retention_seconds: i32 = 0, "completedRetentionSeconds", "Keep when read", Retention, Seconds;
    /// Remove messages that at least one group has not read by this age, also without `retentionEnabled`; 0 keeps them.
    max_wait_time_seconds: i32 = 0, "maxWaitTimeSeconds", "Give up unread", Retention, Seconds;

    /// How long a `transactionId` is remembered; 0 turns deduplication off.
    dedup_window_seconds: i32 = 3600, "dedupWindowSeconds", "Deduplication window", Storage, Seconds;
    /// Store payloads pushed from now on encrypted, if the broker has a key.
    encryption_enabled: bool = false, "encryptionEnabled", "Encrypt payloads", Storage, Flag;

    /// No effect: a failed message is available again at once.
    retry_delay: i32 = 1000, "retryDelay", "Retry delay", NoEffect, Milliseconds;
    /// No effect: the retention options remove old messages.
    ttl: i32 = 3600, "ttl", "Time to live", NoEffect, Seconds;
    /// No effect: queues have no size limit.
    max_size: i64 = 0, "maxSize", "Size limit", NoEffect, Count;
    /// No effect: a pop waits as long as it asks to. Numbers out of range become 0 or 60000.
    min_pop_wait_time: i32 = 0, "minPopWaitTime", "Minimum pop wait", NoEffect, Milliseconds, max: 60_000, clamped: true;
}

/// These may also be sent among the options.
pub(crate) const LABELS: [&str; 2] = ["namespace", "task"];

/// Fails if there is no such option. The error names a similar one.
pub fn check_option(name: &str) -> Result<(), BadRequest> {
    let known = || OPTIONS.iter().map(|option| option.name).chain(LABELS);
    if known().any(|known| known == name) {
        return Ok(());
    }
    Err(BadRequest(match nearest(name, known()) {
        Some(nearest) => format!("unknown option {name:?}; the nearest there is: {nearest:?}"),
        None => format!("unknown option {name:?}"),
    }))
}

impl QueueOption {
    fn new<T: OptionValue>(name: &'static str, column: &'static str, meaning: &'static str) -> Self {
        Self {
            name,
            column,
            meaning: meaning.trim_start(),
            label: "",
            section: NoEffect,
            unit: Flag,
            default: Value::Null,
            min: T::MIN,
            max: T::MAX,
            clamped: false,
            since: FIRST_RELEASE,
        }
    }

    /// The default with its unit: `300 s`.
    pub fn default_text(&self) -> String {
        match self.unit {
            Flag | Count => self.default.to_string(),
            Seconds => format!("{} s", self.default),
            Milliseconds => format!("{} ms", self.default),
        }
    }

    /// The meaning, followed by the release that added the option, unless the first one had it.
    pub fn description(&self) -> String {
        match self.since {
            FIRST_RELEASE => self.meaning.to_owned(),
            since => format!("{} Since {since}.", self.meaning),
        }
    }

    fn number(&self, value: &Value) -> Result<i64, BadRequest> {
        let refused = |why: &str| BadRequest(format!("option {} {why}", self.name));
        let signed = self.clamped || self.min < 0 && value.is_i64();
        let number = whole(value).filter(|number| signed || *number >= 0);
        let number = number.ok_or_else(|| refused("must be a whole number, 0 or more"))?;
        match number {
            _ if self.clamped => Ok(number.clamp(self.min, self.max)),
            _ if (self.min..=self.max).contains(&number) => Ok(number),
            _ => Err(refused("is out of range")),
        }
    }
}

/// A whole number. JavaScript clients may send 60.0 for 60.
fn whole(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        value.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 9e15).map(|float| float as i64)
    })
}

trait OptionValue: Sized {
    const MIN: i64;
    const MAX: i64;

    fn read(option: &QueueOption, value: &Value) -> Result<Self, BadRequest>;
}

impl OptionValue for bool {
    const MIN: i64 = 0;
    const MAX: i64 = 1;

    fn read(option: &QueueOption, value: &Value) -> Result<Self, BadRequest> {
        value.as_bool().ok_or_else(|| BadRequest(format!("option {} must be true or false", option.name)))
    }
}

impl OptionValue for i64 {
    const MIN: i64 = 0;
    const MAX: i64 = i64::MAX;

    fn read(option: &QueueOption, value: &Value) -> Result<Self, BadRequest> {
        option.number(value)
    }
}

impl OptionValue for i32 {
    const MIN: i64 = 0;
    const MAX: i64 = i32::MAX as i64;

    fn read(option: &QueueOption, value: &Value) -> Result<Self, BadRequest> {
        // No option of this type allows a wider range.
        option.number(value).map(|number| number as Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_a_label_a_sentence_and_a_default_of_its_own_type_and_range() {
        for option in OPTIONS.iter() {
            assert!(!option.label.is_empty() && option.meaning.ends_with('.'), "{}", option.name);
            assert_eq!(option.default.is_boolean(), option.unit == Flag, "{}", option.name);
            let number = option.default.as_i64().unwrap_or_default();
            assert!((option.min..=option.max).contains(&number), "{}", option.name);
        }
    }

    #[test]
    fn a_name_is_its_column_in_camel_case() {
        for option in OPTIONS.iter() {
            let mut words = option.column.split('_');
            let first = words.next().unwrap().to_owned();
            let name = words.fold(first, |name, word| name + &word[..1].to_uppercase() + &word[1..]);
            assert_eq!(option.name, name);
        }
    }

    #[test]
    fn a_row_of_the_table_of_queues_is_read_and_answered_by_the_names_of_the_api() {
        let columns = OPTIONS.iter().map(|option| (option.column.to_owned(), option.default.clone()));
        let mut row: Map<String, Value> = columns.collect();
        row.insert("lease_time".to_owned(), 7.into());
        row.insert("created_at".to_owned(), "now".into());
        let options: QueueOptions = serde_json::from_value(row.into()).unwrap();
        assert_eq!(options, QueueOptions { lease_time: 7, ..QueueOptions::default() });
        let answer = serde_json::to_value(&options).unwrap();
        assert_eq!(answer.as_object().unwrap().len(), OPTIONS.len());
        for option in OPTIONS.iter() {
            assert_eq!(answer[option.name], options.get(option), "{}", option.name);
        }
    }
}
