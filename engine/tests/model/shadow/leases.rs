//! The leases of one group on one partition: at most one of them is live. A lease is identified by the pop that was granted it, so it
//! began somewhere between that pop's start and its end.

use uuid::Uuid;

use crate::words::{Micros, Op, Via};

#[derive(Default)]
pub struct Leases {
    grants: Vec<Grant>,
    /// Calls that can end any of these leases.
    loose: Vec<Loose>,
}

pub struct Grant {
    op: Op,
    lease: String,
    via: Via,
    /// Begin and end of the pop.
    span: (Micros, Micros),
    last: Uuid,
    /// The first message, and how often it had failed when the lease was granted; `None` once that may have changed.
    first: Option<(Uuid, i32)>,
    /// The earliest and the latest time at which the lease expires.
    until_least: Micros,
    until_most: Micros,
    /// Number of renewals that may or may not have been executed.
    renewing: usize,
    /// Calls that may have ended the lease, and when they began.
    enders: Vec<(Op, Micros)>,
    released: Option<Micros>,
}

struct Loose {
    op: Op,
    begin: Micros,
    end: Option<Micros>,
}

/// What is known about a lease during a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Live,
    Unsure,
    Over,
}

impl Grant {
    pub fn new(op: Op, lease: &str, via: Via, span: (Micros, Micros), seconds: i32) -> Self {
        let length = i64::from(seconds) * 1_000_000;
        Self {
            op,
            lease: lease.to_owned(),
            via,
            span,
            last: Uuid::nil(),
            first: None,
            until_least: span.0 + length,
            until_most: span.1 + length,
            renewing: 0,
            enders: Vec::new(),
            released: None,
        }
    }

    pub fn over(self, ids: &[Uuid], attempts: i32) -> Self {
        Self { last: ids[ids.len() - 1], first: Some((ids[0], attempts)), ..self }
    }

    fn may_have_ended(&self, loose: &[Loose], by: Micros, except: Op) -> bool {
        self.until_least <= by
            || self.enders.iter().any(|(op, begin)| *op != except && *begin <= by)
            || loose.iter().any(|loose| {
                let reached = loose.end.is_none_or(|end| end >= self.span.0);
                loose.op != except && loose.begin <= by && reached
            })
    }
}

impl Leases {
    pub fn granted(&mut self, new: Grant) -> Result<(), String> {
        for old in &self.grants {
            let old_first = old.may_have_ended(&self.loose, new.span.1, 0);
            let new_first = new.may_have_ended(&self.loose, old.span.1, 0);
            if !old_first && !new_first {
                let held = old.until_least - new.span.1;
                return Err(format!(
                    "two leases live at once: {} of op {} had {held} µs left when op {} was granted {}",
                    old.lease, old.op, new.op, new.lease
                ));
            }
        }
        self.grants.push(new);
        Ok(())
    }

    /// Called for an ack of messages up to `top`. A nack may end the lease at any message.
    pub fn may_end(&mut self, op: Op, at: Micros, lease: Option<&str>, top: Option<Uuid>, nack: bool) {
        let Some(lease) = lease else { return self.may_all_end(op, at) };
        if let Some(grant) = self.grant(lease)
            && (nack || top >= Some(grant.last))
        {
            grant.enders.push((op, at));
        }
    }

    pub fn may_all_end(&mut self, op: Op, at: Micros) {
        self.loose.push(Loose { op, begin: at, end: None });
    }

    /// The call is over and has no further effect.
    pub fn over(&mut self, op: Op, at: Micros) {
        for loose in self.loose.iter_mut().filter(|loose| loose.op == op) {
            loose.end = Some(at);
        }
    }

    pub fn ended_nothing(&mut self, op: Op) {
        self.loose.retain(|loose| loose.op != op);
        for grant in &mut self.grants {
            grant.enders.retain(|(own, _)| *own != op);
        }
    }

    pub fn released(&mut self, lease: &str, at: Micros) {
        if let Some(grant) = self.grant(lease) {
            grant.released.get_or_insert(at);
        }
    }

    /// The first message, and how often it has failed, if nothing can have changed that since.
    pub fn first(&mut self, lease: &str) -> Option<(Uuid, i32)> {
        self.grant(lease)?.first
    }

    pub fn attempts_may_change(&mut self, lease: &str) {
        if let Some(grant) = self.grant(lease) {
            grant.first = None;
        }
    }

    pub fn renewing(&mut self, lease: &str) {
        if let Some(grant) = self.grant(lease) {
            grant.renewing += 1;
        }
    }

    /// `least`: if the lease was certainly extended. `most`: if it was certainly not extended further.
    pub fn renewed(&mut self, lease: &str, least: Option<Micros>, most: Option<Micros>) {
        let Some(grant) = self.grant(lease) else { return };
        if let Some(least) = least {
            grant.until_least = grant.until_least.max(least);
        }
        if let Some(most) = most {
            grant.until_most = grant.until_most.max(most);
            grant.renewing -= 1;
        }
    }

    /// What is known about the lease during a call that spans this time. `None`: no such lease was granted here.
    pub fn standing(&self, lease: &str, span: (Micros, Micros), op: Op) -> Option<Standing> {
        let grant = self.grants.iter().find(|grant| grant.lease == lease)?;
        if !grant.may_have_ended(&self.loose, span.1, op) {
            return Some(Standing::Live);
        }
        // A broken engine may send a claim twice, and the second may arrive after the lease was released.
        let released = grant.released.is_some_and(|at| at <= span.0);
        let expired = grant.renewing == 0 && grant.until_most < span.0;
        let over = grant.via == Via::Healthy && (released || expired);
        Some(if over { Standing::Over } else { Standing::Unsure })
    }

    fn grant(&mut self, lease: &str) -> Option<&mut Grant> {
        self.grants.iter_mut().find(|grant| grant.lease == lease)
    }
}
