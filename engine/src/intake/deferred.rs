//! The source of deferred operations: pushes and acks. Every broker takes the oldest operation of some partitions,
//! never one that another broker works on, and executes those behind it as well. The mark of an operation is its
//! status, under the lock of its partition's head.

use std::sync::Arc;
use std::time::{Duration, Instant};

use queen_protocol::{PushResult, PushStatus};
use tracing::{debug, info, warn};
use uuid::Uuid;

use super::{Fault, Source, Undone};
use crate::Engine;
use crate::clock;
use crate::db::procedures::deferred::{self, DeferredLane, Taken};
use crate::db::procedures::{self, Acked};
use crate::db::{Connection, Error as DbError, control};
use crate::error::Error;
use crate::log::Partition;
use crate::log::frames::{Frame, read_string};
use crate::log::ids::TransactionHash;
use crate::message::append::Behind;
use crate::message::defer_ack::Body;
use crate::message::locate::Ack;
use crate::message::parcel::{Outcome, Parcel, Placed};
use crate::message::settle::{self, Settling};
use crate::shared::Shared;

/// How often an idle broker looks for work that another broker has left behind.
const IDLE: Duration = Duration::from_secs(1);

/// If more callers wait for a connection, this holds back, but for a second at most.
const WAITING_MAX: usize = 5;
const HOLDS_BACK: Duration = Duration::from_secs(1);

/// What one transaction takes of a partition: about a segment.
const RUN_OPERATIONS: i32 = 1_000;
const RUN_BYTES: i64 = 256 << 10;

const SWEEP_EVERY: Duration = Duration::from_secs(600);

pub fn start(engine: &Engine) {
    let shared = engine.shared.clone();
    let now = clock::now();
    let mut source = Deferred {
        shared: shared.clone(),
        worker: Uuid::now_v7(),
        claimed: Vec::new(),
        looked: false,
        progress: true,
        last: now,
        swept: now,
    };
    engine.shared.tasks.spawn(async move { super::run(&shared, &mut source).await });
}

struct Deferred {
    shared: Arc<Shared>,
    /// The name under which this broker claims operations.
    worker: Uuid,
    /// Lanes that are claimed and not done yet, and when they were claimed.
    claimed: Vec<(DeferredLane, Instant)>,
    /// Whether this pass has looked at the database.
    looked: bool,
    /// Whether its last batch has moved something.
    progress: bool,
    last: Instant,
    swept: Instant,
}

/// At most `limit` operations of each of some lanes: a partition, or a partition and a group.
#[derive(Default)]
struct Lanes {
    lanes: Vec<DeferredLane>,
    limit: i32,
    taken: Vec<Taken>,
    parcels: Vec<Parcel>,
    acked: Vec<(Ack, Acked)>,
}

impl Deferred {
    async fn sweep(&self) {
        let retention = self.shared.load.settings().retention;
        match control::sweep_deferred(&self.shared.connections, retention).await {
            Ok(0) => {}
            Ok(swept) => debug!(operations = swept, "deferred operations forgotten"),
            Err(error) => debug!(%error, "deferred operations will be swept later"),
        }
    }

    fn worked_on(&mut self, lane: &DeferredLane) {
        self.claimed.retain(|(claimed, _)| claimed != lane);
        self.progress = true;
    }

    /// Applies deferred acknowledgements, those of a cursor in order. Returns the result of each operation.
    async fn acknowledge(
        &self,
        db: &Connection,
        lanes: &[DeferredLane],
        taken: &[&Taken],
    ) -> Result<(Vec<(Uuid, String)>, Vec<(Ack, Acked)>), Undone> {
        let mut bodies = Vec::with_capacity(taken.len());
        let mut results = Vec::with_capacity(taken.len());
        for taken in taken {
            match Body::parse(&taken.body) {
                Some(body) => {
                    let lane = &lanes[taken.lane];
                    let ack = body.ack(taken.id, lane.partition, &lane.group);
                    bodies.push((body, ack));
                }
                None => results.push((taken.id, "[]".to_owned())),
            }
        }
        let mut settling = Settling::deferred(&self.shared, bodies.iter().map(|(_, ack)| ack).collect());
        while let Some(round) = settling.round() {
            let answers = procedures::settle(db, &round.ask()).await?;
            settling.acked(&round, &answers, &[]);
        }
        let acked = settling.take_landed();
        for ((body, ack), outcome) in bodies.iter().zip(settling.outcomes()) {
            results.push((ack.id, body.result(&outcome.ok_or(Undone::Changed)?)));
        }
        Ok((results, acked))
    }
}

impl Source for Deferred {
    const NAME: &'static str = "deferred";
    const BEHIND: Behind = Behind::Append;
    const PAUSES: bool = false;
    type Batch = Lanes;

    async fn take(&mut self) -> Result<Option<Lanes>, Undone> {
        self.last = clock::now();
        if !std::mem::replace(&mut self.looked, true) {
            if self.last - self.swept > SWEEP_EVERY {
                self.swept = self.last;
                self.sweep().await;
            }
            let pulse = control::pulse(&self.shared.connections).await?;
            self.shared.load.feel(&pulse);
            if pulse.depth == 0 {
                self.claimed.clear();
                return Ok(None);
            }
        } else if !self.progress {
            return Ok(None);
        }
        self.progress = false;
        let settings = self.shared.load.settings();
        let limit = i32::try_from(settings.claim_limit).unwrap_or(i32::MAX);
        let db = self.shared.connections.acquire().await?;
        let now = clock::now();
        // Lanes whose partition was locked are tried again, until another broker may claim them.
        self.claimed.retain(|(_, since)| now - *since < settings.timeout);
        for lane in deferred::claim_deferred(&db, self.worker, limit).await? {
            self.claimed.retain(|(claimed, _)| *claimed != lane);
            self.claimed.push((lane, now));
        }
        let lanes: Vec<DeferredLane> = self.claimed.iter().map(|(lane, _)| lane.clone()).collect();
        Ok((!lanes.is_empty()).then(|| Lanes { lanes, limit: RUN_OPERATIONS, ..Lanes::default() }))
    }

    /// While their partitions are locked, nothing else can be deferred there: if these are all, none are left.
    async fn hold(&self, db: &Connection, batch: &mut Lanes) -> Result<(), Undone> {
        let Lanes { lanes, limit, .. } = batch;
        batch.taken = deferred::take_deferred(db, self.worker, lanes, *limit, RUN_BYTES).await?;
        let pushes = batch.taken.iter().filter(|taken| batch.lanes[taken.lane].group.is_empty());
        batch.parcels = pushes.map(|taken| parcel(batch.lanes[taken.lane].partition, taken)).collect();
        Ok(())
    }

    fn parcels(batch: &Lanes) -> &[Parcel] {
        &batch.parcels
    }

    async fn done(&self, db: &Connection, batch: &mut Lanes, outcomes: Vec<Outcome>) -> Result<(), Undone> {
        let (pushes, acks): (Vec<&Taken>, Vec<&Taken>) =
            batch.taken.iter().partition(|taken| batch.lanes[taken.lane].group.is_empty());
        let (mut results, acked) = self.acknowledge(db, &batch.lanes, &acks).await?;
        for ((taken, parcel), outcome) in pushes.into_iter().zip(&batch.parcels).zip(outcomes) {
            // Pushes without an outcome like this ended with their partition.
            if let Outcome::Stored(placed) = outcome {
                results.push((taken.id, result(taken, parcel.partition.id, &placed)));
            }
        }
        let (ids, results): (Vec<Uuid>, Vec<String>) = results.into_iter().unzip();
        deferred::finish_deferred(db, &ids, &results).await?;
        batch.acked = acked;
        Ok(())
    }

    fn landed(&mut self, batch: &Lanes) {
        for (ack, answer) in &batch.acked {
            settle::publish(&self.shared, ack, answer);
        }
        let mut lanes: Vec<&DeferredLane> =
            batch.taken.iter().map(|taken| &batch.lanes[taken.lane]).collect();
        lanes.dedup();
        self.shared.load.drained(lanes.iter().map(|lane| lane.partition), batch.taken.len());
        lanes.into_iter().for_each(|lane| self.worked_on(lane));
    }

    fn fault(&self, _batch: &Lanes, why: &Undone) -> Fault {
        match why {
            Undone::Failed(Error::Database(error)) if error.is_lock_timeout() => Fault::Blocked,
            Undone::Failed(Error::Database(error @ DbError::Procedure { .. })) if !error.may_retry() => {
                Fault::Own
            }
            _ => Fault::Fatal,
        }
    }

    fn split(&self, batch: Lanes, fault: Fault) -> Result<Vec<Lanes>, Lanes> {
        let limit = match batch.lanes.len() {
            2.. => batch.limit,
            _ if fault == Fault::Own && batch.limit > 1 => 1,
            _ => return Err(batch),
        };
        let alone = |lane| Lanes { lanes: vec![lane], limit, ..Lanes::default() };
        Ok(batch.lanes.into_iter().map(alone).collect())
    }

    /// Counts the try, or gives up on the oldest operation of a lane. A failure with another cause does not count.
    async fn refuse(&mut self, item: Lanes, error: &Error) -> Result<(), Undone> {
        let (lane, reason) = (&item.lanes[0], error.public_text());
        let own = matches!(error, Error::Database(error) if error.is_data());
        let db = self.shared.connections.acquire().await?;
        if let Some((id, for_good)) = deferred::fail_deferred(&db, self.worker, lane, &reason, own).await? {
            match for_good {
                true => warn!(operation = %id, %error, "a deferred operation has failed"),
                false => info!(operation = %id, %error, "a deferred operation will be tried again"),
            }
        }
        self.worked_on(lane);
        Ok(())
    }

    /// The batch stays claimed, and is tried again.
    async fn later(&mut self, _batch: Lanes, _why: Undone) -> Result<(), Undone> {
        Ok(())
    }

    async fn wait(&mut self, ended: Result<(), Undone>) {
        self.looked = false;
        let load = &self.shared.load;
        let interval = load.settings().interval;
        if ended.is_err() {
            tokio::time::sleep(interval).await;
        }
        let pause = if load.depth() > 0 || !self.claimed.is_empty() { interval } else { IDLE };
        let _ = tokio::time::timeout(pause, load.signal.notified()).await;
        while self.shared.connections.waiting() > WAITING_MAX && clock::now() - self.last < HOLDS_BACK {
            tokio::time::sleep(interval).await;
        }
    }
}

fn parcel(id: Uuid, taken: &Taken) -> Parcel {
    let (queue, name) = (taken.queue.as_str().into(), taken.partition.as_str().into());
    let partition = Partition { id, number: taken.number, queue, name };
    let promised =
        |line| Frame::parse(line).and_then(|frame| Uuid::try_parse(frame.message_id?.trim_matches('"')).ok());
    Parcel {
        hashes: TransactionHash::read_all(&taken.transactions).collect(),
        bytes_max: taken.body.split('\n').map(str::len).max().unwrap_or(0),
        promised: taken.body.split('\n').filter_map(promised).collect(),
        frames: taken.body.clone(),
        ..Parcel::new(Arc::new(partition), taken.dedup_seconds)
    }
}

/// What the direct call would have returned.
fn result(taken: &Taken, partition: Uuid, placed: &[Placed]) -> String {
    let lines = taken.body.split('\n').zip(placed).enumerate();
    let results = lines.filter_map(|(index, (line, placed))| {
        let frame = Frame::parse(line)?;
        Some(PushResult {
            index,
            message_id: placed.id,
            transaction_id: read_string(frame.transaction_id),
            queue_name: taken.queue.clone(),
            status: if placed.duplicate { PushStatus::Duplicate } else { PushStatus::Queued },
            partition_id: partition,
            trace_id: frame.trace_id.and_then(|id| Uuid::try_parse(&read_string(id)).ok()),
            error: None,
            ticket: None,
        })
    });
    serde_json::to_string(&results.collect::<Vec<_>>()).unwrap_or_default()
}
