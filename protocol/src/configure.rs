//! `POST /api/v1/configure`: the body of a request that creates a queue or changes its options.

use serde_json::{Map, Value};

use crate::options::{LABELS, OPTIONS, QueueOptions, check_option};
use crate::{BadRequest, check_name, check_new_name};

#[derive(Debug, Clone)]
pub struct Configure {
    pub queue: String,
    /// `None` keeps the stored value.
    pub namespace: Option<String>,
    pub task: Option<String>,
    /// The values as they were sent, by name of the option.
    pub changes: Map<String, Value>,
    /// The values to store, by column of the option.
    pub columns: Map<String, Value>,
    /// Start from the defaults instead of the stored options.
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
        let mut values = QueueOptions::default();
        values.merge(&changes)?;
        let stored = OPTIONS.iter().filter(|option| replace || changes.contains_key(option.name));
        let columns = stored.map(|option| (option.column.to_owned(), values.get(option))).collect();
        Ok(Self { queue, namespace, task, changes, columns, replace })
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
    use serde_json::json;

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
    fn what_is_stored_are_the_options_named_or_with_replace_all_of_them() {
        let body = br#"{"queue":"q","leaseTime":60.0,"options":{"retryLimit":null,"minPopWaitTime":99999,"task":"t"}}"#;
        let stored = Value::Object(Configure::parse(body).unwrap().columns);
        assert_eq!(stored, json!({"lease_time": 60, "retry_limit": 3, "min_pop_wait_time": 60_000}));
        let body = br#"{"queue":"q","mode":"replace","options":{"leaseTime":60}}"#;
        let stored = serde_json::from_value(Configure::parse(body).unwrap().columns.into());
        assert_eq!(stored.ok(), Some(QueueOptions { lease_time: 60, ..QueueOptions::default() }));
    }

    #[test]
    fn a_refusal_names_the_option_and_what_it_takes() {
        let number = "must be a whole number, 0 or more";
        for (option, value, why) in [
            ("leaseTime", "\"long\"", number),
            ("leaseTime", "-1", number),
            ("leaseTime", "0.5", number),
            ("leaseTime", "2147483648", "is out of range"),
            ("maxSize", "9223372036854775808", number),
            ("priority", "-2147483649", "is out of range"),
            ("priority", "-2.0", number),
            ("minPopWaitTime", "true", number),
            ("deadLetterQueue", "1", "must be true or false"),
        ] {
            let body = format!(r#"{{"queue":"q","{option}":{value}}}"#);
            let BadRequest(text) = Configure::parse(body.as_bytes()).unwrap_err();
            assert_eq!(text, format!("option {option} {why}"), "{value}");
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
