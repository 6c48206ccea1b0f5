//! Pop: drives the state machine, claims through the lane, reads what the cache does not hold, and parks.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use queen_protocol::{LeaseId, PopFilter, PopRequest, QUEUE_MODE, Subscription};
use tracing::warn;
use uuid::Uuid;

use super::open::Open;
use crate::Engine;
use crate::clock;
use crate::db::control;
use crate::db::procedures::{self, Leased};
use crate::db::{Connection, Error as DbError, Priority};
use crate::error::Error;
use crate::log::Partition;
use crate::log::ids::TransactionHash;
use crate::log::segments::Segment;
use crate::pop::answer::{Delivery, write_answer};
use crate::pop::machine::{Call, Event, Machine, State};
use crate::pop::ready::Claim;
use crate::pop::watch::{Interest, Waiter, Watch};
use crate::shared::Shared;
use crate::sidecar::Operation;

/// One page of a queue's partitions when a watch is filled; 10,000 take the database about 20 ms.
const SEED_PAGE: i32 = 10_000;

/// Partitions a broker remembers to have registered a group for; a second registration changes nothing.
const REGISTERED_MAX: usize = 10_000;

/// Somebody else's lease may end at any time without us hearing of it.
const FOREIGN_LEASE_LOOK: Duration = Duration::from_secs(1);

/// How often a pop by label looks for queues that appeared since.
const LABELS_LOOK: Duration = Duration::from_secs(1);

/// A hole in what was read means that an extent moved under the reader: read again.
const FETCHES_MAX: usize = 5;

impl Engine {
    /// The finished JSON body of a 200, or `None` for a 204.
    ///
    /// # Cancel safety
    /// Dropped while parked or queued, the pop takes no lease. Dropped later, the lease it took is given back.
    pub async fn pop(&self, request: PopRequest) -> Result<Option<Bytes>, Error> {
        let deadline = request.wait.map(|wait| clock::now() + wait);
        let mut reopened = false;
        loop {
            let places = self.places(&request).await?;
            let wildcard = !matches!(request.filter, PopFilter::Partition { .. });
            let mut gone = false;
            if let Some(answer) = self.attempt(&request, &places, wildcard, &mut gone).await? {
                return Ok(Some(answer));
            }
            // The partition behind the name was deleted; there may be a new one by now.
            if gone && !std::mem::replace(&mut reopened, true) {
                continue;
            }
            let Some(deadline) = deadline.filter(|deadline| *deadline > clock::now()) else {
                return Ok(None);
            };
            if self.shared.tasks.is_stopping() {
                return Ok(None);
            }
            self.park(&request, &places, deadline).await;
        }
    }

    /// The watches a pop draws from. Registers the group on its first contact with a queue.
    async fn places(&self, request: &PopRequest) -> Result<Vec<Place>, Error> {
        match &request.filter {
            PopFilter::Queue { queue } => {
                let watch = self.shared.watches.get(queue, &request.group);
                self.prepare(&watch, request, None).await?;
                Ok(vec![Place { watch, partition: None, name: None }])
            }
            PopFilter::Partition { queue, partition } => {
                let watch = self.shared.watches.get(queue, &request.group);
                self.prepare(&watch, request, Some(partition)).await?;
                let name: Arc<str> = partition.as_str().into();
                let open = Open {
                    queue: watch.queue.clone(),
                    partition: name.clone(),
                    namespace: None,
                    task: None,
                    create: false,
                };
                let known = self.open(vec![open]).await?;
                let found = known.into_iter().flatten().next().map(|known| known.partition);
                Ok(vec![Place { watch, partition: found, name: Some(name) }])
            }
            PopFilter::Labels { namespace, task } => {
                let (namespace, task) = (namespace.as_deref(), task.as_deref());
                let queues = control::queues_matching(&self.shared.connections, namespace, task).await?;
                let mut places = Vec::with_capacity(queues.len());
                for queue in queues {
                    let watch = self.shared.watches.get(&queue, &request.group);
                    self.prepare(&watch, request, None).await?;
                    places.push(Place { watch, partition: None, name: None });
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
    ) -> Result<(), DbError> {
        if let Some(name) = partition {
            // From the oldest message on is what an unregistered group gets anyway.
            if request.subscription == Subscription::All || request.group == QUEUE_MODE {
                return Ok(());
            }
            let mut seeding = watch.seeded.lock().await;
            if !seeding.registered && !seeding.partitions.contains(name) {
                self.register(watch, request, name).await?;
                if seeding.partitions.len() >= REGISTERED_MAX {
                    seeding.partitions.clear();
                }
                seeding.partitions.insert(name.into());
            }
            return Ok(());
        }
        let mut seeding = watch.seeded.lock().await;
        if !seeding.registered {
            self.register(watch, request, "").await?;
            seeding.registered = true;
        }
        if !seeding.started {
            seeding.next = self.seed_page(watch, Uuid::nil()).await?;
            seeding.started = true;
        }
        Ok(())
    }

    async fn register(&self, watch: &Watch, request: &PopRequest, partition: &str) -> Result<(), DbError> {
        let (new, since) = match request.subscription {
            Subscription::All => (false, None),
            Subscription::New => (true, None),
            Subscription::From(time) => (false, Some(time)),
        };
        let db = self.shared.connections.acquire(Priority::Pop).await?;
        procedures::subscribe(&db, &watch.queue, &watch.group, partition, new, since).await
    }

    /// Fills the ready list from the database; says where the next page starts, if there is one.
    async fn seed_page(&self, watch: &Arc<Watch>, after: Uuid) -> Result<Option<Uuid>, DbError> {
        let db = self.shared.connections.acquire(Priority::Pop).await?;
        let mut rows = procedures::seed(&db, &watch.queue, &watch.group, after, SEED_PAGE).await?;
        drop(db);
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
    ) -> Result<Option<Bytes>, Error> {
        let mut machine = Machine::new(wildcard);
        let mut walk = Walk {
            candidates: Vec::new(),
            grants: Grants::none(&self.shared),
            answer: None,
            discovered: false,
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
            walk.grants.delivered();
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
                walk.candidates = self.candidates(request, places, &mut walk.discovered).await?;
                Ok(Event::Resolved(walk.candidates.len()))
            }
            Call::Lease => {
                if walk.candidates.is_empty() {
                    match named(places).await {
                        Some(candidate) => walk.candidates.push(candidate),
                        None => return Ok(Event::Leased { granted: 0, busy: false }),
                    }
                }
                let claimed = self.lease(request, std::mem::take(&mut walk.candidates)).await?;
                *gone |= claimed.gone;
                let busy = claimed.busy;
                walk.grants = Grants::new(&self.shared, claimed);
                Ok(Event::Leased { granted: walk.grants.claims.len(), busy })
            }
            Call::Fetch => {
                let deliveries = self.fetch(&mut walk.grants).await?;
                let messages = deliveries.iter().map(|delivery| delivery.last - delivery.first).sum::<i64>();
                if messages > 0 {
                    walk.answer = self.answer(request, &walk.grants, &deliveries);
                }
                Ok(Event::Fetched(messages as usize))
            }
        }
    }

    async fn candidates(
        &self,
        request: &PopRequest,
        places: &[Place],
        discovered: &mut bool,
    ) -> Result<Vec<Candidate>, Error> {
        let wanted = request.partitions.max(1) as usize;
        loop {
            let now = clock::now();
            let mut candidates = Vec::new();
            for place in places {
                let taken = place.watch.take(now, wanted - candidates.len());
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
                let mut seeding = place.watch.seeded.lock().await;
                if let Some(after) = seeding.next {
                    seeding.next = self.seed_page(&place.watch, after).await?;
                    paged = true;
                }
            }
            if paged {
                continue;
            }
            // Before "empty" is the answer: what have other brokers committed that no hint told us yet? A pop that
            // waits is woken when the hint comes.
            if request.wait.is_some() || std::mem::replace(discovered, true) {
                return Ok(Vec::new());
            }
            self.shared.wake.discover(&self.shared).await?;
        }
    }

    /// Claims; what was not granted goes back to its ready list.
    async fn lease(&self, request: &PopRequest, candidates: Vec<Candidate>) -> Result<Claimed, Error> {
        let lease = Uuid::now_v7();
        let claim = PopClaim {
            number: self.claims.fetch_add(1, Relaxed),
            candidates,
            group: request.group.as_str().into(),
            lease,
            seconds: request.lease_seconds,
            batch: request.batch.max(1) as i32,
            auto: request.auto_ack,
        };
        Ok(self.lanes.pop.submit(claim).await?)
    }

    /// Reads the claimed ranges, from the cache where it holds them.
    async fn fetch(&self, grants: &mut Grants) -> Result<Vec<Delivery>, Error> {
        let mut found: Vec<Option<Vec<Arc<Segment>>>> = {
            let segments = self.shared.segments();
            grants.claims.iter().map(|c| segments.range(c.partition.id, c.first, c.last)).collect()
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
                attempts: claim.attempts,
                segments,
            });
            grants.claims.push(claim);
        }
        Ok(deliveries)
    }

    fn answer(&self, request: &PopRequest, grants: &Grants, deliveries: &[Delivery]) -> Option<Bytes> {
        let Some(lease) = grants.lease else { return write_answer(deliveries, &request.group, None) };
        let mut book = self.shared.leases();
        for delivery in deliveries {
            let hashes = delivery.segments.iter().flat_map(|segment| {
                let from = (delivery.first - segment.base_offset).max(0) as usize;
                let to = (delivery.last.min(segment.end()) - segment.base_offset) as usize;
                let bytes = TransactionHash::BYTES;
                TransactionHash::read_all(&segment.transactions[from * bytes..to * bytes])
            });
            book.serve(delivery.partition.id, grants.group.clone(), lease, delivery.first, hashes);
        }
        drop(book);
        let partitions = deliveries.iter().map(|delivery| delivery.partition.number).collect();
        write_answer(deliveries, &request.group, Some(&LeaseId { id: lease, partitions }))
    }

    /// Waits in memory until something may be ready or the time is up. Holds no connection.
    async fn park(&self, request: &PopRequest, places: &[Place], deadline: Instant) {
        let waiter: Arc<Waiter> = Arc::default();
        let parked = Parked { places, waiter: &waiter, looked: false };
        for place in places {
            let id = place.partition.as_ref().map(|partition| partition.id);
            if !place.watch.park(place.interest(), id, &waiter) {
                return parked.look();
            }
        }
        let look_again = match request.filter {
            PopFilter::Labels { .. } => deadline.min(clock::now() + LABELS_LOOK),
            _ => deadline,
        };
        tokio::select! {
            () = waiter.woken() => {}
            () = tokio::time::sleep_until(look_again.into()) => {}
            () = self.shared.tasks.stopping().cancelled() => {}
        }
        parked.look();
    }
}

/// What a pop carries from state to state.
struct Walk {
    candidates: Vec<Candidate>,
    grants: Grants,
    answer: Option<Bytes>,
    discovered: bool,
}

/// A watch a pop draws from; `name` when it wants one partition of it, which may not exist yet.
struct Place {
    watch: Arc<Watch>,
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
            Err(turn) => drop(turn.await),
        }
    }
}

/// A partition taken from its ready list; goes back unless a claim decided otherwise.
struct Candidate {
    watch: Arc<Watch>,
    partition: Arc<Partition>,
    decided: AtomicBool,
}

impl Candidate {
    fn new(watch: Arc<Watch>, partition: Arc<Partition>) -> Self {
        Self { watch, partition, decided: AtomicBool::new(false) }
    }

    /// Once: a later call might end the claim of the next pop.
    fn finish(&self, claim: Claim) {
        if !self.decided.swap(true, Relaxed) {
            self.watch.finish(&self.partition, claim);
        }
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        self.finish(Claim::Unused);
    }
}

struct Grant {
    partition: Arc<Partition>,
    watch: Arc<Watch>,
    first: i64,
    last: i64,
    attempts: i32,
}

/// Claims this pop holds. Dropped without `delivered`, they are given back.
struct Grants {
    shared: Arc<Shared>,
    claims: Vec<Grant>,
    group: Arc<str>,
    lease: Option<Uuid>,
}

impl Grants {
    fn none(shared: &Arc<Shared>) -> Self {
        Self { shared: shared.clone(), claims: Vec::new(), group: "".into(), lease: None }
    }

    fn new(shared: &Arc<Shared>, claimed: Claimed) -> Self {
        Self { shared: shared.clone(), claims: claimed.grants, group: claimed.group, lease: claimed.lease }
    }

    fn delivered(&mut self) {
        self.claims.clear();
    }
}

impl Drop for Grants {
    fn drop(&mut self) {
        if self.claims.is_empty() {
            return;
        }
        let claims = std::mem::take(&mut self.claims);
        let (shared, group, lease) = (self.shared.clone(), self.group.clone(), self.lease);
        self.shared.tasks.spawn(async move { give_back(&shared, &claims, &group, lease).await });
    }
}

async fn give_back(shared: &Shared, claims: &[Grant], group: &str, lease: Option<Uuid>) {
    let rows: Vec<procedures::Claimed<'_>> =
        claims.iter().map(|claim| (claim.partition.id, group, lease, claim.first, claim.last)).collect();
    let released = async {
        let db = shared.connections.acquire(Priority::Ack).await?;
        procedures::release(&db, &rows).await
    };
    match released.await {
        Ok(()) => {
            for claim in claims {
                claim.watch.released(claim.partition.id, &claim.partition.name, true);
                claim.watch.mark(&claim.partition);
            }
        }
        Err(error) => warn!(%error, consumer.group = group, "an undelivered lease runs until it expires"),
    }
}

fn covers(segments: &[Arc<Segment>], first: i64, last: i64) -> bool {
    let mut next = first;
    for segment in segments {
        if segment.base_offset > next {
            return false;
        }
        next = next.max(segment.end());
    }
    next >= last
}

/// One pop's claim on its candidates: an entry of the pop lane.
pub struct PopClaim {
    number: u64,
    candidates: Vec<Candidate>,
    group: Arc<str>,
    lease: Uuid,
    seconds: i32,
    batch: i32,
    auto: bool,
}

pub struct Claimed {
    grants: Vec<Grant>,
    group: Arc<str>,
    lease: Option<Uuid>,
    busy: bool,
    gone: bool,
}

impl Operation for PopClaim {
    const NAME: &'static str = "pop";
    const PRIORITY: Priority = Priority::Pop;
    const MERGED_MAX: usize = 1;
    /// Ready lists see to it that no partition is claimed twice at once, so no two entries exclude each other.
    type Key = u64;
    type Output = Claimed;
    type Context = Shared;

    fn key(&self) -> u64 {
        self.number
    }

    fn items(&self) -> usize {
        self.candidates.len()
    }

    fn bytes(&self) -> usize {
        0
    }

    async fn call(shared: &Arc<Shared>, db: &Connection, batch: &[Self]) -> Result<Vec<Claimed>, DbError> {
        let mut ask =
            procedures::Lease { bytes_max: shared.config.pop_bytes_max as i64, ..Default::default() };
        let mut places: Vec<(usize, usize)> = Vec::new();
        let mut seen = HashSet::new();
        for (pop, entry) in batch.iter().enumerate() {
            for (index, candidate) in entry.candidates.iter().enumerate() {
                // A watch that was reset may hand out what the old one still claims; the row would be granted twice.
                if !seen.insert((candidate.partition.id, &entry.group)) {
                    continue;
                }
                places.push((pop, index));
                ask.pops.push(pop as i32);
                ask.partitions.push(candidate.partition.id);
                ask.groups.push(&entry.group);
                ask.leases.push(entry.lease);
                ask.seconds.push(entry.seconds);
                ask.batches.push(entry.batch);
                ask.auto.push(entry.auto);
            }
        }
        let answers = procedures::lease(db, &ask).await?;
        let mut outcomes: Vec<Vec<Option<Leased>>> =
            batch.iter().map(|entry| entry.candidates.iter().map(|_| None).collect()).collect();
        for answer in answers {
            let (pop, index) = places[answer.position];
            outcomes[pop][index] = Some(answer);
        }
        let now = clock::now();
        let claimed = batch.iter().zip(outcomes);
        Ok(claimed.map(|(entry, outcomes)| entry.settle(shared, now, outcomes)).collect())
    }

    fn orphaned(shared: &Arc<Shared>, claimed: Claimed) {
        drop(Grants::new(shared, claimed));
    }
}

impl PopClaim {
    fn settle(&self, shared: &Arc<Shared>, now: Instant, outcomes: Vec<Option<Leased>>) -> Claimed {
        let mut claimed = Claimed {
            grants: Vec::new(),
            group: self.group.clone(),
            lease: (!self.auto).then_some(self.lease),
            busy: false,
            gone: false,
        };
        for (candidate, outcome) in self.candidates.iter().zip(outcomes) {
            let after = |ms: Option<i64>| now + Duration::from_millis(ms.unwrap_or(0).max(1) as u64);
            let claim = match &outcome {
                Some(leased) => match leased.status {
                    0 => {
                        claimed.grants.push(Grant {
                            partition: candidate.partition.clone(),
                            watch: candidate.watch.clone(),
                            first: leased.first,
                            last: leased.last,
                            attempts: leased.attempts,
                        });
                        if self.auto {
                            Claim::Committed { more: leased.last < leased.head }
                        } else {
                            Claim::Granted { until: after(leased.wait_ms) }
                        }
                    }
                    1 => Claim::Nothing,
                    2 => {
                        let ours = shared.leases().knows(&(candidate.partition.id, self.group.clone()));
                        let at = after(leased.wait_ms);
                        Claim::Later { at: if ours { at } else { at.min(now + FOREIGN_LEASE_LOOK) } }
                    }
                    3 => Claim::Unused,
                    4 => Claim::Gone,
                    5 => Claim::Later { at: after(leased.wait_ms) },
                    _ => Claim::Unused,
                },
                None => Claim::Unused,
            };
            claimed.busy |= outcome.is_none_or(|leased| leased.status == 3);
            if claim == Claim::Gone {
                claimed.gone = true;
                shared.directory.forget(&candidate.partition);
            }
            candidate.finish(claim);
        }
        claimed
    }
}

/// One pop's reads: an entry of the fetch lane.
pub struct Fetch {
    number: u64,
    ids: Vec<Uuid>,
    first: Vec<i64>,
    last: Vec<i64>,
}

impl Operation for Fetch {
    const NAME: &'static str = "fetch";
    const PRIORITY: Priority = Priority::Pop;
    const MERGED_MAX: usize = 1;
    type Key = u64;
    /// Per range, its segments in order.
    type Output = Vec<Vec<Arc<Segment>>>;
    type Context = Shared;

    fn key(&self) -> u64 {
        self.number
    }

    fn items(&self) -> usize {
        self.ids.len()
    }

    fn bytes(&self) -> usize {
        0
    }

    async fn call(
        shared: &Arc<Shared>,
        db: &Connection,
        batch: &[Self],
    ) -> Result<Vec<Self::Output>, DbError> {
        let ids: Vec<Uuid> = batch.iter().flat_map(|entry| entry.ids.iter().copied()).collect();
        let first: Vec<i64> = batch.iter().flat_map(|entry| entry.first.iter().copied()).collect();
        let last: Vec<i64> = batch.iter().flat_map(|entry| entry.last.iter().copied()).collect();
        let rows = procedures::fetch(db, &ids, &first, &last).await?;
        let mut read: Vec<Vec<Arc<Segment>>> = ids.iter().map(|_| Vec::new()).collect();
        let mut cache = shared.segments();
        for row in rows {
            let segment =
                Arc::new(Segment::new(row.base_offset, row.created_at, row.transactions, row.frames));
            cache.insert(ids[row.position], segment.clone());
            read[row.position].push(segment);
        }
        drop(cache);
        let mut read = read.into_iter();
        Ok(batch.iter().map(|entry| read.by_ref().take(entry.ids.len()).collect()).collect())
    }
}
