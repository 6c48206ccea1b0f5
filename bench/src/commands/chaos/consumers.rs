//! Consumers, good and bad: they complete, fail, stop half-way, forget, renew, and are late.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use super::caller::{Caller, Run, parse};
use super::history::{GROUPS, Group, Lane, Manner, Outcome, REPEATS, Renewal, Settle, Settled, Verdict};
use super::leased::{LEASE, Leased, Message, Wish, pop};

/// How often an acknowledgement with a lost response is retried.
const ACK_TRIES: u32 = 3;

/// Longer than a run waits for owed deliveries, so that a pop that is not woken up fails the run.
const LONG_WAIT: Duration = Duration::from_secs(180);

/// Acknowledgements of repeated transaction ids without a message id, as sent by old clients.
const BY_TRANSACTION_PERCENT: u32 = 30;

/// The outcomes to report, by lane.
type Choices<'a> = Vec<(Lane, Vec<(&'a Message, Verdict)>)>;

pub struct Consumer {
    caller: Caller,
    group: Group,
    manner: Manner,
    lanes: u16,
}

/// What a consumer does with delivered messages.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Habit {
    Complete,
    /// Completes some and gives the rest back.
    GiveBack,
    /// Completes some and forgets the rest.
    Partly,
    Forget,
    /// Completes after the lease has expired.
    Late,
    /// Renews the lease and completes after its first time.
    Renew,
    /// Renews a lease that has expired.
    RenewLate,
}

impl Consumer {
    pub fn new(run: &Arc<Run>, seed: u64, group: Group, manner: Manner, lanes: u16) -> Consumer {
        Consumer { caller: Caller::new(run, seed), group, manner, lanes }
    }

    pub async fn work(mut self) -> Result<()> {
        if self.manner == Manner::Away {
            self.register().await?;
            self.caller.run.loaded().await;
        }
        while !self.caller.is_over() {
            let wish = self.wish();
            let Some(leased) = pop(&mut self.caller, &wish).await? else {
                self.caller.run.pause(Duration::from_millis(20)).await;
                continue;
            };
            if wish.auto_ack {
                continue;
            }
            let habit = self.habit();
            self.handle(&leased, habit).await?;
        }
        Ok(())
    }

    /// Pops until a response shows that the group is known. Delivered messages are completed.
    async fn register(&mut self) -> Result<()> {
        let wish = Wish { batch: 1, lane: None, lanes: 1, wait: Duration::ZERO, ..self.wish() };
        let known = |lost: u64, run: &Run| run.history().lost_pops == lost;
        loop {
            let lost = self.caller.run.history().lost_pops;
            let leased = pop(&mut self.caller, &wish).await?;
            if let Some(leased) = &leased {
                self.handle(leased, Habit::Complete).await?;
            }
            // Another worker's lost pop only means another attempt.
            if leased.is_some() || known(lost, &self.caller.run) || self.caller.is_over() {
                return Ok(());
            }
        }
    }

    fn wish(&mut self) -> Wish {
        let (group, auto_ack) = (self.group, self.manner == Manner::AutoAck);
        if matches!(self.manner, Manner::Waits | Manner::Dozes | Manner::Rewound | Manner::Fleeting) {
            let batch = self.caller.between(1..50);
            return Wish { group, lane: None, batch, lanes: 10, wait: LONG_WAIT, auto_ack };
        }
        let single = self.caller.percent(30);
        let lane = single.then(|| self.caller.random.below(self.lanes));
        let wait = if self.caller.percent(40) { self.caller.between(200..900) } else { 0 };
        Wish {
            group,
            lane,
            batch: self.caller.between(1..25),
            lanes: self.caller.between(1..4),
            wait: Duration::from_millis(wait.into()),
            auto_ack,
        }
    }

    fn habit(&mut self) -> Habit {
        if !self.caller.is_loading() {
            return Habit::Complete;
        }
        match self.manner {
            Manner::Mixed | Manner::Dozes | Manner::Moves => {}
            Manner::GivesUp if self.caller.percent(50) => return Habit::GiveBack,
            _ => return Habit::Complete,
        }
        match self.caller.random.below(100) {
            0..8 => Habit::GiveBack,
            8..13 => Habit::Partly,
            13..17 => Habit::Forget,
            17..21 => Habit::Late,
            21..25 => Habit::Renew,
            25..27 => Habit::RenewLate,
            _ => Habit::Complete,
        }
    }

    async fn handle(&mut self, leased: &Leased, habit: Habit) -> Result<()> {
        let late = LEASE + Duration::from_millis(self.caller.between(200..1500).into());
        match habit {
            Habit::Forget => return Ok(()),
            Habit::Late => self.caller.run.pause(late).await,
            Habit::Renew => {
                for _ in 0..2 {
                    self.caller.run.pause(LEASE * 3 / 5).await;
                    self.renew(&leased.lease).await?;
                }
            }
            Habit::RenewLate => {
                self.caller.run.pause(late).await;
                self.renew(&leased.lease).await?;
            }
            Habit::Complete | Habit::GiveBack | Habit::Partly => {}
        }
        let mut lanes: BTreeMap<Lane, Vec<&Message>> = BTreeMap::new();
        for message in &leased.messages {
            lanes.entry(message.key.lane).or_default().push(message);
        }
        let choices: Choices<'_> = lanes
            .into_iter()
            .map(|(lane, messages)| (lane, self.choose(&messages, habit)))
            .filter(|(_, items)| !items.is_empty())
            .collect();
        if !choices.is_empty() {
            self.settle(leased, choices).await?;
        }
        Ok(())
    }

    /// The outcomes for the messages of a lane. Nothing is reported after a nack.
    fn choose<'a>(&mut self, messages: &[&'a Message], habit: Habit) -> Vec<(&'a Message, Verdict)> {
        let count = messages.len();
        let done = match habit {
            Habit::GiveBack | Habit::Partly => self.caller.random.below(count),
            _ => count,
        };
        // All of them, or the last one for all.
        let from = if self.caller.percent(50) { 0 } else { done.saturating_sub(1) };
        let mut items: Vec<_> =
            messages[from..done].iter().map(|&message| (message, Verdict::Completed)).collect();
        if habit == Habit::GiveBack {
            items.push((messages[done], Verdict::Again));
        }
        items
    }

    async fn settle(&mut self, leased: &Leased, mut choices: Choices<'_>) -> Result<()> {
        let lease = &leased.lease;
        let completes = choices.iter().flat_map(|(_, items)| items).all(|item| item.1 == Verdict::Completed);
        let by_id =
            !(completes && GROUPS[self.group].1 == REPEATS && self.caller.percent(BY_TRANSACTION_PERCENT));
        if !by_id {
            first_of_each_transaction(leased, &mut choices);
        }
        let failed = self.manner == Manner::GivesUp || self.caller.percent(50);
        let word = if failed { "failed" } else { "retry" };
        let items: Vec<Value> = choices
            .iter()
            .flat_map(|(_, items)| items)
            .map(|(message, verdict)| {
                json!({
                    "transactionId": message.transaction_id,
                    "messageId": by_id.then_some(message.id),
                    "partitionId": message.partition_id,
                    "leaseId": lease,
                    "status": if *verdict == Verdict::Completed { "completed" } else { word },
                    "consumerGroup": GROUPS[self.group].0,
                })
            })
            .collect();
        let (path, body) = match &items[..] {
            [one] => ("/api/v1/ack", one.to_string()),
            _ => (
                "/api/v1/ack/batch",
                json!({"acknowledgments": items, "consumerGroup": GROUPS[self.group].0}).to_string(),
            ),
        };
        for _ in 0..ACK_TRIES {
            let answer = self.caller.post(path, body.as_bytes()).await?;
            let answers = match answer.body() {
                Some(body) => Some(settled(body, items.len(), answer.status() == Some(202))?),
                None => None,
            };
            let mut at = 0;
            for (lane, items) in &choices {
                let mine = at..at + items.len();
                at = mine.end;
                let outcome = match &answers {
                    Some(answers) => Outcome::Answered(answers[mine].to_vec()),
                    None => Outcome::Unknown,
                };
                self.caller.run.history().settles.push(Settle {
                    sent: answer.sent,
                    ended: answer.ended,
                    lease: lease.clone(),
                    lane: *lane,
                    items: items.iter().map(|(message, verdict)| (message.key, *verdict)).collect(),
                    outcome,
                });
            }
            if answers.is_some() {
                break;
            }
        }
        Ok(())
    }

    async fn renew(&mut self, lease: &str) -> Result<()> {
        #[derive(Deserialize)]
        struct Extended {
            renewed: u32,
        }
        let path = format!("/api/v1/lease/{lease}/extend");
        let body = json!({"seconds": LEASE.as_secs()}).to_string();
        let answer = self.caller.post(&path, body.as_bytes()).await?;
        let outcome = match answer.body() {
            Some(body) => Outcome::Answered(parse::<Extended>(body)?.renewed),
            None => Outcome::Unknown,
        };
        self.caller.run.history().renewals.push(Renewal {
            sent: answer.sent,
            ended: answer.ended,
            lease: lease.to_owned(),
            extension: LEASE,
            outcome,
        });
        Ok(())
    }
}

/// Without a message id, an acknowledgement applies to the first message of its transaction id in the lease.
fn first_of_each_transaction<'a>(leased: &'a Leased, choices: &mut Choices<'a>) {
    for (lane, items) in choices {
        for (message, _) in items {
            let is_meant =
                |one: &&Message| one.key.lane == *lane && one.transaction_id == message.transaction_id;
            *message = leased.messages.iter().find(is_meant).unwrap_or(message);
        }
    }
}

fn settled(body: &[u8], count: usize, accepted: bool) -> Result<Vec<Settled>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Acked {
        success: bool,
        noop: bool,
        operation_id: Option<String>,
    }
    let acked: Vec<Acked> = parse(body)?;
    ensure!(acked.len() == count, "{} results for {count} acknowledgements", acked.len());
    let settled = |one: &Acked| Settled {
        success: one.success,
        noop: one.noop,
        deferred: accepted && one.operation_id.is_some(),
    };
    Ok(acked.iter().map(settled).collect())
}
