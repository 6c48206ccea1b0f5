//! `POST /api/v1/transaction`: pushes and acknowledgements that take effect together or not at all.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::ack::AckBody;
use crate::bounded::Bounded;
use crate::object::Object;
use crate::push::PUSH_ITEMS_MAX as ITEMS_MAX;
use crate::{AckItem, BadRequest, PushItem, read_object};

/// Many more than a consumer holds at once.
const LEASES_MAX: usize = 1_000;

#[derive(Debug)]
pub struct TransactionBody<'a> {
    pub operations: Vec<Operation<'a>>,
    pub required_leases: Vec<String>,
}

#[derive(Debug)]
pub enum Operation<'a> {
    Push(Vec<PushItem<'a>>),
    Ack(AckItem),
    /// By contract, this is not a malformed request but a transaction that fails.
    Unknown(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    #[serde(borrow)]
    operations: Bounded<&'a RawValue, ITEMS_MAX>,
    #[serde(default)]
    required_leases: Option<Bounded<String, LEASES_MAX>>,
}

#[derive(Deserialize)]
struct Kind<'a> {
    #[serde(borrow, rename = "type")]
    kind: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    items: Option<Bounded<Object<PushItem<'a>>, ITEMS_MAX>>,
}

impl<'a> TransactionBody<'a> {
    pub fn parse(body: &'a [u8]) -> Result<Self, BadRequest> {
        let parsed: Body<'a> = read_object(body)?;
        let asked = parsed.operations.checked("operations in one transaction")?;
        if asked.is_empty() {
            return Err(BadRequest::new("operations must not be empty"));
        }
        let required_leases = parsed.required_leases.unwrap_or_default().checked("required leases")?;
        let mut items = 0;
        let mut operations = Vec::with_capacity(asked.len());
        for (index, raw) in asked.iter().enumerate() {
            let operation = Self::operation(raw.get())
                .map_err(|BadRequest(text)| BadRequest(format!("operations[{index}]: {text}")))?;
            items += match &operation {
                Operation::Push(items) => items.len(),
                Operation::Ack(_) | Operation::Unknown(_) => 1,
            };
            if items > ITEMS_MAX {
                return Err(BadRequest(format!(
                    "more than {ITEMS_MAX} messages and acknowledgements in one transaction"
                )));
            }
            operations.push(operation);
        }
        Ok(Self { operations, required_leases })
    }

    /// All messages that it pushes, in order.
    pub fn pushes(&self) -> impl Iterator<Item = &PushItem<'a>> {
        self.operations.iter().flat_map(|operation| match operation {
            Operation::Push(items) => items.as_slice(),
            _ => &[],
        })
    }

    /// All acknowledgements, in order.
    pub fn acks(&self) -> impl Iterator<Item = &AckItem> {
        self.operations.iter().filter_map(|operation| match operation {
            Operation::Ack(ack) => Some(ack),
            _ => None,
        })
    }

    pub fn pushes_mut(&mut self) -> impl Iterator<Item = &mut PushItem<'a>> {
        self.operations.iter_mut().flat_map(|operation| match operation {
            Operation::Push(items) => items.as_mut_slice(),
            _ => &mut [],
        })
    }

    fn operation(raw: &'a str) -> Result<Operation<'a>, BadRequest> {
        let kind: Kind<'a> = read_object(raw.as_bytes())?;
        match kind.kind.as_ref() {
            "push" => {
                let items = match kind.items {
                    Some(items) => {
                        let items = items.checked("items in one transaction")?;
                        items.into_iter().map(|Object(item)| item).collect()
                    }
                    None => vec![serde_json::from_str(raw)?],
                };
                items.iter().try_for_each(PushItem::check)?;
                Ok(Operation::Push(items))
            }
            "ack" => Ok(Operation::Ack(serde_json::from_str::<AckBody>(raw)?.into_item(None)?)),
            other => Ok(Operation::Unknown(other.to_owned())),
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TransactionOutcome {
    pub transaction_id: Uuid,
    pub success: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub results: Vec<TransactionResult>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub enum TransactionResult {
    Push {
        index: usize,
        success: bool,
        transaction_id: String,
        message_id: Uuid,
        partition_id: Uuid,
        queue_name: String,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        duplicate: bool,
    },
    Ack {
        index: usize,
        success: bool,
        transaction_id: String,
        error: Option<String>,
        dlq: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_push_may_be_flat_or_carry_items_and_an_unknown_type_is_kept_for_the_answer() {
        let body = br#"{"operations":[
            {"type":"push","items":[{"queue":"a","payload":1},{"queue":"b"}]},
            {"type":"push","queue":"c","data":[2]},
            {"type":"ack","transactionId":"t","partitionId":"00000000-0000-0000-0000-000000000001"},
            {"type":"dance"}],"requiredLeases":["L"]}"#;
        let parsed = TransactionBody::parse(body).unwrap();
        let Operation::Push(items) = &parsed.operations[1] else { panic!("a push") };
        assert_eq!((items[0].queue.as_ref(), items[0].payload()), ("c", "[2]"));
        assert!(matches!(&parsed.operations[3], Operation::Unknown(kind) if kind == "dance"));
        assert_eq!(parsed.required_leases, ["L"]);
        assert!(TransactionBody::parse(br#"{"operations":[]}"#).is_err());
        assert!(TransactionBody::parse(br#"{"operations":[{"type":"ack"}]}"#).is_err());
    }

    #[test]
    fn what_no_client_means_is_refused_by_its_number() {
        let pushes =
            format!(r#"{{"operations":[{}]}}"#, vec![r#"{"type":"push","queue":"q"}"#; 50_001].join(","));
        let nested = format!(
            r#"{{"operations":[{{"type":"push","items":[{}]}}]}}"#,
            vec![r#"{"queue":"q"}"#; 50_001].join(",")
        );
        let leases = format!(
            r#"{{"operations":[{{"type":"push","queue":"q"}}],"requiredLeases":[{}]}}"#,
            vec![r#""l""#; 1_001].join(",")
        );
        let split = format!(
            r#"{{"operations":[{}]}}"#,
            vec![format!(r#"{{"type":"push","items":[{}]}}"#, vec![r#"{"queue":"q"}"#; 25_001].join(",")); 2]
                .join(",")
        );
        for (body, refusal) in [
            (pushes, "50001 operations in one transaction"),
            (nested, "50001 items in one transaction"),
            (split, "more than 50000 messages"),
        ] {
            let error = TransactionBody::parse(body.as_bytes()).unwrap_err().0;
            assert!(error.contains(refusal), "{error}");
        }
        assert!(TransactionBody::parse(leases.as_bytes()).unwrap_err().0.contains("1001 required leases"));
    }
}
