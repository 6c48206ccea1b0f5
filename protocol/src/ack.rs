//! `POST /api/v1/ack` and `/api/v1/ack/batch`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::bounded::Bounded;
use crate::object::Object;
use crate::{BadRequest, QUEUE_MODE, Ticket, check_name, read_object};

/// A lease cannot be larger, so neither can an acknowledgement of one.
const ACK_ITEMS_MAX: usize = 50_000;

/// Longer errors are cut: they are stored with the message and its dead letter, and read by people.
const ERROR_CHARS_MAX: usize = 10_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckStatus {
    Completed,
    Failed,
    Retry,
    Dlq,
}

impl AckStatus {
    /// An unknown word is a failure: delivering twice is better than losing a message.
    pub fn parse(word: Option<&str>) -> Self {
        match word {
            None | Some("completed" | "success" | "acked" | "ok") => Self::Completed,
            Some("retry") => Self::Retry,
            Some("dlq") => Self::Dlq,
            Some(_) => Self::Failed,
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Retry => "retry",
            Self::Dlq => "dlq",
        }
    }
}

#[derive(Debug, Clone)]
pub struct AckItem {
    pub transaction_id: String,
    /// Selects one of several messages with the same transaction id. `None` selects the first.
    pub message_id: Option<Uuid>,
    pub partition_id: Uuid,
    /// `None`: the lease is not checked. `Some`: whatever the client sent, checked later.
    pub lease_id: Option<String>,
    pub status: AckStatus,
    pub group: String,
    pub error: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AckBody {
    transaction_id: String,
    partition_id: String,
    #[serde(default, alias = "message_id")]
    message_id: Option<String>,
    #[serde(default)]
    lease_id: Option<String>,
    #[serde(default)]
    status: Option<String>,
    #[serde(default, alias = "group")]
    consumer_group: Option<String>,
    #[serde(default)]
    error: Option<Box<RawValue>>,
}

impl AckBody {
    pub fn parse(body: &[u8]) -> Result<AckItem, BadRequest> {
        read_object::<Self>(body)?.into_item(None)
    }

    pub(crate) fn into_item(self, group: Option<&str>) -> Result<AckItem, BadRequest> {
        check_name("transactionId", &self.transaction_id)?;
        let group = group.map(str::to_owned).or(self.consumer_group).filter(|group| !group.is_empty());
        let group = group.unwrap_or_else(|| QUEUE_MODE.to_owned());
        check_name("consumerGroup", &group)?;
        let partition_id = Uuid::try_parse(&self.partition_id)
            .map_err(|_| BadRequest(format!("partitionId is not a UUID: {:?}", self.partition_id)))?;
        let message_id = match self.message_id.as_deref().filter(|id| !id.is_empty()) {
            None => None,
            Some(id) => Some(
                Uuid::try_parse(id).map_err(|_| BadRequest(format!("messageId is not a UUID: {id:?}")))?,
            ),
        };
        Ok(AckItem {
            transaction_id: self.transaction_id,
            message_id,
            partition_id,
            lease_id: self.lease_id.filter(|lease| !lease.is_empty()),
            status: AckStatus::parse(self.status.as_deref()),
            group,
            // PostgreSQL's text has no NUL.
            error: self.error.and_then(|error| reason(&error)).map(|text| text.replace('\0', "\u{fffd}")),
        })
    }
}

/// A string as it is, and any other value as JSON.
fn reason(error: &RawValue) -> Option<String> {
    let mut text = match error.get() {
        "null" => return None,
        json if json.starts_with('"') => serde_json::from_str(json).ok()?,
        json => json.to_owned(),
    };
    if let Some((end, _)) = text.char_indices().nth(ERROR_CHARS_MAX) {
        text.truncate(end);
    }
    Some(text)
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AckBatchBody {
    acknowledgments: Bounded<Object<AckBody>, ACK_ITEMS_MAX>,
    #[serde(default, alias = "group")]
    consumer_group: Option<String>,
}

impl AckBatchBody {
    pub fn parse(body: &[u8]) -> Result<Vec<AckItem>, BadRequest> {
        let parsed: Self = read_object(body)?;
        let group = parsed.consumer_group.as_deref().filter(|group| !group.is_empty());
        let items = parsed.acknowledgments.checked("acknowledgments in one call")?.into_iter().enumerate();
        items
            .map(|(index, Object(item))| {
                item.into_item(group)
                    .map_err(|BadRequest(text)| BadRequest(format!("acknowledgments[{index}]: {text}")))
            })
            .collect()
    }
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AckResult {
    pub index: usize,
    pub transaction_id: String,
    pub success: bool,
    pub error: Option<String>,
    pub queue_name: Option<Arc<str>>,
    pub partition_name: Option<Arc<str>>,
    pub lease_released: bool,
    pub dlq: bool,
    pub noop: bool,
    /// Set if the acknowledgement was deferred.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub ticket: Option<Ticket>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_status_is_a_failure_and_no_status_is_a_completion() {
        assert_eq!(AckStatus::parse(None), AckStatus::Completed);
        assert_eq!(AckStatus::parse(Some("ok")), AckStatus::Completed);
        assert_eq!(AckStatus::parse(Some("exploded")), AckStatus::Failed);
    }

    #[test]
    fn a_partition_id_that_is_no_uuid_is_refused_before_it_meets_its_neighbours() {
        let body = br#"{"acknowledgments":[{"transactionId":"t","partitionId":"nope"}]}"#;
        assert!(AckBatchBody::parse(body).unwrap_err().0.starts_with("acknowledgments[0]: partitionId"));
    }

    #[test]
    fn a_message_id_is_optional_and_a_uuid() {
        let read = |more: &str| {
            let body = format!(r#"{{"transactionId":"t","partitionId":"{}"{more}}}"#, Uuid::nil());
            AckBody::parse(body.as_bytes()).map(|item| item.message_id)
        };
        for none in ["", r#","messageId":null"#, r#","messageId":"" "#] {
            assert_eq!(read(none).unwrap(), None, "{none}");
        }
        let id = "018bcfe5-687b-7000-8000-000500000009";
        let given = read(&format!(r#","messageId":"{id}""#)).unwrap();
        assert_eq!(given.unwrap().to_string(), id);
        assert!(read(r#","messageId":"7""#).unwrap_err().0.starts_with("messageId is not a UUID"));
    }

    #[test]
    fn a_field_with_two_names_is_given_once() {
        let read = |more: &str| {
            let body = format!(r#"{{"transactionId":"t","partitionId":"{}",{more}}}"#, Uuid::nil());
            AckBody::parse(body.as_bytes())
        };
        let id = "018bcfe5-687b-7000-8000-000500000009";
        let item = read(&format!(r#""message_id":"{id}","group":"g""#)).unwrap();
        assert_eq!((item.message_id.unwrap().to_string().as_str(), item.group.as_str()), (id, "g"));
        for (both, names) in [
            (r#""group":"g","consumerGroup":"g""#.to_owned(), "group and consumerGroup are both given"),
            (format!(r#""messageId":"{id}","message_id":"{id}""#), "message_id and messageId are both given"),
        ] {
            let text = read(&both).unwrap_err().0;
            assert!(text.starts_with(names) && text.ends_with("send one"), "{text}");
        }
    }

    #[test]
    fn a_reason_longer_than_anybody_reads_is_cut_off() {
        let body = |reason: &str| {
            format!(r#"{{"transactionId":"t","partitionId":"{}","error":"{reason}"}}"#, Uuid::nil())
        };
        let item = AckBody::parse(body(&"ü".repeat(10_001)).as_bytes()).unwrap();
        assert_eq!(item.error, Some("ü".repeat(10_000)));
        assert_eq!(AckBody::parse(body("short").as_bytes()).unwrap().error.as_deref(), Some("short"));
        for (error, reason) in
            [("null", None), (r#"{"a":[1]}"#, Some(r#"{"a":[1]}"#)), (r#""a\u0000b""#, Some("a\u{fffd}b"))]
        {
            let body = format!(r#"{{"transactionId":"t","partitionId":"{}","error":{error}}}"#, Uuid::nil());
            assert_eq!(AckBody::parse(body.as_bytes()).unwrap().error.as_deref(), reason, "{error}");
        }
    }
}
