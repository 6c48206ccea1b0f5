//! The inbox: moves what applications have pushed from SQL, and committed, into the log. One broker at a time does so, on a
//! connection of its own whose end makes room for another. A row leaves the inbox in the transaction that appends it, so
//! it is moved exactly once, whoever dies when. During maintenance rows wait where they are.
//!
//! Rows of a partition that somebody has locked are left behind and tried again every second, in order, while the others
//! pass. So are, for longer, rows of queues that ask for encryption while a key is required and there is none.
//! A row that the log refuses, which should not be possible, stays in the inbox with the reason beside it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tracing::{debug, error};

use crate::Engine;
use crate::clock;
use crate::db::procedures::Position;
use crate::db::procedures::inbox::{self, InboxRow, InboxStatements};
use crate::db::{Connection, Error, transaction};
use crate::message::append::{self, Landed, Parcel, Publication, Turn};
use crate::message::defer::{self, Deferral};
use crate::message::push::{Message, Missing, Secrecy, Sorted};

/// How soon a broker notices that nobody moves rows any more.
const LEAD_EVERY: Duration = Duration::from_secs(1);

/// How soon a row is found while there is traffic. A look takes PostgreSQL a tenth of a millisecond.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Without a row for this long it rests: pushers notify, and looks are rare.
const REST_AFTER: Duration = Duration::from_secs(1);
const RESTING_LOOK: Duration = Duration::from_secs(1);

/// Making a partition takes a few milliseconds.
const OPEN_WITHIN: Duration = Duration::from_millis(500);

/// For rows that nobody could be told of: see look_inbox.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// After something was in the way, and during maintenance.
const AGAIN: Duration = Duration::from_millis(100);

/// How long rows of a partition are left behind that could not be moved.
const BLOCKED_FOR: Duration = Duration::from_secs(1);

/// The same for want of a key, which only another broker has, or this one after its next start.
const KEYLESS_FOR: Duration = SWEEP_EVERY;

/// What one transaction moves: about a segment.
const RUN_ROWS: i32 = 1_000;
const RUN_BYTES: i64 = 256 << 10;

pub fn start(engine: &Engine) {
    let engine = engine.clone();
    let tasks = engine.shared.tasks.clone();
    // Not dropped in the middle of a transaction, of which somebody would have to find out whether it was committed.
    tasks.clone().spawn(async move {
        let mut left_at: Option<Instant> = None;
        while !tasks.is_stopping() {
            let mut pause = LEAD_EVERY;
            match Mover::lead(&engine).await {
                Ok(Some(mut mover)) => {
                    // The others may have no key either.
                    mover.stays = left_at.is_some_and(|at| clock::now() - at < KEYLESS_FOR);
                    if let Err(error) = mover.run().await {
                        debug!(%error, "the inbox is left to another broker");
                    }
                    if mover.makes_room() {
                        (left_at, pause) = (Some(clock::now()), 3 * LEAD_EVERY);
                    }
                }
                Ok(None) => {}
                Err(error) => debug!(%error, "the inbox waits"),
            }
            tokio::select! {
                () = tasks.stopping() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    });
}

struct Mover {
    engine: Engine,
    db: Connection,
    statements: InboxStatements,
    heard: Arc<Notify>,
    /// Where the next look starts.
    position: Option<Position>,
    swept: Instant,
    /// Transactions in the order of their commits, and how far the first of them has come.
    pending: VecDeque<i64>,
    after: i64,
    /// Partitions that could not be written to, transactions with rows for them, and when they are tried again.
    blocked: HashSet<(String, String)>,
    waiting: Vec<i64>,
    retry_at: Instant,
    /// When something was last moved.
    busy: Instant,
    resting: bool,
    /// Rows wait for a key that is not here, and may be at another broker.
    lacks_key: bool,
    /// Leads nevertheless.
    stays: bool,
}

impl Mover {
    /// `None`: another broker does it.
    async fn lead(engine: &Engine) -> Result<Option<Self>, Error> {
        let connections = &engine.shared.connections;
        let led = async {
            let db = connections.acquire().await?;
            inbox::inbox_is_led(&db).await
        };
        if led.await? {
            return Ok(None);
        }
        let heard = Arc::new(Notify::new());
        let db = connections.own(heard.clone()).await?;
        if !inbox::lead_inbox(&db).await? {
            return Ok(None);
        }
        let statements = InboxStatements::prepare(&db).await?;
        let now = clock::now();
        Ok(Some(Self {
            engine: engine.clone(),
            db,
            statements,
            heard,
            position: None,
            swept: now,
            pending: VecDeque::new(),
            after: 0,
            blocked: HashSet::new(),
            waiting: Vec::new(),
            retry_at: now,
            busy: now,
            resting: false,
            lacks_key: false,
            stays: false,
        }))
    }

    /// Until the broker stops, the connection is lost or another broker should lead.
    async fn run(&mut self) -> Result<(), Error> {
        let shared = self.engine.shared.clone();
        while !shared.tasks.is_stopping() && !self.makes_room() {
            let pause = if shared.load.maintenance() {
                self.wake().await?;
                Some(AGAIN)
            } else {
                match self.step().await {
                    Ok(pause) => pause,
                    Err(error) if self.db.is_usable() && !matches!(error, Error::Unknown) => {
                        debug!(%error, "the inbox waits");
                        Some(AGAIN)
                    }
                    Err(error) => return Err(error),
                }
            };
            if let Some(pause) = pause {
                tokio::select! {
                    () = shared.tasks.stopping() => {}
                    () = self.heard.notified(), if self.resting => {}
                    () = tokio::time::sleep(pause) => {}
                }
            }
        }
        Ok(())
    }

    fn makes_room(&self) -> bool {
        self.lacks_key && !self.stays && self.engine.shared.wake.has_peers()
    }

    /// Moves a run of rows, or looks for some. Answers how long to wait before the next step.
    async fn step(&mut self) -> Result<Option<Duration>, Error> {
        if self.pending.is_empty() && !self.waiting.is_empty() && clock::now() >= self.retry_at {
            self.blocked.clear();
            (self.pending, self.after) = (std::mem::take(&mut self.waiting).into(), 0);
        } else if self.pending.is_empty() {
            self.look().await?;
        }
        if !self.pending.is_empty() {
            self.wake().await?;
            self.turn().await?;
            self.busy = clock::now();
            return Ok(None);
        }
        if self.resting {
            return Ok(Some(RESTING_LOOK));
        }
        let now = clock::now();
        let waits = !self.waiting.is_empty() && self.retry_at <= now + BLOCKED_FOR;
        let idle = !waits && now - self.busy > REST_AFTER;
        if idle && inbox::rest_inbox(&self.db).await? {
            self.resting = true;
            // One more look, for what was committed just before.
            return Ok(None);
        }
        Ok(Some(LOOK_EVERY))
    }

    async fn wake(&mut self) -> Result<(), Error> {
        if self.resting {
            inbox::wake_inbox(&self.db).await?;
            self.resting = false;
        }
        Ok(())
    }

    async fn look(&mut self) -> Result<(), Error> {
        let now = clock::now();
        // One that fails must not make every later look a full one.
        let from = self.position.as_ref().filter(|_| now - self.swept <= SWEEP_EVERY);
        let full = from.is_none();
        let (position, xids) = self.statements.look(&self.db, from).await?;
        if full {
            // It has found those that wait as well.
            self.swept = now;
            self.blocked.clear();
            self.waiting.clear();
        }
        (self.position, self.pending, self.after) = (Some(position), xids.into(), 0);
        Ok(())
    }

    /// If that fails, partition by partition, and if the log refuses something row by row.
    async fn turn(&mut self) -> Result<(), Error> {
        // Each transaction has a row at least, so no more of them can be read at once.
        let window = self.pending.len().min(RUN_ROWS as usize + 1);
        let window = &self.pending.make_contiguous()[..window];
        let (rows, more) = self.statements.take(&self.db, window, self.after, RUN_ROWS, RUN_BYTES).await?;
        let last = rows.last().filter(|_| more).map(|row| (row.xid, row.number));
        let read = match last {
            Some((xid, _)) => window.iter().position(|pending| *pending == xid).unwrap_or(0),
            None => window.len(),
        };
        let (behind, free): (Vec<InboxRow>, Vec<InboxRow>) =
            rows.into_iter().partition(|row| self.is_blocked(row));
        let mut left: Vec<i64> = behind.iter().map(|row| row.xid).collect();
        let done = self.done(read, &left);
        match self.land(&free, &done).await {
            Ok(()) => {}
            Err(error) if may_spare_others(&error) => {
                debug!(%error, "rows of the inbox are moved partition by partition");
                for rows in by_partition(free) {
                    left.extend(self.land_alone(&rows).await?);
                }
                self.land(&[], &self.done(read, &left)).await.map_err(plain)?;
            }
            Err(error) => return Err(plain(error)),
        }
        // In the order of commits, whichever partition they wait for.
        let left: HashSet<i64> = left.into_iter().collect();
        for xid in self.pending.range(..(read + 1).min(self.pending.len())).filter(|xid| left.contains(xid)) {
            if self.waiting.last() != Some(xid) {
                self.waiting.push(*xid);
            }
        }
        self.pending.drain(..read);
        self.after = last.map_or(0, |(_, number)| number);
        Ok(())
    }

    fn is_blocked(&self, row: &InboxRow) -> bool {
        !self.blocked.is_empty() && self.blocked.contains(&(row.queue.clone(), row.partition.clone()))
    }

    /// Transactions that are read to their end and have nothing left behind, now or before.
    fn done(&self, read: usize, left: &[i64]) -> Vec<i64> {
        let left: HashSet<&i64> = left.iter().chain(self.waiting.last()).collect();
        self.pending.range(..read).filter(|xid| !left.contains(xid)).copied().collect()
    }

    /// Rows of one partition. Answers the transactions whose rows have to wait.
    async fn land_alone(&mut self, rows: &[InboxRow]) -> Result<Vec<i64>, Error> {
        let error = match self.land(rows, &[]).await {
            Err(error) if may_spare_others(&error) => error,
            other => return other.map(|()| Vec::new()).map_err(plain),
        };
        if !is_data(&error) {
            self.block(&rows[0], &error);
            return Ok(rows.iter().map(|row| row.xid).collect());
        }
        for row in rows {
            match self.land(std::slice::from_ref(row), &[]).await {
                Err(error) if is_data(&error) => {
                    let reason = error.to_string();
                    error!(message = %row.message_id, queue = %row.queue, %reason, "the log refuses a row of queen.inbox");
                    inbox::refuse_inbox(&self.db, row, &reason).await?;
                }
                landed => landed.map_err(plain)?,
            }
        }
        Ok(Vec::new())
    }

    /// Leaves rows of this one's partition behind for a while.
    fn block(&mut self, row: &InboxRow, error: &crate::Error) {
        debug!(%error, queue = %row.queue, partition = %row.partition, "rows of the inbox wait");
        let wait = match error {
            crate::Error::KeyRequired(queue) => {
                self.engine.shared.troubles.withheld(queue);
                self.lacks_key = true;
                KEYLESS_FOR
            }
            _ => BLOCKED_FOR,
        };
        let at = clock::now() + wait;
        self.retry_at = if self.blocked.is_empty() { at } else { self.retry_at.min(at) };
        self.blocked.insert((row.queue.clone(), row.partition.clone()));
    }

    /// Appends rows and removes them from the inbox, and with them what is known of transactions that are done.
    async fn land(&self, rows: &[InboxRow], done: &[i64]) -> Result<(), crate::Error> {
        if rows.is_empty() && done.is_empty() {
            return Ok(());
        }
        let minted: Vec<String> = rows.iter().map(|row| row.message_id.to_string()).collect();
        let messages: Vec<Message<'_>> = rows.iter().zip(&minted).map(message).collect();
        let all: Vec<usize> = (0..messages.len()).collect();
        // Somebody may hold a lock on the queue of one, and the others must not wait for it.
        let open = tokio::time::timeout(OPEN_WITHIN, self.engine.parcels(&messages, &all, Missing::Made));
        let Sorted { parcels, gone, .. } = match open.await {
            Ok(sorted) => sorted?,
            Err(_) => return Err(Error::Full.into()),
        };
        if !gone.is_empty() {
            return Err(Error::Lost("a partition was deleted while it was made".to_owned()).into());
        }
        let parcels: Vec<&Parcel> = parcels.iter().map(|(_, parcel)| parcel).collect();
        let shared = &self.engine.shared;
        let number = transaction::begin(&self.db).await?;
        let published = match self.prepare(&parcels, rows, done).await {
            Ok(published) => published,
            Err(error) => {
                transaction::rollback(&self.db).await;
                return Err(error.into());
            }
        };
        let connector = shared.connections.connector();
        transaction::commit(&self.db, connector, &number, shared.config.retry_for).await?;
        append::publish(shared, &self.db, &published);
        Ok(())
    }

    /// Everything up to the commit. The rows go last, because the deletion of a queue takes locks in that order.
    async fn prepare(
        &self,
        parcels: &[&Parcel],
        rows: &[InboxRow],
        done: &[i64],
    ) -> Result<Vec<Publication>, Error> {
        let shared = &self.engine.shared;
        let gone = || Error::Lost("a queue was deleted".to_owned());
        let mut published = Vec::new();
        let landed = append::append(shared, &self.db, parcels, Turn::Direct, &mut published).await?;
        let mut behind: Vec<Deferral> = Vec::new();
        for (parcel, landed) in parcels.iter().zip(landed) {
            match landed {
                Landed::Placed(_) => {}
                Landed::Behind(placed) => behind.push(Deferral::new(parcel, &placed)),
                Landed::Gone => return Err(gone()),
            }
        }
        let behind: Vec<&Deferral> = behind.iter().collect();
        if !behind.is_empty() && defer::store(shared, &self.db, &behind).await?.contains(&true) {
            return Err(gone());
        }
        match self.statements.clear(&self.db, rows, done).await? {
            true => Ok(published),
            false => Err(gone()),
        }
    }
}

/// Whether rows of other partitions may be moved nevertheless.
fn may_spare_others(error: &crate::Error) -> bool {
    matches!(
        error,
        crate::Error::KeyRequired(_) | crate::Error::Database(Error::Procedure { .. } | Error::Full)
    )
}

fn is_data(error: &crate::Error) -> bool {
    matches!(error, crate::Error::Database(error) if error.is_data())
}

fn plain(error: crate::Error) -> Error {
    match error {
        crate::Error::Database(error) => error,
        other => Error::Unreachable(other.to_string()),
    }
}

/// In the order of their first rows.
fn by_partition(rows: Vec<InboxRow>) -> Vec<Vec<InboxRow>> {
    let mut places: HashMap<(String, String), usize> = HashMap::new();
    let mut partitions: Vec<Vec<InboxRow>> = Vec::new();
    for row in rows {
        let place = *places.entry((row.queue.clone(), row.partition.clone())).or_insert(partitions.len());
        if place == partitions.len() {
            partitions.push(Vec::new());
        }
        partitions[place].push(row);
    }
    partitions
}

/// A message without a transaction id goes by its own id.
fn message<'a>((row, minted): (&'a InboxRow, &'a String)) -> Message<'a> {
    Message {
        queue: &row.queue,
        partition: &row.partition,
        namespace: None,
        task: None,
        transaction_id: row.transaction_id.as_deref().unwrap_or(minted),
        chosen: row.transaction_id.is_some(),
        promised: Some(row.message_id),
        accepted: true,
        trace_id: row.trace_id,
        trace: None,
        producer_sub: None,
        secrecy: Secrecy::Waiting,
        payload: &row.payload,
    }
}
