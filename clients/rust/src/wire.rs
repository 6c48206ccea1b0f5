//! JSON and paths in the broker's format: names, queries, and error responses.

use std::borrow::Cow;
use std::fmt::Display;
use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Error, ErrorKind};

/// The broker counts characters.
const NAME_CHARS_MAX: usize = 255;
const BODY_CHARS_SHOWN: usize = 200;

/// Everything except the unreserved characters of RFC 3986.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Validates the name of a queue, partition, group or label, or a transaction id.
pub fn check_name(what: &str, name: &str) -> Result<(), Error> {
    if name.is_empty() {
        return Err(Error::bad_use(format!("{what} must not be empty")));
    }
    if name.len() > NAME_CHARS_MAX && name.chars().count() > NAME_CHARS_MAX {
        return Err(Error::bad_use(format!("{what} is longer than {NAME_CHARS_MAX} characters")));
    }
    if name.contains('\0') {
        return Err(Error::bad_use(format!("{what} must not contain a NUL character")));
    }
    Ok(())
}

/// A path with arbitrary segments.
pub fn path(segments: &[&str]) -> String {
    let mut path = String::with_capacity(64);
    for (index, segment) in segments.iter().enumerate() {
        // Even segments are ours, odd ones are names.
        if index % 2 == 0 {
            path.push_str(segment);
        } else {
            path.extend(utf8_percent_encode(segment, ESCAPED));
        }
    }
    path
}

/// A path with its query.
#[derive(Debug, Clone)]
pub struct Query {
    text: String,
    any: bool,
}

impl Query {
    pub fn new(path: impl Into<String>) -> Self {
        Self { text: path.into(), any: false }
    }

    pub fn add(&mut self, key: &str, value: impl AsRef<str>) {
        self.text.push(if self.any { '&' } else { '?' });
        self.any = true;
        self.text.push_str(key);
        self.text.push('=');
        self.text.extend(utf8_percent_encode(value.as_ref(), ESCAPED));
    }

    pub fn add_some(&mut self, key: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.add(key, value);
        }
    }

    pub fn into_text(self) -> String {
        self.text
    }
}

/// Appends a JSON string.
pub fn text(body: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(body, text).expect("a text is written to memory");
}

/// Appends `,"key":"text"`; `before` is everything up to the value.
pub fn field(body: &mut Vec<u8>, before: &str, value: &str) {
    body.extend_from_slice(before.as_bytes());
    text(body, value);
}

/// Parses a response that is an object. One with `success: false` is an error.
pub fn object<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    let failure = Failure::read(body);
    if failure.success == Some(false) {
        let text = failure.error.unwrap_or_else(|| "the broker refused without giving a reason".to_owned());
        return Err(Error::new(ErrorKind::Refused, text));
    }
    decode(body)
}

/// Validates UTF-8 once for the whole response, which is cheaper than for each text in it.
pub fn decode<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Error> {
    let text = std::str::from_utf8(body).map_err(|error| Error::new(ErrorKind::Decode, error.to_string()))?;
    serde_json::from_str(text).map_err(|error| unreadable(text, &error).with_source(error))
}

/// Reuses the previous text if equal: results in a response mostly repeat it.
#[derive(Default)]
pub struct Same(Option<Arc<str>>);

impl Same {
    pub fn get(&mut self, text: &str) -> Arc<str> {
        match &self.0 {
            Some(last) if **last == *text => last.clone(),
            _ => self.0.insert(text.into()).clone(),
        }
    }
}

pub fn unreadable(text: &str, why: &dyn Display) -> Error {
    let shown: String = text.chars().take(BODY_CHARS_SHOWN).collect();
    Error::new(ErrorKind::Decode, format!("cannot parse the response: {why} in {shown:?}"))
}

/// What an object says about its success.
#[derive(Debug, Default)]
pub struct Failure {
    pub success: Option<bool>,
    pub error: Option<String>,
    pub code: Option<String>,
}

impl Failure {
    /// Empty for a body that is no such object: proxies may return HTML.
    pub fn read(body: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Said<'a> {
            success: Option<bool>,
            error: Option<Value>,
            #[serde(borrow)]
            code: Option<Cow<'a, str>>,
        }
        if body.first() != Some(&b'{') {
            return Self::default();
        }
        let Ok(said) = serde_json::from_slice::<Said<'_>>(body) else { return Self::default() };
        let error = said.error.filter(|error| !error.is_null()).map(|error| match error {
            Value::String(text) => text,
            other => other.to_string(),
        });
        Self { success: said.success, error, code: said.code.map(Cow::into_owned) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_1_to_255_characters_without_a_nul() {
        assert!(check_name("queue", &"ü".repeat(255)).is_ok());
        for (name, says) in [("", "empty"), (&*"x".repeat(256), "longer"), ("a\0b", "NUL")] {
            let error = check_name("queue", name).unwrap_err();
            assert!(error.kind() == ErrorKind::BadUse && error.text().contains(says), "{error}");
        }
    }

    #[test]
    fn names_in_paths_and_queries_may_hold_anything() {
        assert_eq!(
            path(&["/pop/queue/", "a/b ü", "/partition/", "x&y"]),
            "/pop/queue/a%2Fb%20%C3%BC/partition/x%26y"
        );
        let mut query = Query::new("/pop");
        query.add("group", "a b");
        query.add_some("none", None);
        query.add("n", 7.to_string());
        assert_eq!(query.into_text(), "/pop?group=a%20b&n=7");
    }

    #[test]
    fn an_object_that_is_no_success_is_an_error_whatever_its_status() {
        let error = object::<Value>(br#"{"success":false,"error":"lease is gone"}"#).unwrap_err();
        assert_eq!((error.kind(), error.text()), (ErrorKind::Refused, "lease is gone"));
        assert!(object::<Value>(br#"{"success":true,"error":null}"#).is_ok());
        assert_eq!(object::<Value>(b"<html>").unwrap_err().kind(), ErrorKind::Decode);
        assert_eq!(Failure::read(br#"{"error":{"a":1},"code":"x"}"#).error.unwrap(), r#"{"a":1}"#);
    }
}
