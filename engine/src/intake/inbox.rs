//! The source of pushes from SQL: rows of `queen.inbox`, in the order of their commits. One broker at a time leads it, on a
//! connection of its own; when that ends, another may lead. The mark of a row is its deletion.
//!
//! Rows of a locked partition are left behind for a second and tried again in order, while others pass. Rows of queues
//! that require encryption are left behind for a minute if the key is missing. A row that cannot be stored stays in
//! the inbox with the reason beside it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tracing::{debug, error};

use super::{Fault, Source, Undone, parcels};
use crate::Engine;
use crate::clock;
use crate::db::procedures::Position;
use crate::db::procedures::inbox::{self, InboxRow, InboxStatements};
use crate::db::{Connection, Error as DbError};
use crate::error::Error;
use crate::message::append::Behind;
use crate::message::parcel::{Message, Outcome, Parcel};

/// How soon a broker notices that no other broker leads.
const LEAD_EVERY: Duration = Duration::from_secs(1);

/// How soon a row is found while there is traffic. A look takes PostgreSQL a tenth of a millisecond.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// After this long without a row the leader rests: pushers notify it, and looks are rare.
const REST_AFTER: Duration = Duration::from_secs(1);
const RESTING_LOOK: Duration = Duration::from_secs(1);

/// Creating a partition takes a few milliseconds.
const OPEN_WITHIN: Duration = Duration::from_millis(500);

/// For rows that no look by transaction number finds: see look_inbox.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// Pause after a failure, and during maintenance.
const AGAIN: Duration = Duration::from_millis(100);

/// How long rows of a partition that could not be moved are left behind.
const BLOCKED_FOR: Duration = Duration::from_secs(1);

/// The same for rows without their key, which only another broker has, or this one after its next start.
const KEYLESS_FOR: Duration = SWEEP_EVERY;

/// What one transaction moves: about a segment.
const RUN_ROWS: i32 = 1_000;
const RUN_BYTES: i64 = 256 << 10;

pub fn start(engine: &Engine) {
    let engine = engine.clone();
    let tasks = engine.shared.tasks.clone();
    tasks.clone().spawn(async move {
        let mut left_at: Option<Instant> = None;
        while !tasks.is_stopping() {
            let mut pause = LEAD_EVERY;
            match Leader::lead(&engine).await {
                Ok(Some(mut leader)) => {
                    // Other brokers may have no key either.
                    leader.stays = left_at.is_some_and(|at| clock::now() - at < KEYLESS_FOR);
                    super::run(&engine.shared, &mut leader).await;
                    if leader.makes_room() {
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

struct Leader {
    engine: Engine,
    db: Connection,
    statements: InboxStatements,
    heard: Arc<Notify>,
    /// Where the next look starts.
    position: Option<Position>,
    swept: Instant,
    /// Transactions in the order of their commits, and how far the first of them has been read.
    pending: VecDeque<i64>,
    after: i64,
    window: Window,
    /// Partitions that could not be written to, transactions with rows for them, and when they are tried again.
    blocked: HashSet<(String, String)>,
    waiting: Vec<i64>,
    retry_at: Instant,
    /// When something was last moved.
    busy: Instant,
    resting: bool,
    /// Pause before the next look.
    pause: Duration,
    /// Rows wait for a key that this broker lacks and another may have.
    lacks_key: bool,
    /// Keeps leading nevertheless.
    stays: bool,
}

/// What was last read of the pending transactions.
#[derive(Default)]
struct Window {
    /// How many of them were read to their end, and the last row of the next one.
    read: usize,
    last: Option<i64>,
    /// Transactions with rows that are left behind.
    left: Vec<i64>,
}

#[derive(Default)]
struct Rows {
    rows: Vec<InboxRow>,
    parcels: Vec<Parcel>,
    /// This is the last batch of its window: it completes transactions that are read to their end and have nothing
    /// left behind.
    ends: bool,
}

impl Leader {
    /// `None`: another broker leads.
    async fn lead(engine: &Engine) -> Result<Option<Self>, DbError> {
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
            window: Window::default(),
            blocked: HashSet::new(),
            waiting: Vec::new(),
            retry_at: now,
            busy: now,
            resting: false,
            pause: LOOK_EVERY,
            lacks_key: false,
            stays: false,
        }))
    }

    fn makes_room(&self) -> bool {
        self.lacks_key && !self.stays && self.engine.shared.wake.has_peers()
    }

    async fn wake(&mut self) -> Result<(), DbError> {
        if self.resting {
            inbox::wake_inbox(&self.db).await?;
            self.resting = false;
        }
        Ok(())
    }

    /// Fills `pending`. `false`: there is nothing to move, and it is time to pause.
    async fn find(&mut self) -> Result<bool, DbError> {
        while self.pending.is_empty() {
            let now = clock::now();
            if !self.waiting.is_empty() && now >= self.retry_at {
                self.blocked.clear();
                (self.pending, self.after) = (std::mem::take(&mut self.waiting).into(), 0);
                break;
            }
            self.look().await?;
            if !self.pending.is_empty() {
                break;
            }
            self.pause = if self.resting { RESTING_LOOK } else { LOOK_EVERY };
            let waits = !self.waiting.is_empty() && self.retry_at <= now + BLOCKED_FOR;
            let idle = !self.resting && !waits && now - self.busy > REST_AFTER;
            if !idle || !inbox::rest_inbox(&self.db).await? {
                return Ok(false);
            }
            // One more look, for what was committed just before.
            self.resting = true;
        }
        Ok(true)
    }

    async fn look(&mut self) -> Result<(), DbError> {
        let now = clock::now();
        // Not taken out: a look that fails must not make every later look a full one.
        let from = self.position.as_ref().filter(|_| now - self.swept <= SWEEP_EVERY);
        let full = from.is_none();
        let (position, xids) = self.statements.look(&self.db, from).await?;
        if full {
            // A full look also finds the waiting ones.
            self.swept = now;
            self.blocked.clear();
            self.waiting.clear();
        }
        (self.position, self.pending, self.after) = (Some(position), xids.into(), 0);
        Ok(())
    }

    /// The next rows, without those of blocked partitions.
    async fn read(&mut self) -> Result<Rows, DbError> {
        // Each transaction has at least one row, so no more of them can be read at once.
        let window = self.pending.len().min(RUN_ROWS as usize + 1);
        let window = &self.pending.make_contiguous()[..window];
        let (rows, more) = self.statements.take(&self.db, window, self.after, RUN_ROWS, RUN_BYTES).await?;
        let last = rows.last().filter(|_| more);
        let read = match last {
            Some(last) => window.iter().position(|pending| *pending == last.xid).unwrap_or(0),
            None => window.len(),
        };
        let last = last.map(|last| last.number);
        let (behind, rows): (Vec<InboxRow>, Vec<InboxRow>) =
            rows.into_iter().partition(|row| self.is_blocked(row));
        self.window = Window { read, last, left: behind.iter().map(|row| row.xid).collect() };
        Ok(Rows { rows, ends: true, ..Rows::default() })
    }

    fn is_blocked(&self, row: &InboxRow) -> bool {
        !self.blocked.is_empty() && self.blocked.contains(&(row.queue.clone(), row.partition.clone()))
    }

    /// Transactions that are read to their end and have nothing left behind, now or earlier.
    fn finished(&self) -> Vec<i64> {
        let left: HashSet<&i64> = self.window.left.iter().chain(self.waiting.last()).collect();
        self.pending.range(..self.window.read).filter(|xid| !left.contains(xid)).copied().collect()
    }

    /// Everything that was read has been moved, refused, or left behind.
    fn advance(&mut self) {
        let Window { read, last, left } = std::mem::take(&mut self.window);
        // In the order of commits, whichever partition they wait for.
        let left: HashSet<i64> = left.into_iter().collect();
        for xid in self.pending.range(..(read + 1).min(self.pending.len())).filter(|xid| left.contains(xid)) {
            if self.waiting.last() != Some(xid) {
                self.waiting.push(*xid);
            }
        }
        self.pending.drain(..read);
        self.after = last.unwrap_or(0);
        self.busy = clock::now();
    }

    /// Leaves the rows of this row's partition behind for a while.
    fn block(&mut self, row: InboxRow, why: &Undone) {
        debug!(%why, queue = %row.queue, partition = %row.partition, "rows of the inbox wait");
        let first = self.blocked.is_empty();
        if !self.blocked.insert((row.queue, row.partition)) {
            return;
        }
        let wait = match why {
            Undone::Failed(Error::KeyRequired(queue)) => {
                self.engine.shared.troubles.withheld(queue);
                self.lacks_key = true;
                KEYLESS_FOR
            }
            _ => BLOCKED_FOR,
        };
        let at = clock::now() + wait;
        self.retry_at = if first { at } else { self.retry_at.min(at) };
    }
}

impl Source for Leader {
    const NAME: &'static str = "inbox";
    const BEHIND: Behind = Behind::Defer;
    type Batch = Rows;

    async fn take(&mut self) -> Result<Option<Rows>, Undone> {
        while self.find().await? {
            self.wake().await?;
            let batch = self.read().await?;
            if !batch.rows.is_empty() || !self.finished().is_empty() {
                return Ok(Some(batch));
            }
            self.advance();
        }
        Ok(None)
    }

    async fn prepare(&self, batch: &mut Rows) -> Result<(), Undone> {
        if batch.rows.iter().any(|row| self.is_blocked(row)) {
            return Err(Undone::Behind);
        }
        let minted: Vec<String> = batch.rows.iter().map(|row| row.message_id.to_string()).collect();
        let messages: Vec<Message<'_>> = batch.rows.iter().zip(&minted).map(message).collect();
        // Another session may hold a lock on the queue of one row, and the others must not wait for it.
        let made = tokio::time::timeout(OPEN_WITHIN, parcels(&self.engine, &messages)).await;
        batch.parcels = made.map_err(|_| DbError::Full)??.1;
        Ok(())
    }

    fn parcels(batch: &Rows) -> &[Parcel] {
        &batch.parcels
    }

    /// The rows go last, because the deletion of a queue takes locks in that order.
    async fn done(&self, db: &Connection, batch: &mut Rows, _: Vec<Outcome>) -> Result<(), Undone> {
        let finished = if batch.ends { self.finished() } else { Vec::new() };
        match self.statements.clear(db, &batch.rows, &finished).await? {
            true => Ok(()),
            false => Err(Undone::Changed),
        }
    }

    fn landed(&mut self, batch: &Rows) {
        if batch.ends {
            self.advance();
        }
    }

    fn fault(&self, batch: &Rows, why: &Undone) -> Fault {
        match why {
            Undone::Behind | Undone::Failed(Error::KeyRequired(_)) => Fault::Blocked,
            _ if batch.rows.is_empty() => Fault::Fatal,
            Undone::Failed(Error::Database(error)) if error.is_data() => Fault::Own,
            Undone::Failed(Error::Database(DbError::Procedure { .. } | DbError::Full)) => Fault::Blocked,
            _ => Fault::Fatal,
        }
    }

    fn split(&self, batch: Rows, fault: Fault) -> Result<Vec<Rows>, Rows> {
        let part = |rows| Rows { rows, ..Rows::default() };
        if batch.ends {
            let mut batches: Vec<Rows> = by_partition(batch.rows).into_iter().map(part).collect();
            batches.push(Rows { ends: true, ..Rows::default() });
            return Ok(batches);
        }
        match fault {
            Fault::Own if batch.rows.len() > 1 => {
                Ok(batch.rows.into_iter().map(|row| part(vec![row])).collect())
            }
            _ => Err(batch),
        }
    }

    async fn refuse(&mut self, item: Rows, error: &Error) -> Result<(), Undone> {
        let (row, reason) = (&item.rows[0], error.to_string());
        error!(message = %row.message_id, queue = %row.queue, %reason, "the log refuses a row of queen.inbox");
        Ok(inbox::refuse_inbox(&self.db, row, &reason).await?)
    }

    async fn later(&mut self, batch: Rows, why: Undone) -> Result<(), Undone> {
        self.window.left.extend(batch.rows.iter().map(|row| row.xid));
        batch.rows.into_iter().take(1).for_each(|row| self.block(row, &why));
        Ok(())
    }

    async fn wait(&mut self, ended: Result<(), Undone>) {
        let paused = self.engine.shared.load.maintenance();
        if paused && let Err(error) = self.wake().await {
            debug!(%error, "the inbox rests on");
        }
        let pause = if paused || ended.is_err() { AGAIN } else { self.pause };
        tokio::select! {
            () = self.heard.notified(), if self.resting => {}
            () = tokio::time::sleep(pause) => {}
        }
    }

    fn is_over(&self) -> bool {
        !self.db.is_usable() || self.makes_room()
    }

    fn connection(&self) -> Option<&Connection> {
        Some(&self.db)
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

/// A message without a transaction id uses its message id as one.
fn message<'a>((row, minted): (&'a InboxRow, &'a String)) -> Message<'a> {
    let transaction_id = row.transaction_id.as_deref().unwrap_or(minted);
    Message {
        chosen: row.transaction_id.is_some(),
        promised: Some(row.message_id),
        trace_id: row.trace_id,
        ..Message::accepted(&row.queue, &row.partition, transaction_id, &row.payload)
    }
}
