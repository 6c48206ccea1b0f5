//! The processor: works off deferred operations, the oldest of each lane first and never two of a lane at once. Every
//! broker runs one. An operation is executed and marked as done in one transaction, so it happens exactly once, whoever
//! dies when.

use std::sync::atomic::AtomicI64;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use queen_protocol::{PushResult, PushStatus};
use tracing::{debug, info, warn};
use uuid::Uuid;

use crate::clock;
use crate::db::control;
use crate::db::procedures::deferred::{self, DeferredLane, Taken};
use crate::db::procedures::{self, Acked};
use crate::db::{Connection, Error, transaction};
use crate::log::Partition;
use crate::log::frames::{Frame, read_string};
use crate::log::ids::TransactionHash;
use crate::message::append::{self, Landed, Parcel, Placed, Turn};
use crate::message::defer_ack::Body;
use crate::message::locate::Ack;
use crate::message::settle::{self, Settling};
use crate::shared::Shared;

/// How often a broker without work asks whether another has left some behind.
const IDLE: Duration = Duration::from_secs(1);

/// With more callers waiting for a connection it holds back, but not for longer than a second.
const WAITING_MAX: usize = 5;
const HOLDS_BACK: Duration = Duration::from_secs(1);

/// What one transaction takes of a lane: about a segment.
const RUN_OPERATIONS: i32 = 1_000;
const RUN_BYTES: i64 = 256 << 10;

/// For a row that another session has locked: it holds those of all other lanes meanwhile.
const LOCK_WAIT: Duration = Duration::from_millis(100);

const SWEEP_EVERY: Duration = Duration::from_secs(600);

struct Processor {
    shared: Arc<Shared>,
    /// Who has claimed an operation, for the database.
    worker: Uuid,
    /// Claimed when, and not done yet, because the connection was lost or a partition was locked.
    claimed: Vec<(DeferredLane, Instant)>,
    last: Instant,
}

pub fn start(shared: &Arc<Shared>) {
    let now = clock::now();
    let worker = Uuid::now_v7();
    let mut processor = Processor { shared: shared.clone(), worker, claimed: Vec::new(), last: now };
    // Not dropped in the middle of a transaction: its connection goes back to the others.
    shared.tasks.spawn(async move {
        let tasks = processor.shared.tasks.clone();
        let mut swept = now;
        while !tasks.is_stopping() {
            tokio::select! {
                () = tasks.stopping() => return,
                () = processor.wait() => {}
            }
            if let Err(error) = processor.work().await {
                debug!(%error, "deferred operations wait");
                tokio::time::sleep(processor.shared.load.settings().interval).await;
            }
            if clock::now() - swept > SWEEP_EVERY {
                swept = clock::now();
                processor.sweep().await;
            }
        }
    });
}

impl Processor {
    async fn wait(&self) {
        let load = &self.shared.load;
        let pause = match load.depth() > 0 || !self.claimed.is_empty() {
            true => load.settings().interval,
            false => IDLE,
        };
        let _ = tokio::time::timeout(pause, load.signal.notified()).await;
        while self.shared.connections.waiting() > WAITING_MAX && clock::now() - self.last < HOLDS_BACK {
            tokio::time::sleep(load.settings().interval).await;
        }
    }

    /// Until nothing is left that may be worked on.
    async fn work(&mut self) -> Result<(), Error> {
        self.last = clock::now();
        let pulse = control::pulse(&self.shared.connections).await?;
        self.shared.load.feel(&pulse);
        if pulse.depth == 0 {
            self.claimed.clear();
            return Ok(());
        }
        while !self.shared.tasks.is_stopping() {
            let db = self.shared.connections.acquire().await?;
            let limit = i32::try_from(self.shared.load.settings().claim_limit).unwrap_or(i32::MAX);
            let now = clock::now();
            for lane in deferred::claim_deferred(&db, self.worker, limit).await? {
                self.claimed.retain(|(claimed, _)| *claimed != lane);
                self.claimed.push((lane, now));
            }
            let lanes: Vec<DeferredLane> = self.claimed.iter().map(|(lane, _)| lane.clone()).collect();
            if lanes.is_empty() {
                return Ok(());
            }
            let landed = self.execute(&db, &lanes).await?;
            // Those whose partition was locked are tried again, until they are anybody's again.
            let timeout = self.shared.load.settings().timeout;
            self.claimed.retain(|(lane, since)| !landed.contains(lane) && now - *since < timeout);
            self.last = now;
            if landed.is_empty() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// All lanes together; if that fails one by one, and in the end operation by operation. Answers which were worked on.
    async fn execute(&self, db: &Connection, lanes: &[DeferredLane]) -> Result<Vec<DeferredLane>, Error> {
        let error = match self.land(db, lanes, RUN_OPERATIONS).await {
            Err(error) if !error.may_retry() || error.is_lock_timeout() => error,
            other => return other,
        };
        debug!(%error, "deferred operations are tried one by one");
        let mut landed = Vec::new();
        for lane in lanes {
            let alone = std::slice::from_ref(lane);
            for limit in [RUN_OPERATIONS, 1] {
                match self.land(db, alone, limit).await {
                    Ok(worked) => {
                        landed.extend(worked);
                        break;
                    }
                    // Another session has locked what it needs. It is tried again later.
                    Err(error) if error.is_lock_timeout() => break,
                    Err(error) if error.may_retry() => return Err(error),
                    Err(error) if limit == 1 => {
                        self.failed(db, lane, &error).await?;
                        landed.push(lane.clone());
                    }
                    Err(_) => {}
                }
            }
        }
        Ok(landed)
    }

    async fn failed(&self, db: &Connection, lane: &DeferredLane, error: &Error) -> Result<(), Error> {
        let (reason, counts) = (error.public_text(), error.is_data());
        if let Some((id, for_good)) = deferred::fail_deferred(db, self.worker, lane, &reason, counts).await? {
            match for_good {
                true => warn!(operation = %id, %error, "a deferred operation has failed"),
                false => info!(operation = %id, %error, "a deferred operation will be tried again"),
            }
        }
        Ok(())
    }

    async fn land(
        &self,
        db: &Connection,
        lanes: &[DeferredLane],
        limit: i32,
    ) -> Result<Vec<DeferredLane>, Error> {
        let number = transaction::begin_within(db, LOCK_WAIT).await?;
        let landing = match self.prepare(db, lanes, limit).await {
            Ok(landing) => landing,
            Err(error) => {
                transaction::rollback(db).await;
                return Err(error);
            }
        };
        let connector = self.shared.connections.connector();
        transaction::commit(db, connector, &number, self.shared.config.retry_for).await?;
        append::publish(&self.shared, db, &landing.published);
        for (ack, answer) in &landing.acked {
            settle::publish(&self.shared, ack, answer);
        }
        self.shared.load.drained(landing.lanes.iter().map(|lane| lane.partition), landing.operations);
        Ok(landing.lanes)
    }

    /// Everything up to the commit.
    async fn prepare(&self, db: &Connection, lanes: &[DeferredLane], limit: i32) -> Result<Landing, Error> {
        let all = deferred::take_deferred(db, self.worker, lanes, limit, RUN_BYTES).await?;
        let (taken, acks): (Vec<&Taken>, Vec<&Taken>) =
            all.iter().partition(|taken| lanes[taken.lane].group.is_empty());
        let parcels: Vec<Parcel> = taken.iter().map(|taken| parcel(&lanes[taken.lane], taken)).collect();
        let parcels: Vec<&Parcel> = parcels.iter().collect();
        let mut published = Vec::new();
        let landed = append::append(&self.shared, db, &parcels, Turn::Deferred, &mut published).await?;
        let (mut ids, mut results) = (Vec::new(), Vec::new());
        for ((taken, parcel), landed) in taken.iter().zip(&parcels).zip(landed) {
            // The others are gone with their partition, and the database has written that down.
            if let Landed::Placed(placed) = landed {
                ids.push(taken.id);
                results.push(result(taken, parcel, &placed));
            }
        }
        let (told, acked) = self.acknowledge(db, lanes, &acks).await?;
        for (id, result) in told {
            ids.push(id);
            results.push(result);
        }
        deferred::finish_deferred(db, &ids, &results).await?;
        let mut lanes: Vec<DeferredLane> = all.iter().map(|taken| lanes[taken.lane].clone()).collect();
        lanes.dedup();
        Ok(Landing { published, acked, lanes, operations: ids.len() })
    }

    /// Applies deferred acknowledgements, those of a cursor in order.
    async fn acknowledge(
        &self,
        db: &Connection,
        lanes: &[DeferredLane],
        taken: &[&Taken],
    ) -> Result<(Vec<(Uuid, String)>, Vec<(Ack, Acked)>), Error> {
        let mut bodies = Vec::with_capacity(taken.len());
        let mut told = Vec::with_capacity(taken.len());
        for taken in taken {
            match Body::parse(&taken.body) {
                Some(body) => {
                    let lane = &lanes[taken.lane];
                    let ack = body.ack(taken.id, lane.partition, &lane.group);
                    bodies.push((body, ack));
                }
                None => told.push((taken.id, "[]".to_owned())),
            }
        }
        let mut settling = Settling::deferred(&self.shared, bodies.iter().map(|(_, ack)| ack).collect());
        while let Some(round) = settling.round() {
            let answers = procedures::settle(db, &round.ask()).await?;
            settling.acked(&round, &answers, &[]);
        }
        let acked = settling.take_landed();
        for ((body, ack), outcome) in bodies.iter().zip(settling.outcomes()) {
            let moved = || Error::Lost("a cursor kept moving under an ack".to_owned());
            told.push((ack.id, body.result(&outcome.ok_or_else(moved)?)));
        }
        Ok((told, acked))
    }

    async fn sweep(&self) {
        let retention = self.shared.load.settings().retention;
        match control::sweep_deferred(&self.shared.connections, retention).await {
            Ok(0) => {}
            Ok(swept) => debug!(operations = swept, "deferred operations forgotten"),
            Err(error) => debug!(%error, "deferred operations will be swept later"),
        }
    }
}

/// What has to be made known once the commit is certain.
struct Landing {
    published: Vec<append::Publication>,
    acked: Vec<(Ack, Acked)>,
    lanes: Vec<DeferredLane>,
    operations: usize,
}

fn parcel(lane: &DeferredLane, taken: &Taken) -> Parcel {
    let partition = Partition {
        id: lane.partition,
        number: taken.number,
        queue: taken.queue.as_str().into(),
        name: taken.partition.as_str().into(),
    };
    let promised =
        |line| Frame::parse(line).and_then(|frame| Uuid::try_parse(frame.message_id?.trim_matches('"')).ok());
    Parcel {
        partition: Arc::new(partition),
        dedup_seconds: taken.dedup_seconds,
        hashes: TransactionHash::read_all(&taken.transactions).collect(),
        bytes_max: taken.body.split('\n').map(str::len).max().unwrap_or(0),
        promised: taken.body.split('\n').filter_map(promised).collect(),
        frames: taken.body.clone(),
        deferral: OnceLock::new(),
        recheck: false,
        floor: AtomicI64::new(-1),
        failure: None,
    }
}

/// What the direct call would have answered.
fn result(taken: &Taken, parcel: &Parcel, placed: &[Placed]) -> String {
    let lines = taken.body.split('\n').zip(placed).enumerate();
    let results = lines.filter_map(|(index, (line, placed))| {
        let frame = Frame::parse(line)?;
        Some(PushResult {
            index,
            message_id: placed.message_id(parcel.partition.number),
            transaction_id: read_string(frame.transaction_id),
            queue_name: taken.queue.clone(),
            status: if placed.duplicate { PushStatus::Duplicate } else { PushStatus::Queued },
            partition_id: parcel.partition.id,
            trace_id: frame.trace_id.and_then(|id| Uuid::try_parse(&read_string(id)).ok()),
            error: None,
            ticket: None,
        })
    });
    serde_json::to_string(&results.collect::<Vec<_>>()).unwrap_or_default()
}
