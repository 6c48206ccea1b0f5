//! Reads what a pop has claimed, writes the response, and remembers what it delivers for the acks to come.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use queen_protocol::LeaseId;
use uuid::Uuid;

use super::{Held, Pop};
use crate::clock;
use crate::error::{Error, UnreadableMessage};
use crate::life::{Traced, TracedMessage};
use crate::log::Partition;
use crate::log::ids::TransactionHash;
use crate::log::segments::Segment;
use crate::message::claim::Grants;
use crate::message::fetch::{Fetch, covers};
use crate::pop::answer::{Answer, Delivery, Unread, Written, write_answer};
use crate::pop::leases::{Messages, Service};

/// A hole in what was read means that an extent moved under the reader: read again.
const FETCHES_MAX: usize = 5;

pub type TracedDelivery = (Arc<Partition>, Arc<Traced>);

impl Pop<'_> {
    /// Returns how many messages the response has.
    pub(super) async fn deliver(&self, held: &mut Held) -> Result<usize, Error> {
        let Some(grants) = &mut held.grants else { return Ok(0) };
        let mut deliveries = self.read(grants).await?;
        let mut unreadable = None;
        let written = loop {
            match self.write(grants, &deliveries) {
                Ok(written) => break written,
                Err(unread) => unreadable = Some(self.cut(grants, &mut deliveries, unread).await?),
            }
        };
        let messages: i64 = deliveries.iter().map(|delivery| delivery.last - delivery.first).sum();
        match (written, unreadable) {
            (Some(written), _) if messages > 0 => self.remember(held, &deliveries, written),
            (_, Some(unreadable)) if messages == 0 => return Err(Error::Unreadable(Box::new(unreadable))),
            _ => {}
        }
        Ok(messages as usize)
    }

    /// Reads the claimed ranges, from the cache where it holds them.
    async fn read(&self, grants: &mut Grants) -> Result<Vec<Delivery>, Error> {
        let shared = &self.engine.shared;
        let mut found: Vec<Option<Vec<Arc<Segment>>>> = {
            let mut segments = shared.segments();
            let found: Vec<_> =
                grants.claims.iter().map(|c| segments.range(c.partition.id, c.first, c.last)).collect();
            let hits = found.iter().flatten().count();
            segments.count(hits, found.len() - hits);
            found
        };
        for _ in 0..FETCHES_MAX {
            let missing: Vec<usize> = (0..found.len()).filter(|&index| found[index].is_none()).collect();
            if missing.is_empty() {
                break;
            }
            let ids: Vec<Uuid> = missing.iter().map(|&index| grants.claims[index].partition.id).collect();
            let first: Vec<i64> = missing.iter().map(|&index| grants.claims[index].first).collect();
            let last: Vec<i64> = missing.iter().map(|&index| grants.claims[index].last).collect();
            let fetch = Fetch { number: self.engine.claims.fetch_add(1, Relaxed), ids, first, last };
            let read = self.engine.lanes.fetch.submit(fetch).await?;
            for (index, segments) in missing.into_iter().zip(read) {
                let claim = &grants.claims[index];
                found[index] = covers(&segments, claim.first, claim.last).then_some(segments);
            }
        }
        let mut deliveries = Vec::with_capacity(found.len());
        let mut undelivered = Grants::none(shared);
        (undelivered.group, undelivered.lease) = (grants.group.clone(), grants.lease);
        for (claim, segments) in std::mem::take(&mut grants.claims).into_iter().zip(found) {
            // Retention may have dropped the range since it was claimed: nothing to deliver then.
            let Some(segments) = segments else {
                undelivered.claims.push(claim);
                continue;
            };
            deliveries.push(Delivery {
                partition: claim.partition.clone(),
                first: claim.first,
                last: claim.last,
                head: claim.head,
                attempts: claim.attempts,
                lease_ms: claim.lease_ms,
                segments,
            });
            grants.claims.push(claim);
        }
        Ok(deliveries)
    }

    /// Keeps what is before a message that cannot be read, to be delivered; from there on nothing stays claimed.
    async fn cut(
        &self,
        grants: &mut Grants,
        deliveries: &mut Vec<Delivery>,
        unread: Unread,
    ) -> Result<UnreadableMessage, Error> {
        let delivery = &mut deliveries[unread.delivery];
        let message = UnreadableMessage {
            queue: delivery.partition.queue.to_string(),
            partition: delivery.partition.name.to_string(),
            transaction_id: unread.transaction_id,
            cause: unread.cause,
        };
        self.engine.shared.troubles.unreadable(&delivery.partition, &message);
        grants.withdraw(unread.delivery, unread.offset).await?;
        match unread.offset > delivery.first {
            true => delivery.last = unread.offset,
            false => drop(deliveries.remove(unread.delivery)),
        }
        Ok(message)
    }

    fn write(&self, grants: &Grants, deliveries: &[Delivery]) -> Result<Option<Written>, Unread> {
        let (group, brief) = (self.request.group.as_str(), self.request.brief);
        let keys = &self.engine.shared.config.keys;
        let partitions = deliveries.iter().map(|delivery| delivery.partition.number).collect();
        let mut lease = grants.lease.map(|id| LeaseId { id, partitions, traced: false });
        let written = write_answer(deliveries, group, lease.as_ref(), brief, keys)?;
        let traced = written.as_ref().is_some_and(|written| !written.traced.is_empty());
        match lease.as_mut().filter(|_| traced) {
            None => Ok(written),
            // Only now is it known that there are traced messages, and every message names its lease.
            Some(lease) => {
                lease.traced = true;
                write_answer(deliveries, group, Some(&*lease), brief, keys)
            }
        }
    }

    /// Remembers what is about to be delivered, for its acks, figures and traces.
    fn remember(&self, held: &mut Held, deliveries: &[Delivery], written: Written) {
        let (Some(grants), Some(top)) = (&held.grants, deliveries.first()) else { return };
        self.count(deliveries);
        let traces = written.traced.iter().filter_map(|(_, message)| message.parent).collect();
        held.answer = Some(Answer {
            body: written.body,
            messages: grants.messages() as usize,
            queue: top.partition.queue.clone(),
            partition: (deliveries.len() == 1).then(|| top.partition.name.clone()),
            traces,
        });
        let traced = match written.traced.is_empty() {
            true => Vec::new(),
            false => by_delivery(deliveries, written.traced),
        };
        self.serve(grants, deliveries, &traced, &written.promised);
        let traced = deliveries.iter().zip(traced);
        held.traced =
            traced.filter_map(|(delivery, traced)| Some((delivery.partition.clone(), traced?))).collect();
    }

    /// Records what is served under a lease, because its acks will name it.
    fn serve(
        &self,
        grants: &Grants,
        deliveries: &[Delivery],
        traced: &[Option<Arc<Traced>>],
        promised: &[(usize, Uuid, i64)],
    ) {
        let shared = &self.engine.shared;
        let Some(lease) = grants.lease else { return };
        let mut book = shared.leases();
        // Under the lock: the number changes before the book is emptied.
        if grants.incarnation != shared.connections.incarnation() {
            return;
        }
        for (index, delivery) in deliveries.iter().enumerate() {
            let hashes = delivery.segments.iter().flat_map(|segment| {
                let from = (delivery.first - segment.base_offset).max(0) as usize;
                let to = (delivery.last.min(segment.end()) - segment.base_offset) as usize;
                let bytes = TransactionHash::BYTES;
                TransactionHash::read_all(&segment.transactions[from * bytes..to * bytes])
            });
            let (partition, holder) = (delivery.partition.clone(), self.request.holder.clone());
            let service = Service { partition, head: delivery.head, holder };
            let promised = promised.iter().filter(|(delivery, ..)| *delivery == index);
            let promised = promised.map(|&(_, id, offset)| (id, offset)).collect();
            let messages = Messages { first: delivery.first, hashes, promised };
            let traced = traced.get(index).cloned().flatten();
            book.serve(service, grants.group.clone(), lease, messages, traced);
        }
    }

    fn count(&self, deliveries: &[Delivery]) {
        let (shared, now) = (&self.engine.shared, clock::wall());
        for delivery in deliveries {
            shared.troubles.delivered(delivery.partition.id);
            shared.tally.record(&delivery.partition.queue, |minute| {
                for segment in &delivery.segments {
                    let messages = delivery.last.min(segment.end()) - delivery.first.max(segment.base_offset);
                    minute.delivered(messages.max(0) as u64, (now - segment.created_at).max(0) as u64);
                }
            });
        }
    }
}

/// One element per delivery.
fn by_delivery(deliveries: &[Delivery], traced: Vec<(usize, TracedMessage)>) -> Vec<Option<Arc<Traced>>> {
    let mut messages: Vec<Vec<TracedMessage>> = deliveries.iter().map(|_| Vec::new()).collect();
    for (index, message) in traced {
        messages[index].push(message);
    }
    let traced = deliveries.iter().zip(messages);
    let traced = traced.map(|(delivery, messages)| Traced {
        first: Some((delivery.first, delivery.attempts + 1)),
        messages,
    });
    traced.map(|traced| (!traced.messages.is_empty()).then(|| Arc::new(traced))).collect()
}
