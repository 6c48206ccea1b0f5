//! Transactions: pushes and acks that are executed together or not at all. A reader of a pushed message knows that the acks are done.

use super::acks::{AckSet, AckTicket, Asked, ItemAnswer};
use super::leases::Standing;
use super::log::{Placed, PushTicket, Sent};
use super::{Checked, Shadow, Violation};
use crate::plan::Proof;
use crate::words::{Micros, Op, PARTITIONS, Serial, Via};

pub struct TransactionTicket {
    pub push: PushTicket,
    acks: AckTicket,
    proof: Proof,
    lease: String,
    poison: bool,
}

pub(super) struct Transaction {
    serials: Vec<Serial>,
    acks: Vec<Asked>,
    settled: bool,
}

impl Shadow {
    #[expect(clippy::too_many_arguments, reason = "a transaction is all of these")]
    pub fn transaction_began(
        &mut self,
        op: Op,
        at: Micros,
        via: Via,
        items: Vec<Sent>,
        sets: Vec<AckSet>,
        (proof, lease): (Proof, &str),
        poison: bool,
    ) -> TransactionTicket {
        let serials = items.iter().map(|sent| sent.serial).collect();
        let push = self.push_began(op, via, items);
        let acks = self.ack_began(op, at, via, sets);
        self.transactions.insert(op, Transaction { serials, acks: acks.sets.clone(), settled: false });
        TransactionTicket { push, acks, proof, lease: lease.to_owned(), poison }
    }

    pub fn transaction_committed(
        &mut self,
        ticket: &TransactionTicket,
        at: Micros,
        placed: &[Placed],
        answers: &[Vec<ItemAnswer>],
    ) -> Checked {
        let acks = &ticket.acks;
        let first = &acks.sets[0].set;
        let failed = |what: &str| {
            Err(Violation { partition: first.partition, group: Some(first.group), what: what.to_owned() })
        };
        self.push_answered(&ticket.push, at, placed)?;
        if ticket.poison {
            return failed("a transaction acknowledged a message that does not exist");
        }
        let span = (acks.at, at);
        let over = |standing: &Option<Standing>| *standing == Some(Standing::Over);
        let everywhere: Vec<_> = (0..PARTITIONS)
            .map(|p| self.readers[&(p, first.group)].leases.standing(&ticket.lease, span, acks.op))
            .filter(Option::is_some)
            .collect();
        let refusable = match ticket.proof {
            Proof::Lease => acks.sets.iter().any(|asked| {
                let leases = &self.readers[&(asked.set.partition, asked.set.group)].leases;
                over(&leases.standing(&ticket.lease, span, acks.op))
            }),
            Proof::Required => everywhere.iter().all(over),
            Proof::Nothing => false,
        };
        if refusable {
            return failed("a transaction was committed on a lease that was over");
        }
        self.ack_answered(acks, at, answers)?;
        self.transactions.entry(acks.op).and_modify(|transaction| transaction.settled = true);
        Ok(())
    }

    pub fn transaction_rolled_back(&mut self, ticket: &TransactionTicket, at: Micros, why: &str) -> Checked {
        let acks = &ticket.acks;
        self.push_rolled_back(&ticket.push);
        let mut owned = true;
        for asked in &acks.sets {
            let (partition, group) = (asked.set.partition, asked.set.group);
            self.note(at, acks.op, partition, Some(group), format!("{:?} rolled back: {why}", acks.via));
            let reader = self.reader(partition, group);
            let standing = reader.leases.standing(&ticket.lease, (acks.at, at), acks.op);
            owned &= standing == Some(Standing::Live) || ticket.proof == Proof::Nothing;
            reader.did_not_finish(acks.op);
            reader.leases.ended_nothing(acks.op);
        }
        self.transactions.entry(acks.op).and_modify(|transaction| transaction.settled = true);
        if owned && !ticket.poison && acks.via == Via::Healthy {
            let set = &acks.sets[0].set;
            let what = format!("a transaction on a live lease was rolled back: {why}");
            return Err(Violation { partition: set.partition, group: Some(set.group), what });
        }
        Ok(())
    }

    /// This message was read, so if a transaction pushed it, its acks are executed too.
    pub(super) fn observed(&mut self, serial: Serial) {
        let Some(op) = self.sender(serial) else { return };
        let Some(transaction) = self.transactions.get_mut(&op) else { return };
        if !std::mem::replace(&mut transaction.settled, true) {
            for asked in transaction.acks.clone() {
                let top = asked.set.highest();
                self.reader(asked.set.partition, asked.set.group).finish(op, &asked.view, top);
            }
        }
    }

    /// All or nothing. For the end, when the log is known: the pushed messages show whether the acks were executed.
    pub fn transactions_are_whole(&mut self) -> Checked {
        let ops: Vec<Op> = self.transactions.keys().copied().collect();
        for op in ops {
            let transaction = &self.transactions[&op];
            let (serials, acks) = (&transaction.serials, transaction.acks.clone());
            let (stored, all) = (self.stored(serials), serials.len());
            let set = &acks[0].set;
            if stored != 0 && stored != all {
                let what = format!("{stored} of {all} messages of the transaction op {op} are stored");
                return Err(Violation { partition: set.partition, group: Some(set.group), what });
            }
            if transaction.settled {
                continue;
            }
            for asked in acks {
                let reader = self.reader(asked.set.partition, asked.set.group);
                match stored {
                    0 => reader.did_not_finish(op),
                    _ => reader.finish(op, &asked.view, asked.set.highest()),
                }
            }
        }
        Ok(())
    }
}
