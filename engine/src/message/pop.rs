//! Pop: drives the state machine, claims through the lane, reads what the cache does not hold, and parks.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use queen_protocol::{LeaseId, PopFilter, PopRequest, QUEUE_MODE, Subscription};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::claim::{Candidate, Claimed, FOREIGN_LEASE_LOOK, Grants, PopClaim};
use super::fetch::{Fetch, covers};
use super::open::{Open, Opened};
use super::turn::Turn;
use crate::Engine;
use crate::clock;
use crate::db::control;
use crate::db::procedures;
use crate::db::{Checkout, Error as DbError};
use crate::error::{Error, UnreadableMessage};
use crate::life::{self, Traced, TracedMessage};
use crate::log::Partition;
use crate::log::ids::TransactionHash;
use crate::log::segments::Segment;
use crate::pop::answer::{Answer, Delivery, Unread, write_answer};
use crate::pop::leases::{Messages, Service};
use crate::pop::machine::{Call, Event, Machine, State};
use crate::pop::watch::{Interest, Waiter, Watch};

/// One page of a queue's partitions when a watch is filled; 10,000 take the database about 20 ms.
const SEED_PAGE: i32 = 10_000;

/// Partitions a broker remembers to have registered a group for; a second registration changes nothing.
const REGISTERED_MAX: usize = 10_000;

/// Partitions believed leased that a pop asks for before it answers "empty".
const LEASED_LOOK_MAX: usize = 64;

/// How often a pop by label looks for queues that appeared since.
const LABELS_LOOK: Duration = Duration::from_secs(1);

/// A hole in what was read means that an extent moved under the reader: read again.
const FETCHES_MAX: usize = 5;

/// Partitions with a message that cannot be read which one pop sets aside before it gives up.
const UNREAD_MAX: u32 = 16;

/// How often a pop looks again because lists were emptied while it read them.
const RESETS_MAX: u32 = 5;

/// A pop that waits asks again when the lane had no room for it.
const FULL_PAUSE: Duration = Duration::from_millis(100);

/// How long a pop that does not wait asks again for partitions that are locked, before it answers "empty".
const BUSY_PATIENCE: Duration = Duration::from_millis(200);
const BUSY_PAUSE_MAX: Duration = Duration::from_millis(16);

impl Engine {
    /// `None`: there is nothing.
    ///
    /// # Cancel safety
    /// Dropped while parked or queued, the pop takes no lease. Dropped later, the lease it took is given back.
    pub async fn pop(&self, request: PopRequest) -> Result<Option<Answer>, Error> {
        self.pop_until(request, None).await
    }

    /// The same, but it waits no longer once `ended` says so. What it has claimed by then it still answers with.
    pub async fn pop_until(
        &self,
        request: PopRequest,
        ended: Option<&CancellationToken>,
    ) -> Result<Option<Answer>, Error> {
        self.check_open()?;
        let answer = match ended.is_some_and(CancellationToken::is_cancelled) {
            true => None,
            false => self.serve(&request, ended).await?,
        };
        if let PopFilter::Queue { queue } | PopFilter::Partition { queue, .. } = &request.filter {
            self.shared.tally.record(queue, |minute| {
                minute.pop_requests += 1;
                minute.pop_empty += u64::from(answer.is_none());
            });
        }
        Ok(answer)
    }

    async fn serve(
        &self,
        request: &PopRequest,
        ended: Option<&CancellationToken>,
    ) -> Result<Option<Answer>, Error> {
        let deadline = request.wait.map(|wait| clock::now() + wait);
        let mut reopened = false;
        let mut unread = 0;
        let mut resets = 0;
        loop {
            if self.shared.load.pop_maintenance() {
                return Ok(None);
            }
            // Boxed: a parked pop holds none of what it needs while it looks.
            let places = Box::pin(self.places(request)).await?;
            let wildcard = !matches!(request.filter, PopFilter::Partition { .. });
            let mut gone = false;
            match Box::pin(self.attempt(request, &places, wildcard, &mut gone)).await {
                Ok(Some(answer)) => return Ok(Some(answer)),
                Ok(None) => {}
                // It is set aside, and must not keep this pop from its neighbours.
                Err(Error::Unreadable(_)) if wildcard => {
                    unread += 1;
                    if unread < UNREAD_MAX {
                        continue;
                    }
                }
                // Who waits anyway waits until there is room.
                Err(Error::Database(DbError::Full)) if deadline.is_some_and(|at| at > clock::now()) => {
                    tokio::select! {
                        () = tokio::time::sleep(FULL_PAUSE) => continue,
                        () = cancelled(ended) => return Ok(None),
                    }
                }
                Err(error) => return Err(error),
            }
            // The partition behind the name was deleted; there may be a new one by now.
            if gone && !std::mem::replace(&mut reopened, true) {
                continue;
            }
            if resets < RESETS_MAX && places.iter().any(Place::was_reset) {
                resets += 1;
                continue;
            }
            let Some(deadline) = deadline.filter(|deadline| *deadline > clock::now()) else {
                return Ok(None);
            };
            if self.shared.tasks.is_draining() {
                return Ok(None);
            }
            if !self.park(request, &places, deadline, ended).await {
                return Ok(None);
            }
        }
    }

    /// The watches a pop draws from. Registers the group on its first contact with a queue.
    async fn places(&self, request: &PopRequest) -> Result<Vec<Place>, Error> {
        match &request.filter {
            PopFilter::Queue { queue } => {
                let (watch, generation) = self.shared.watches.look(queue, &request.group);
                self.prepare(&watch, request, None).await?;
                Ok(vec![Place { watch, generation, partition: None, name: None }])
            }
            PopFilter::Partition { queue, partition } => {
                let (watch, generation) = self.shared.watches.look(queue, &request.group);
                self.prepare(&watch, request, Some(partition)).await?;
                let name: Arc<str> = partition.as_str().into();
                let open = Open {
                    queue: watch.queue.clone(),
                    partition: name.clone(),
                    namespace: None,
                    task: None,
                    create: Some(false),
                };
                let known = self.open(vec![open]).await?;
                let found = known.into_iter().find_map(Opened::known).map(|known| known.partition);
                if found.is_none() && !self.shared.config.auto_create {
                    let there = control::queue_exists(&self.shared.connections, queue).await?;
                    self.must_be_there(there, queue)?;
                }
                Ok(vec![Place { watch, generation, partition: found, name: Some(name) }])
            }
            PopFilter::Labels { namespace, task } => {
                let (namespace, task) = (namespace.as_deref(), task.as_deref());
                let queues = control::queues_matching(&self.shared.connections, namespace, task).await?;
                let mut places = Vec::with_capacity(queues.len());
                for queue in queues {
                    let (watch, generation) = self.shared.watches.look(&queue, &request.group);
                    self.prepare(&watch, request, None).await?;
                    places.push(Place { watch, generation, partition: None, name: None });
                }
                Ok(places)
            }
        }
    }

    /// First contact: the group is registered, and for a wildcard the ready list is filled.
    async fn prepare(
        &self,
        watch: &Arc<Watch>,
        request: &PopRequest,
        partition: Option<&str>,
    ) -> Result<(), Error> {
        if let Some(name) = partition {
            // From the oldest message on is what an unregistered group gets anyway.
            if request.subscription == Subscription::All || request.group == QUEUE_MODE {
                return Ok(());
            }
            let mut seeding = watch.seeding().await;
            if !seeding.registered && !seeding.partitions.contains(name) {
                let there = self.register(watch, request, name).await?;
                self.must_be_there(there, &watch.queue)?;
                if seeding.partitions.len() >= REGISTERED_MAX {
                    seeding.partitions.clear();
                }
                seeding.partitions.insert(name.into());
            }
            return Ok(());
        }
        let mut seeding = watch.seeding().await;
        if !seeding.registered {
            let there = self.register(watch, request, "").await?;
            self.must_be_there(there, &watch.queue)?;
            seeding.registered = true;
        }
        if !seeding.started {
            seeding.next = self.seed_page(watch, Uuid::nil()).await?;
            seeding.started = true;
        }
        Ok(())
    }

    /// Whether there is such a queue.
    async fn register(&self, watch: &Watch, request: &PopRequest, partition: &str) -> Result<bool, DbError> {
        let (new, since) = match request.subscription {
            Subscription::All => (false, None),
            Subscription::New => (true, None),
            Subscription::From(time) => (false, Some(time)),
        };
        let mode = request.mode.as_deref().unwrap_or(request.subscription.word());
        let (queue, group) = (&*watch.queue, &*watch.group);
        let registration = &procedures::Registration { queue, group, partition, mode, new, since };
        let register = |db: Checkout| async move { procedures::register_group(&db, registration).await };
        self.shared.connections.persist(register).await
    }

    /// Where queues are not made by themselves, nothing can be waited for in one that does not exist.
    fn must_be_there(&self, there: bool, queue: &str) -> Result<(), Error> {
        match there || self.shared.config.auto_create {
            true => Ok(()),
            false => Err(Error::NoQueue(queue.to_owned())),
        }
    }

    /// Fills the ready list from the database; says where the next page starts, if there is one.
    async fn seed_page(&self, watch: &Arc<Watch>, after: Uuid) -> Result<Option<Uuid>, DbError> {
        let seed = |db: Checkout| async move {
            procedures::seed(&db, &watch.queue, &watch.group, after, SEED_PAGE).await
        };
        let mut rows = self.shared.connections.persist(seed).await?;
        let last = rows.last().map(|row| row.id).filter(|_| rows.len() == SEED_PAGE as usize);
        rows.sort_by_key(|row| row.served_at);
        let now = clock::now();
        for row in rows {
            let held =
                row.wait_ms.map(|ms| now + Duration::from_millis(ms.max(0) as u64).min(FOREIGN_LEASE_LOOK));
            let partition = Partition {
                id: row.id,
                number: row.number,
                queue: watch.queue.clone(),
                name: row.name.into(),
            };
            watch.seed(Arc::new(partition), row.served_at.is_some(), held);
        }
        Ok(last)
    }

    /// One walk through the state machine.
    async fn attempt(
        &self,
        request: &PopRequest,
        places: &[Place],
        wildcard: bool,
        gone: &mut bool,
    ) -> Result<Option<Answer>, Error> {
        let mut machine = Machine::new(wildcard);
        let mut walk = Walk {
            candidates: Vec::new(),
            grants: Grants::none(&self.shared),
            answer: None,
            traced: Vec::new(),
            doubt: Doubt::Committed,
            busy: None,
        };
        let mut call = machine.next(Event::Start);
        while let Some(next) = call {
            let event = match self.step(request, places, next, &mut walk, gone).await {
                Ok(event) => event,
                Err(error) => {
                    machine.next(Event::Error);
                    return Err(error);
                }
            };
            call = machine.next(event);
        }
        // Grants that are dropped undelivered are given back.
        if machine.state() == State::Completed {
            let (group, auto) = (walk.grants.group.clone(), walk.grants.lease.is_none());
            walk.grants.delivered();
            for (partition, traced) in &walk.traced {
                self.shared.life.note(life::delivered(clock::now(), partition.id, &group, traced, auto));
            }
        }
        Ok(walk.answer)
    }

    /// Does what the machine asks for, and tells it what came of it.
    async fn step(
        &self,
        request: &PopRequest,
        places: &[Place],
        call: Call,
        walk: &mut Walk,
        gone: &mut bool,
    ) -> Result<Event, Error> {
        match call {
            Call::Resolve => {
                walk.candidates = self.candidates(request, places, walk.busy, &mut walk.doubt).await?;
                Ok(Event::Resolved(walk.candidates.len()))
            }
            Call::Lease => {
                if walk.candidates.is_empty() {
                    match named(places).await {
                        Some(candidate) => walk.candidates.push(candidate),
                        None => return Ok(Event::Leased { granted: 0, busy: false }),
                    }
                }
                let (lease, asked) = (Uuid::now_v7(), walk.candidates.len());
                let share = Share { batch: i64::from(request.batch.max(1)), partitions: wanted(request) };
                let claimed = self.lease(request, std::mem::take(&mut walk.candidates), lease, share).await?;
                *gone |= claimed.gone;
                let busy = claimed.busy;
                walk.grants = claimed.grants;
                if share.partitions > 1 && !walk.grants.claims.is_empty() {
                    self.lease_more(request, places, lease, share, asked, walk).await?;
                }
                let granted = walk.grants.claims.len();
                if granted > 0 || !busy {
                    return Ok(Event::Leased { granted, busy });
                }
                walk.busy.get_or_insert_with(clock::now);
                let named = matches!(request.filter, PopFilter::Partition { .. });
                let busy = named && another_look(request, walk.busy).await;
                Ok(Event::Leased { granted, busy })
            }
            Call::Fetch => {
                let mut deliveries = self.fetch(&mut walk.grants).await?;
                let mut unreadable = None;
                let answered = loop {
                    match self.answer(request, &walk.grants, &deliveries) {
                        Ok(answered) => break answered,
                        Err(unread) => {
                            unreadable = Some(self.cut(&mut walk.grants, &mut deliveries, unread).await?);
                        }
                    }
                };
                let messages = deliveries.iter().map(|delivery| delivery.last - delivery.first).sum::<i64>();
                if let (0, Some(unreadable)) = (messages, unreadable) {
                    return Err(Error::Unreadable(Box::new(unreadable)));
                }
                if let Some((answer, traced)) = answered.filter(|_| messages > 0) {
                    (walk.answer, walk.traced) = (Some(answer), traced);
                }
                Ok(Event::Fetched(messages as usize))
            }
        }
    }

    async fn candidates(
        &self,
        request: &PopRequest,
        places: &[Place],
        busy: Option<Instant>,
        doubt: &mut Doubt,
    ) -> Result<Vec<Candidate>, Error> {
        let wanted = wanted(request);
        loop {
            let now = clock::now();
            let mut candidates = Vec::new();
            for place in places {
                let batch = i64::from(request.batch);
                let likely = place.watch.likely(batch, wanted - candidates.len());
                let taken = place.watch.take(now, likely, batch);
                candidates.extend(
                    taken.into_iter().map(|partition| Candidate::new(place.watch.clone(), partition)),
                );
                if candidates.len() == wanted {
                    break;
                }
            }
            if !candidates.is_empty() {
                return Ok(candidates);
            }
            let mut paged = false;
            for place in places {
                let mut seeding = place.watch.seeding().await;
                if let Some(after) = seeding.next {
                    seeding.next = self.seed_page(&place.watch, after).await?;
                    paged = true;
                }
            }
            if paged {
                continue;
            }
            // A pop that waits is woken when a hint comes; one that does not must be sure before it says "empty".
            if request.wait.is_some() {
                return Ok(Vec::new());
            }
            match std::mem::replace(doubt, doubt.next()) {
                Doubt::Committed => self.shared.wake.discover(&self.shared).await?,
                Doubt::Released
                    if self.shared.wake.has_peers() || places.iter().any(|place| place.watch.has_busy()) =>
                {
                    for place in places {
                        let leased = place.watch.take_leased(LEASED_LOOK_MAX - candidates.len());
                        candidates.extend(leased.into_iter().map(|p| Candidate::new(place.watch.clone(), p)));
                    }
                    return Ok(candidates);
                }
                Doubt::Released | Doubt::Sure if another_look(request, busy).await => {}
                Doubt::Released | Doubt::Sure => return Ok(Vec::new()),
            }
        }
    }

    /// The partitions asked for may hold less than they were likely to: then others fill up the batch.
    async fn lease_more(
        &self,
        request: &PopRequest,
        places: &[Place],
        lease: Uuid,
        share: Share,
        asked: usize,
        walk: &mut Walk,
    ) -> Result<(), Error> {
        let (messages, partitions) = (walk.grants.messages(), walk.grants.claims.len());
        for place in places {
            place.watch.yielded(messages, partitions);
        }
        let rest = Share { batch: share.batch - messages, partitions: share.partitions - partitions };
        if asked >= share.partitions || rest.batch <= 0 || rest.partitions == 0 {
            return Ok(());
        }
        let (now, mut candidates) = (clock::now(), Vec::new());
        for place in places {
            let taken = place.watch.take(now, rest.partitions - candidates.len(), rest.batch);
            candidates.extend(taken.into_iter().map(|p| Candidate::new(place.watch.clone(), p)));
        }
        // A watch that was reset meanwhile hands out what this pop holds, which would be granted once more.
        candidates.retain(|candidate| !candidate.is_held(&walk.grants));
        if !candidates.is_empty() {
            let mut claimed = self.lease(request, candidates, lease, rest).await?;
            walk.grants.claims.append(&mut claimed.grants.claims);
        }
        Ok(())
    }

    /// Claims; what was not granted goes back to its ready list.
    async fn lease(
        &self,
        request: &PopRequest,
        candidates: Vec<Candidate>,
        lease: Uuid,
        share: Share,
    ) -> Result<Claimed, Error> {
        let claim = PopClaim {
            number: self.claims.fetch_add(1, Relaxed),
            candidates,
            group: request.group.as_str().into(),
            lease,
            seconds: request.lease_seconds,
            batch: share.batch as i32,
            partitions_max: share.partitions as i32,
            auto: request.auto_ack,
        };
        Ok(self.lanes.turn.submit(Turn::Claim(claim)).await?.into_claim()?)
    }

    /// Reads the claimed ranges, from the cache where it holds them.
    async fn fetch(&self, grants: &mut Grants) -> Result<Vec<Delivery>, Error> {
        let mut found: Vec<Option<Vec<Arc<Segment>>>> = {
            let mut segments = self.shared.segments();
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
            let fetch = Fetch { number: self.claims.fetch_add(1, Relaxed), ids, first, last };
            let read = self.lanes.fetch.submit(fetch).await?;
            for (index, segments) in missing.into_iter().zip(read) {
                let claim = &grants.claims[index];
                found[index] = covers(&segments, claim.first, claim.last).then_some(segments);
            }
        }
        let mut deliveries = Vec::with_capacity(found.len());
        let mut undelivered = Grants::none(&self.shared);
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

    /// What is before a message that cannot be read is delivered; from there on nothing is claimed.
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
        self.shared.troubles.unreadable(&delivery.partition, &message);
        grants.withdraw(unread.delivery, unread.offset).await?;
        match unread.offset > delivery.first {
            true => delivery.last = unread.offset,
            false => drop(deliveries.remove(unread.delivery)),
        }
        Ok(message)
    }

    /// Also remembers what was served, for the acks to come.
    fn answer(
        &self,
        request: &PopRequest,
        grants: &Grants,
        deliveries: &[Delivery],
    ) -> Result<Option<(Answer, TracedDeliveries)>, Unread> {
        let keys = &self.shared.config.keys;
        let Some(top) = deliveries.first() else { return Ok(None) };
        let partitions = deliveries.iter().map(|delivery| delivery.partition.number).collect();
        let mut lease = grants.lease.map(|id| LeaseId { id, partitions, traced: false });
        let Some(mut written) =
            write_answer(deliveries, &request.group, lease.as_ref(), request.brief, keys)?
        else {
            return Ok(None);
        };
        if let Some(lease) = lease.as_mut().filter(|_| !written.traced.is_empty()) {
            // Only now is it known, and every message names its lease.
            lease.traced = true;
            if let Some(again) = write_answer(deliveries, &request.group, Some(lease), request.brief, keys)? {
                written = again;
            }
        }
        self.count_delivered(deliveries);
        let mut answer = Answer {
            body: written.body,
            messages: grants.messages() as usize,
            queue: top.partition.queue.clone(),
            partition: (deliveries.len() == 1).then(|| deliveries[0].partition.name.clone()),
            traces: Vec::new(),
        };
        let mut traced: Vec<Option<Arc<Traced>>> = Vec::new();
        if !written.traced.is_empty() {
            answer.traces = written.traced.iter().filter_map(|(_, message)| message.parent).collect();
            traced = by_delivery(deliveries, written.traced);
        }
        if let Some(lease) = grants.lease {
            let mut book = self.shared.leases();
            let kept = match grants.incarnation == self.shared.connections.incarnation() {
                true => deliveries,
                false => &[],
            };
            for (index, delivery) in kept.iter().enumerate() {
                let hashes = delivery.segments.iter().flat_map(|segment| {
                    let from = (delivery.first - segment.base_offset).max(0) as usize;
                    let to = (delivery.last.min(segment.end()) - segment.base_offset) as usize;
                    let bytes = TransactionHash::BYTES;
                    TransactionHash::read_all(&segment.transactions[from * bytes..to * bytes])
                });
                let (partition, holder) = (delivery.partition.clone(), request.holder.clone());
                let service = Service { partition, head: delivery.head, holder };
                let traced = traced.get(index).cloned().flatten();
                let promised = written.promised.iter().filter(|(delivery, ..)| *delivery == index);
                let promised = promised.map(|&(_, id, offset)| (id, offset)).collect();
                let messages = Messages { first: delivery.first, hashes, promised };
                book.serve(service, grants.group.clone(), lease, messages, traced);
            }
        }
        let traced = deliveries.iter().zip(traced);
        let traced = traced.filter_map(|(delivery, traced)| Some((delivery.partition.clone(), traced?)));
        Ok(Some((answer, traced.collect())))
    }

    fn count_delivered(&self, deliveries: &[Delivery]) {
        let now = clock::wall();
        for delivery in deliveries {
            self.shared.troubles.delivered(delivery.partition.id);
            self.shared.tally.record(&delivery.partition.queue, |minute| {
                for segment in &delivery.segments {
                    let messages = delivery.last.min(segment.end()) - delivery.first.max(segment.base_offset);
                    minute.delivered(messages.max(0) as u64, (now - segment.created_at).max(0) as u64);
                }
            });
        }
    }

    /// Waits in memory until something may be ready or the time is up. Holds no connection. False: the wait was ended, and
    /// if somebody has woken it just then, the next one is woken in its place.
    async fn park(
        &self,
        request: &PopRequest,
        places: &[Place],
        deadline: Instant,
        ended: Option<&CancellationToken>,
    ) -> bool {
        let waiter: Arc<Waiter> = Arc::default();
        let parked = Parked { places, waiter: &waiter, looked: false };
        for place in places {
            let id = place.partition.as_ref().map(|partition| partition.id);
            if !place.watch.park(place.interest(), id, place.generation, &waiter) {
                parked.look();
                return true;
            }
        }
        let look_again = match request.filter {
            PopFilter::Labels { .. } => deadline.min(clock::now() + LABELS_LOOK),
            _ => deadline,
        };
        tokio::select! {
            () = waiter.woken() => {}
            () = tokio::time::sleep_until(look_again.into()) => {}
            () = self.shared.tasks.draining() => {}
            () = cancelled(ended) => return false,
        }
        parked.look();
        true
    }
}

/// A pop that does not wait outlasts a moment's lock: says whether it looks again, after a pause. One that waits parks, and is
/// woken when it is time. `busy`: when it first met a partition that was locked.
async fn another_look(request: &PopRequest, busy: Option<Instant>) -> bool {
    let Some(met) = busy.filter(|_| request.wait.is_none()) else { return false };
    let since = clock::now() - met;
    if since >= BUSY_PATIENCE {
        return false;
    }
    tokio::time::sleep(since.clamp(Duration::from_millis(1), BUSY_PAUSE_MAX)).await;
    true
}

async fn cancelled(token: Option<&CancellationToken>) {
    match token {
        Some(token) => token.cancelled().await,
        None => std::future::pending().await,
    }
}

type TracedDeliveries = Vec<(Arc<Partition>, Arc<Traced>)>;

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

/// What is left of a pop's batch, and of the partitions it may come from.
#[derive(Clone, Copy)]
struct Share {
    batch: i64,
    partitions: usize,
}

/// Partitions a pop may be served from.
fn wanted(request: &PopRequest) -> usize {
    match request.filter {
        PopFilter::Partition { .. } => 1,
        _ => request.partitions.max(1) as usize,
    }
}

/// What a pop carries from state to state.
struct Walk {
    candidates: Vec<Candidate>,
    grants: Grants,
    answer: Option<Answer>,
    /// What of it is traced.
    traced: TracedDeliveries,
    doubt: Doubt,
    /// When it first met a partition that was locked.
    busy: Option<Instant>,
}

/// What a pop has still to rule out before it answers "empty": other brokers may have committed or released
/// something without a hint so far.
#[derive(Clone, Copy)]
enum Doubt {
    Committed,
    Released,
    Sure,
}

impl Doubt {
    fn next(self) -> Self {
        match self {
            Self::Committed => Self::Released,
            Self::Released | Self::Sure => Self::Sure,
        }
    }
}

/// A watch a pop draws from; `name` when it wants one partition of it, which may not exist yet.
struct Place {
    watch: Arc<Watch>,
    /// In which the pop looks.
    generation: u64,
    partition: Option<Arc<Partition>>,
    name: Option<Arc<str>>,
}

impl Place {
    fn interest(&self) -> Interest<'_> {
        match &self.name {
            Some(name) => Interest::Partition(name),
            None => Interest::Any,
        }
    }

    fn was_reset(&self) -> bool {
        self.watch.generation() != self.generation
    }
}

/// Leaves the watches however the parked pop ends.
struct Parked<'a> {
    places: &'a [Place],
    waiter: &'a Arc<Waiter>,
    looked: bool,
}

impl Parked<'_> {
    fn look(mut self) {
        self.looked = true;
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        for place in self.places {
            place.watch.leave(place.interest(), self.waiter, self.looked);
        }
    }
}

/// The named partition, once no other pop of this broker is claiming it. `None`: it does not exist.
async fn named(places: &[Place]) -> Option<Candidate> {
    let place = places.first()?;
    let partition = place.partition.clone()?;
    loop {
        match place.watch.begin(&partition) {
            Ok(()) => return Some(Candidate::new(place.watch.clone(), partition)),
            Err(turn) => {
                if let Ok(handover) = turn.await {
                    handover.accept();
                    return Some(Candidate::new(place.watch.clone(), partition));
                }
            }
        }
    }
}
