//! The steps that acknowledge: acks in every order, and transactions.

use std::time::Duration;

use queen_protocol::{AckItem, AckResult, AckStatus, TransactionBody, TransactionOutcome, TransactionResult};
use serde_json::{Value, json};

use crate::plan::{Item, Proof, Settlement};
use crate::shadow::{AckSet, ItemAnswer, Message, Placed};
use crate::words::{Op, Via, now};
use crate::worker::{Held, Part, Worker, reason, sent, unless_hung_up, wire};

/// Some messages of a lease with the status that is sent for each, by partition.
type Said<'a> = Vec<(&'a Part, Vec<(&'a Message, AckStatus)>)>;

impl Worker {
    pub async fn settle(
        &mut self,
        via: Via,
        held: &Held,
        how: Settlement,
        share: u64,
        hang_up: Option<Duration>,
    ) {
        let each = |choose: &dyn Fn(&Part) -> Vec<(usize, AckStatus)>| -> Said<'_> {
            let said = held.parts.iter().map(|part| {
                let chosen = choose(part).into_iter();
                (part, chosen.map(|(index, status)| (&part.messages[index], status)).collect())
            });
            said.collect()
        };
        let calls: Vec<Said<'_>> = match how {
            Settlement::Forgotten => Vec::new(),
            Settlement::Full => vec![each(&|part| completed(0, part.messages.len()))],
            Settlement::Last => {
                vec![each(&|part| completed(part.messages.len() - 1, part.messages.len()))]
            }
            Settlement::Partial | Settlement::Leaseless => {
                vec![each(&|part| completed(0, cut(part, share).max(1)))]
            }
            Settlement::OutOfOrder => vec![
                each(&|part| completed(part.messages.len() / 2, part.messages.len())),
                each(&|part| completed(0, part.messages.len().div_ceil(2))),
            ],
            Settlement::Failed | Settlement::LeaselessFailed => {
                vec![each(&|part| nacked(part, share, AckStatus::Failed))]
            }
            Settlement::Retry => vec![each(&|part| nacked(part, share, AckStatus::Retry))],
            Settlement::Dlq => vec![each(&|part| nacked(part, share, AckStatus::Dlq))],
        };
        let with_lease = !matches!(how, Settlement::Leaseless | Settlement::LeaselessFailed);
        for said in calls {
            self.ack(via, held, &said, with_lease, hang_up).await;
        }
        if !matches!(how, Settlement::Partial | Settlement::Leaseless) {
            self.let_go(held);
        }
    }

    async fn ack(&self, via: Via, held: &Held, said: &Said<'_>, with_lease: bool, hang_up: Option<Duration>) {
        let sets = sets(held, said, with_lease);
        let (op, ticket) = self.world.tell(|shadow| {
            let op = shadow.next_op();
            (op, shadow.ack_began(op, now(), via, sets.clone()))
        });
        let items = sets.iter().zip(said).flat_map(|(set, (part, said))| {
            said.iter().map(|(message, status)| AckItem {
                transaction_id: message.transaction.clone(),
                message_id: None,
                partition_id: part.partition_id,
                lease_id: set.lease.clone(),
                status: *status,
                group: held.group.name().to_owned(),
                error: Some(reason(op)),
            })
        });
        let answer = unless_hung_up(hang_up, self.world.engine(via).ack(items.collect())).await;
        let at = now();
        match answer {
            Ok(results) => {
                let refused = results.iter().any(|result| !result.success);
                self.world.count(format!("{via:?} ack{}", if refused { " refused" } else { "" }));
                let answers = split(&sets, results.iter().map(item_answer));
                self.world.check(|shadow| shadow.ack_answered(&ticket, at, &answers));
            }
            Err(why) => {
                self.lost("ack", via, &why);
                self.world.tell(|shadow| shadow.ack_lost(&ticket, at, &why));
            }
        }
    }

    pub async fn transact(
        &mut self,
        via: Via,
        held: &Held,
        share: u64,
        proof: Proof,
        poison: bool,
        items: &[Item],
    ) {
        let said = held.parts.iter().map(|part| {
            let chosen = part.messages.iter().take(cut(part, share).max(1));
            (part, chosen.map(|message| (message, AckStatus::Completed)).collect())
        });
        let said: Said<'_> = said.collect();
        let sets = sets(held, &said, proof == Proof::Lease);
        let (op, ticket) = self.world.tell(|shadow| {
            let op = shadow.next_op();
            let pushes = items.iter().map(sent).collect();
            let proof = (proof, held.lease.as_str());
            (op, shadow.transaction_began(op, now(), via, pushes, sets.clone(), proof, poison))
        });
        let body = transaction(op, held, &said, proof, poison, items).to_string();
        let body = TransactionBody::parse(body.as_bytes()).expect("a good transaction");
        let answer = self.world.engine(via).transaction(&body, None).await;
        let at = now();
        match answer {
            Ok(outcome) if outcome.success => {
                let (placed, acked) = results(&outcome);
                assert_eq!(placed.len(), items.len(), "one answer for each message: {outcome:?}");
                let answers = split(&sets, acked.into_iter());
                self.world.check(|shadow| shadow.transaction_committed(&ticket, at, &placed, &answers));
                self.world.count(format!("{via:?} transaction"));
            }
            Ok(outcome) => {
                let why = outcome.error.unwrap_or_default();
                self.world.check(|shadow| shadow.transaction_rolled_back(&ticket, at, &why));
                self.world.count(format!("{via:?} transaction rolled back"));
            }
            Err(error) => {
                self.lost("transaction", via, &error.to_string());
                self.world.tell(|shadow| shadow.push_lost(&ticket.push, at, &error.to_string()));
            }
        }
        self.let_go(held);
    }

    fn let_go(&mut self, held: &Held) {
        let before = self.hand.len();
        self.hand.retain(|own| own.lease != held.lease);
        if self.hand.len() < before {
            self.remember(held.clone());
        }
    }
}

fn cut(part: &Part, share: u64) -> usize {
    part.messages.len() * share as usize / 100
}

fn completed(from: usize, to: usize) -> Vec<(usize, AckStatus)> {
    (from..to).map(|index| (index, AckStatus::Completed)).collect()
}

/// Messages before and after the nack are completed, to see that it stops the cursor.
fn nacked(part: &Part, share: u64, status: AckStatus) -> Vec<(usize, AckStatus)> {
    let at = cut(part, share).min(part.messages.len() - 1);
    let mut said = completed(0, part.messages.len());
    said[at].1 = status;
    said
}

fn sets(held: &Held, said: &Said<'_>, with_lease: bool) -> Vec<AckSet> {
    let set = |(part, said): &(&Part, Vec<(&Message, AckStatus)>)| AckSet {
        partition: part.partition,
        group: held.group,
        lease: with_lease.then(|| held.lease.clone()),
        items: said.iter().map(|(message, status)| (message.id, *status)).collect(),
    };
    said.iter().map(set).collect()
}

fn split(sets: &[AckSet], mut answers: impl Iterator<Item = ItemAnswer>) -> Vec<Vec<ItemAnswer>> {
    let split: Vec<Vec<ItemAnswer>> =
        sets.iter().map(|set| answers.by_ref().take(set.items.len()).collect()).collect();
    assert!(
        answers.next().is_none() && split.iter().zip(sets).all(|(told, set)| told.len() == set.items.len())
    );
    split
}

fn item_answer(result: &AckResult) -> ItemAnswer {
    ItemAnswer {
        success: result.success,
        noop: result.noop,
        dlq: result.dlq,
        released: Some(result.lease_released),
        error: result.error.clone(),
    }
}

fn transaction(op: Op, held: &Held, said: &Said<'_>, proof: Proof, poison: bool, items: &[Item]) -> Value {
    let mut acks = Vec::new();
    for (part, said) in said {
        for (message, _) in said {
            let mut ack = json!({
                "type": "ack", "transactionId": message.transaction, "partitionId": part.partition_id,
                "consumerGroup": held.group.name(), "status": "completed", "error": reason(op),
            });
            if proof == Proof::Lease {
                ack["leaseId"] = json!(held.lease);
            }
            acks.push(ack);
        }
    }
    if poison {
        let id = held.parts[0].partition_id;
        let group = held.group.name();
        acks.push(json!({
            "type": "ack", "transactionId": "nobody", "partitionId": id, "consumerGroup": group,
        }));
    }
    let push = json!({"type": "push", "items": items.iter().map(wire).collect::<Vec<_>>()});
    acks.insert(if op.is_multiple_of(2) { 0 } else { acks.len() }, push);
    let required = if proof == Proof::Required { vec![&held.lease] } else { Vec::new() };
    json!({"operations": acks, "requiredLeases": required})
}

fn results(outcome: &TransactionOutcome) -> (Vec<Placed>, Vec<ItemAnswer>) {
    let (mut placed, mut acked) = (Vec::new(), Vec::new());
    for result in &outcome.results {
        match result {
            TransactionResult::Push { message_id, transaction_id, duplicate, .. } => placed.push(Placed {
                id: *message_id,
                transaction: transaction_id.clone(),
                duplicate: *duplicate,
            }),
            // The result of a transaction does not say whether it had been acknowledged before, or
            // whether its lease has ended.
            TransactionResult::Ack { success, error, dlq, .. } => acked.push(ItemAnswer {
                success: *success,
                noop: true,
                dlq: *dlq,
                released: None,
                error: error.clone(),
            }),
        }
    }
    (placed, acked)
}
