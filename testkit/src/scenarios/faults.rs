//! Faults to inject into upcoming requests. Knows no sockets.

use serde::Deserialize;
use serde_json::Value;

/// A fault that waits for its requests.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Armed {
    /// A path prefix.
    #[serde(default)]
    path: String,
    method: Option<String>,
    pub broker: Option<usize>,
    #[serde(default = "once")]
    times: usize,
    pub fault: Fault,
}

fn once() -> usize {
    1
}

/// As in `clients/scenarios/README.md`.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "Words")]
pub enum Fault {
    Answer { status: u16, retry_after: Option<RetryAfter>, body: Option<Value> },
    CloseBeforeForward,
    CloseAfterAnswer,
    BlackHole,
    Delay { ms: u64 },
    Accepted { states: Vec<State>, form: Form },
    Refuse,
}

/// Of a 202 response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    List,
    Object,
}

#[derive(Debug, Clone, Copy)]
pub enum RetryAfter {
    Seconds(u64),
    DateIn(u64),
}

/// Of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Pending,
    Processing,
    Completed,
    Failed,
}

impl State {
    pub fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Processing => "processing",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Words {
    status: Option<u16>,
    retry_after: Option<u64>,
    retry_after_date_in: Option<u64>,
    body: Option<Value>,
    #[serde(default)]
    close_before_forward: bool,
    #[serde(default)]
    close_after_answer: bool,
    #[serde(default)]
    black_hole: bool,
    delay_ms: Option<u64>,
    accepted202: Option<Accepted>,
    #[serde(default)]
    refuse: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Accepted {
    operation: Vec<State>,
    #[serde(default)]
    object: bool,
}

impl From<Accepted> for Fault {
    fn from(accepted: Accepted) -> Self {
        let form = if accepted.object { Form::Object } else { Form::List };
        Self::Accepted { states: accepted.operation, form }
    }
}

impl TryFrom<Words> for Fault {
    type Error = &'static str;

    fn try_from(words: Words) -> Result<Self, Self::Error> {
        let retry_after = match (words.retry_after, words.retry_after_date_in) {
            (Some(_), Some(_)) => return Err("use retryAfter or retryAfterDateIn, not both"),
            (Some(seconds), None) => Some(RetryAfter::Seconds(seconds)),
            (None, Some(seconds)) => Some(RetryAfter::DateIn(seconds)),
            (None, None) => None,
        };
        if words.status.is_none() && (retry_after.is_some() || words.body.is_some()) {
            return Err("an answer needs a status");
        }
        let answer = words.status.map(|status| Self::Answer { status, retry_after, body: words.body });
        let kinds = [
            answer,
            words.close_before_forward.then_some(Self::CloseBeforeForward),
            words.close_after_answer.then_some(Self::CloseAfterAnswer),
            words.black_hole.then_some(Self::BlackHole),
            words.delay_ms.map(|ms| Self::Delay { ms }),
            words.accepted202.map(Self::from),
            words.refuse.then_some(Self::Refuse),
        ];
        let mut kinds = kinds.into_iter().flatten();
        match (kinds.next(), kinds.next()) {
            (Some(Self::Accepted { states, .. }), None) if states.is_empty() => {
                Err("an operation needs a state")
            }
            (Some(fault), None) => Ok(fault),
            _ => Err("a fault is exactly one of those in clients/scenarios/README.md"),
        }
    }
}

/// The first match. It counts as used once more.
pub fn take(armed: &mut [Armed], broker: usize, method: &str, path: &str) -> Option<Fault> {
    let found = armed.iter().position(|fault| {
        fault.broker.is_none_or(|wanted| wanted == broker)
            && fault.method.as_deref().is_none_or(|wanted| wanted == method)
            && path.starts_with(&fault.path)
            && fault.times > 0
    })?;
    armed[found].times -= 1;
    Some(armed[found].fault.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn armed(text: &str) -> Armed {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_fault_acts_on_what_it_was_meant_for_and_so_often() {
        let mut faults = vec![
            armed(r#"{"broker": 1, "path": "/api/v1/push", "fault": {"blackHole": true}}"#),
            armed(r#"{"path": "/api/v1/push", "method": "POST", "times": 2, "fault": {"status": 503}}"#),
        ];
        let mut next = |broker, method, path| take(&mut faults, broker, method, path);
        assert!(next(0, "GET", "/api/v1/push").is_none() && next(1, "POST", "/api/v1/pop").is_none());
        assert!(matches!(next(1, "POST", "/api/v1/push"), Some(Fault::BlackHole)));
        assert!(matches!(next(1, "POST", "/api/v1/push?a=b"), Some(Fault::Answer { status: 503, .. })));
        assert!(matches!(next(0, "POST", "/api/v1/push"), Some(Fault::Answer { .. })));
        assert!(next(0, "POST", "/api/v1/push").is_none());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for text in [
            r#"{"fault": {}}"#,
            r#"{"fault": {"status": 429, "blackHole": true}}"#,
            r#"{"fault": {"retryAfter": 1}}"#,
            r#"{"fault": {"status": 429, "retryAfter": 1, "retryAfterDateIn": 1}}"#,
            r#"{"fault": {"slow": true}}"#,
            r#"{"fault": {"accepted202": {"operation": []}}}"#,
            r#"{"fault": {"accepted202": {"operation": ["gone"]}}}"#,
            r#"{"paths": "/", "fault": {"refuse": true}}"#,
        ] {
            assert!(serde_json::from_str::<Armed>(text).is_err(), "{text}");
        }
    }
}
