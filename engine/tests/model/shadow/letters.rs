//! Dead letters: one for every dead-lettered message, none for any other.

use std::collections::{HashMap, HashSet};

use queen_protocol::AckStatus;
use uuid::Uuid;

use super::{Checked, Shadow, Violation};
use crate::words::{Group, Op, Partition, RETRY_LIMIT, offset};

/// A nack that may have made a dead letter; `dlq`: the response, if it is certain.
pub(super) struct Nack {
    pub partition: Partition,
    pub group: Group,
    pub status: AckStatus,
    pub dlq: Option<bool>,
}

#[derive(Debug, Clone)]
pub struct DeadLetter {
    pub partition: Partition,
    pub group: Group,
    pub id: Uuid,
    /// The call that it names in its error.
    pub op: Op,
    pub attempts: i32,
}

impl Shadow {
    /// A dead letter for every dead-lettered message, and for no other.
    pub fn dead_letters_match(&self, letters: &[DeadLetter]) -> Checked {
        let mut seen: HashMap<(Op, Uuid), usize> = HashMap::new();
        let mut by_group: HashMap<(Group, Uuid), usize> = HashMap::new();
        for letter in letters {
            let (partition, group) = (letter.partition, Some(letter.group));
            let failed = |what: String| {
                Err(Violation { partition, group, what: format!("dead #{}: {what}", offset(letter.id)) })
            };
            let nack = self.nacks.get(&(letter.op, letter.id));
            let Some(nack) = nack.filter(|nack| (nack.partition, Some(nack.group)) == (partition, group))
            else {
                return failed(format!("op {} did not give up on it", letter.op));
            };
            if nack.dlq == Some(false) {
                return failed(format!("op {} was told that it is not", letter.op));
            }
            if nack.status == AckStatus::Failed && letter.attempts < RETRY_LIMIT {
                return failed(format!("it was only retried {} times", letter.attempts));
            }
            let times = seen.entry((letter.op, letter.id)).or_default();
            let in_group = by_group.entry((letter.group, letter.id)).or_default();
            (*times, *in_group) = (*times + 1, *in_group + 1);
            if *times > 1 || (*in_group > 1 && letter.group != Group::Wander) {
                return failed("it is there twice".to_owned());
            }
        }
        self.enough_failures(letters)?;
        let missing = self.nacks.iter().find(|(key, nack)| nack.dlq == Some(true) && !seen.contains_key(key));
        missing.map_or(Ok(()), |((op, id), nack)| {
            let what = format!("op {op} was told that #{} is dead, but it is not there", offset(*id));
            Err(Violation { partition: nack.partition, group: Some(nack.group), what })
        })
    }

    /// A call counts as one failure at most, so a message becomes a dead letter only after
    /// one call more than the limit.
    fn enough_failures(&self, letters: &[DeadLetter]) -> Checked {
        let mut calls: HashMap<(Partition, Group), HashSet<Op>> = HashMap::new();
        for ((op, _), nack) in self.nacks.iter().filter(|(_, nack)| nack.status == AckStatus::Failed) {
            calls.entry((nack.partition, nack.group)).or_default().insert(*op);
        }
        let mut fatal: HashMap<(Partition, Group), HashSet<Op>> = HashMap::new();
        for letter in letters {
            if self.nacks[&(letter.op, letter.id)].status == AckStatus::Failed {
                fatal.entry((letter.partition, letter.group)).or_default().insert(letter.op);
            }
        }
        for ((partition, group), fatal) in fatal {
            let (calls, fatal) = (calls[&(partition, group)].len(), fatal.len());
            if calls < fatal * (RETRY_LIMIT as usize + 1) {
                let what = format!("{calls} calls failed messages, and {fatal} of them made dead letters");
                return Err(Violation { partition, group: Some(group), what });
            }
        }
        Ok(())
    }
}
