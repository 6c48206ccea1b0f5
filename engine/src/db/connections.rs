//! The message plane's own connections: prepared once, and shared by the flights that leave at the same time.

use std::collections::VecDeque;
use std::future::Future;
use std::ops::Deref;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};

use super::backend::{Backend, Enders};
use super::connect::{Connector, error_chain};
use super::error::Error;
use super::procedures::Statements;
use crate::clock;

/// Before what a lost connection interrupted is tried again.
pub const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// A flight that has waited this long for others to land leaves beside them.
const CONVOY_PATIENCE: Duration = Duration::from_millis(2);

/// How long a connection whose caller has gone away may take to come to rest, before the process that serves it is ended.
/// Most calls take a tenth of that, and a new connection costs a hundred of them.
const SETTLES_WITHIN: Duration = Duration::from_millis(100);

/// After so many abandoned calls a connection is replaced: one that is abandoned while it is prepared leaves its prepared
/// statement in the session, some kilobytes, and nothing knows its name.
const ABANDONED_MAX: u32 = 100;

/// Flights that wait for a convoy. With more, those that have lost patience are dropped.
const WAITING_FLIGHTS: usize = 64;

/// Who goes first: finishing work before taking more on, and what may take long last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    Turn,
    Push,
    Fetch,
}

pub struct Connection {
    pub client: tokio_postgres::Client,
    pub statements: Statements,
    /// Of the server. A connection ends with it, so it is asked for once.
    pub life: String,
    /// The process that serves this connection.
    pub backend: Backend,
    /// How many lives came before it, and how many are known by now.
    number: u64,
    newest: Arc<AtomicU64>,
    deadline: Duration,
    broken: AtomicBool,
    /// A call has no answer and never gets one here. The backend may still be at work on it, or not have begun.
    unsettled: Arc<AtomicBool>,
    /// The caller has gone away without the answer to its call. It may be on its way.
    abandoned: AtomicBool,
    /// How often that has happened.
    abandonments: u32,
    /// Between `begin` and the answer to `commit` or `rollback`.
    in_transaction: AtomicBool,
}

impl Connection {
    /// Waits no longer than the deadline; a connection that missed one is not used again.
    ///
    /// # Cancel safety
    /// Dropped before the answer came, it leaves a connection that serves others once it has come to rest
    /// ([`SETTLES_WITHIN`]), and is closed if it does not.
    pub async fn within<T>(
        &self,
        procedure: &'static str,
        call: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Error> {
        let answer = Outstanding(self);
        let result = match tokio::time::timeout(self.deadline, call).await {
            Ok(result) => result.map_err(|error| Error::from_postgres(procedure, error)),
            Err(_) => Err(Error::Lost(format!("{procedure}: no answer within {:?}", self.deadline))),
        };
        match &result {
            Err(error) if error.is_outcome_unknown() => self.give_up(),
            Err(error) if error.ends_connection() => self.broken.store(true, Relaxed),
            _ => {}
        }
        std::mem::forget(answer);
        result
    }

    /// No answer comes, and others must not wait behind it.
    fn give_up(&self) {
        self.unsettled.store(true, Relaxed);
        self.broken.store(true, Relaxed);
    }

    /// Called before the statement that begins a transaction is sent.
    pub(super) fn enter_transaction(&self) {
        self.in_transaction.store(true, Relaxed);
    }

    /// PostgreSQL has answered that it is in no transaction any more.
    pub(super) fn leave_transaction(&self) {
        self.in_transaction.store(false, Relaxed);
    }

    pub fn is_usable(&self) -> bool {
        !self.broken.load(Relaxed) && !self.client.is_closed() && self.is_current()
    }

    /// The backend, if it may still be at work on a call that gets no answer any more.
    pub fn unsettled(&self) -> Option<Backend> {
        self.unsettled.load(Relaxed).then_some(self.backend)
    }

    /// Whether the next caller would find it as a new one is: no call without its answer, and in no transaction.
    fn is_idle(&self) -> bool {
        self.is_usable() && !self.in_transaction.load(Relaxed)
    }

    /// Whether it leads to the server that was met last. What another one has answered must not be kept: ask under the lock
    /// of whatever keeps it, because the number changes before that is emptied.
    pub fn is_current(&self) -> bool {
        self.number == self.newest.load(Acquire)
    }
}

/// A call without its answer. It is dropped by a panic, or when its caller goes away.
struct Outstanding<'a>(&'a Connection);

impl Drop for Outstanding<'_> {
    fn drop(&mut self) {
        match std::thread::panicking() {
            true => self.0.give_up(),
            false => self.0.abandoned.store(true, Relaxed),
        }
    }
}

/// The set of connections. Clones share it.
///
/// The database spends a quarter of a millisecond on a flight before it looks at the first item, most of it waiting for
/// the disk and for the next message to arrive. So flights of different lanes leave as a convoy: one after the other on
/// one connection, without a pause in between, while everything that arrives meanwhile collects for the next convoy.
/// With `flights` in the air a further one waits, but not for long: one slow flight must not hold up the others.
///
/// # Invariants
/// - At most `size` connections are open or being opened.
/// - A connection is used by one convoy, or by one caller of `acquire`, at a time.
/// - Whoever gets one finds it idle: in no transaction, with no call outstanding. One that comes back in any other state, and
///   does not come to rest within a moment, is closed, and a backend that may still be at work for it is ended.
#[derive(Clone)]
pub struct Connections(Arc<Inner>);

struct Inner {
    connector: Connector,
    size: usize,
    flights: usize,
    deadline: Duration,
    patience: Duration,
    waiting_max: usize,
    state: Mutex<State>,
    /// Since when no connection could be opened, while none that was open has been of use.
    down: Mutex<Option<Instant>>,
    lives: Mutex<Lives>,
    /// Beside the lock and not under it: who asks holds the lock of a cache, and who empties caches holds that of the lives.
    newest: Arc<AtomicU64>,
    enders: Enders,
}

/// The server as it was last met, and what to do when it is another one.
#[derive(Default)]
struct Lives {
    current: Option<String>,
    ended: Option<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct State {
    idle: Vec<Connection>,
    open: usize,
    airborne: usize,
    /// Flights that wait for the next convoy, by priority.
    waiting: [VecDeque<oneshot::Sender<Checkout>>; 3],
    /// Out of patience, or in need of a connection of their own: the next one is theirs alone.
    alone: VecDeque<oneshot::Sender<Checkout>>,
}

enum Place {
    Idle(Box<Connection>),
    /// Counted as open already.
    New,
    Full,
}

impl State {
    /// Whether so many wait for a connection of their own. Those that have gone away do not count.
    fn is_crowded(&mut self, waiting_max: usize) -> bool {
        if self.alone.len() >= waiting_max {
            self.alone.retain(|waiter| !waiter.is_closed());
        }
        self.alone.len() >= waiting_max
    }

    /// A connection, or the right to open one.
    fn take(&mut self, size: usize) -> Place {
        while let Some(connection) = self.idle.pop() {
            if connection.is_usable() {
                return Place::Idle(Box::new(connection));
            }
            self.open -= 1;
        }
        if self.open >= size {
            return Place::Full;
        }
        self.open += 1;
        Place::New
    }
}

impl Connections {
    /// `patience`: how long `persist` tries. `waiting_max`: callers in need of a connection of their own, before the next is
    /// refused.
    pub fn new(
        connector: Connector,
        size: usize,
        flights: usize,
        statement_timeout: Duration,
        patience: Duration,
        waiting_max: usize,
    ) -> Self {
        // The server ends a statement first; this is for when the server itself is gone.
        let deadline = statement_timeout + Duration::from_secs(5);
        let (size, flights) = (size.max(1), flights.max(1));
        Self(Arc::new(Inner {
            connector,
            size,
            flights,
            deadline,
            patience,
            waiting_max,
            state: Mutex::default(),
            lives: Mutex::default(),
            newest: Arc::default(),
            enders: Enders::default(),
            down: Mutex::default(),
        }))
    }

    /// A place in the next convoy, for a flight of single statements.
    pub async fn join(&self, priority: Priority) -> Result<Checkout, Error> {
        let receiver = {
            let mut state = self.lock();
            let place = if state.airborne < self.0.flights { state.take(self.0.size) } else { Place::Full };
            match place {
                Place::Idle(connection) => return Ok(self.flight(&mut state, &self.loan(*connection))),
                Place::New => None,
                Place::Full => {
                    let (sender, receiver) = oneshot::channel();
                    let waiting = &mut state.waiting[priority as usize];
                    if waiting.len() >= WAITING_FLIGHTS {
                        waiting.retain(|flight| !flight.is_closed());
                    }
                    waiting.push_back(sender);
                    Some(receiver)
                }
            }
        };
        let Some(mut receiver) = receiver else {
            let loan = self.open().await?;
            return Ok(self.flight(&mut self.lock(), &loan));
        };
        if let Ok(Ok(checkout)) = tokio::time::timeout(CONVOY_PATIENCE, &mut receiver).await {
            return Ok(checkout);
        }
        receiver.close();
        match receiver.try_recv() {
            Ok(checkout) => Ok(checkout),
            Err(_) => self.acquire().await,
        }
    }

    /// A connection of one's own.
    pub async fn acquire(&self) -> Result<Checkout, Error> {
        loop {
            let receiver = {
                let mut state = self.lock();
                match state.take(self.0.size) {
                    Place::Idle(connection) => {
                        return Ok(Checkout { loan: self.loan(*connection), flies: false });
                    }
                    Place::New => None,
                    Place::Full if state.is_crowded(self.0.waiting_max) => return Err(Error::Full),
                    Place::Full => {
                        let (sender, receiver) = oneshot::channel();
                        state.alone.push_back(sender);
                        Some(receiver)
                    }
                }
            };
            let Some(receiver) = receiver else {
                return Ok(Checkout { loan: self.open().await?, flies: false });
            };
            // An error means that a connection was lost and its place is free: try for it.
            if let Ok(checkout) = receiver.await {
                return Ok(checkout);
            }
        }
    }

    /// Runs a call that may run twice, and again while connections get lost, as long as patience lasts. Never while an
    /// earlier try may still be at work.
    pub async fn persist<T, F>(&self, call: impl Fn(Checkout) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let started = clock::now();
        let mut before: Option<Backend> = None;
        loop {
            let result = match self.acquire().await {
                Ok(connection) => {
                    let ended = match &before {
                        Some(backend) => backend.end(&connection).await,
                        None => Ok(()),
                    };
                    match ended {
                        Ok(()) => {
                            let (backend, unsettled) = (connection.backend, connection.unsettled.clone());
                            let result = call(connection).await;
                            before = unsettled.load(Relaxed).then_some(backend);
                            result
                        }
                        Err(error) => Err(error),
                    }
                }
                Err(error) => Err(error),
            };
            match result {
                Err(error)
                    if error.may_retry()
                        && clock::now() - started < self.0.patience
                        && self.down_for().is_none_or(|time| time < self.0.patience) =>
                {
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                other => return other,
            }
        }
    }

    async fn open(&self) -> Result<Arc<Loan>, Error> {
        let opened = self.try_open().await;
        let mut down = self.0.down.lock().unwrap_or_else(PoisonError::into_inner);
        *down = match opened {
            Ok(_) => None,
            Err(_) => Some(down.unwrap_or_else(clock::now)),
        };
        opened
    }

    /// How long the database has been away, as far as anybody has tried.
    pub fn down_for(&self) -> Option<Duration> {
        let down = self.0.down.lock().unwrap_or_else(PoisonError::into_inner);
        down.map(|since| clock::now() - since)
    }

    pub fn is_down(&self) -> bool {
        self.down_for().is_some()
    }

    /// Before anybody gets a connection to a server that has crashed since, or has taken over from another one: it may not
    /// have all that was committed.
    pub fn on_new_life(&self, ended: impl Fn() + Send + Sync + 'static) {
        self.lives().ended = Some(Box::new(ended));
    }

    fn lives(&self) -> MutexGuard<'_, Lives> {
        self.0.lives.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many lives have ended.
    pub fn life(&self) -> u64 {
        self.0.newest.load(Acquire)
    }

    fn met(&self, life: &str) -> u64 {
        let mut lives = self.lives();
        let before = lives.current.replace(life.to_owned());
        if before.is_some_and(|before| before != life) {
            self.0.newest.fetch_add(1, Release);
            if let Some(ended) = &lives.ended {
                ended();
            }
        }
        self.life()
    }

    async fn try_open(&self) -> Result<Arc<Loan>, Error> {
        let place = Reserved(self);
        let client = self.0.connector.client().await?;
        let connection = self.prepared(client).await?;
        std::mem::forget(place);
        Ok(self.loan(connection))
    }

    async fn prepared(&self, client: tokio_postgres::Client) -> Result<Connection, Error> {
        // Boxed: large, and hardly ever needed.
        let prepare = tokio::time::timeout(self.0.deadline, Box::pin(Statements::prepare(&client)));
        let statements = match prepare.await {
            // Nothing was asked of it yet, whatever went wrong.
            Ok(statements) => statements.map_err(|error| Error::Unreachable(error_chain(&error)))?,
            Err(_) => return Err(Error::Unreachable("no answer to prepare".to_owned())),
        };
        let (life, backend) = match tokio::time::timeout(self.0.deadline, Backend::of(&client)).await {
            Ok(known) => known.map_err(|error| Error::Unreachable(error.to_string()))?,
            Err(_) => return Err(Error::Unreachable("no answer".to_owned())),
        };
        Ok(Connection {
            client,
            statements,
            number: self.met(&life),
            newest: self.0.newest.clone(),
            life,
            backend,
            deadline: self.0.deadline,
            broken: AtomicBool::new(false),
            unsettled: Arc::default(),
            abandoned: AtomicBool::new(false),
            abandonments: 0,
            in_transaction: AtomicBool::new(false),
        })
    }

    /// A connection beside the others, for one who keeps it. `heard` is told of what it listens to.
    pub async fn own(&self, heard: Arc<Notify>) -> Result<Connection, Error> {
        let client = self.0.connector.client_hearing(move || heard.notify_one()).await?;
        self.prepared(client).await
    }

    fn loan(&self, connection: Connection) -> Arc<Loan> {
        Arc::new(Loan { connection: Some(connection), home: self.clone() })
    }

    fn flight(&self, state: &mut State, loan: &Arc<Loan>) -> Checkout {
        state.airborne += 1;
        Checkout { loan: loan.clone(), flies: true }
    }

    fn give_back(&self, mut connection: Connection) {
        if connection.abandoned.swap(false, Relaxed) {
            // At the very end there is nothing left to run a task.
            match connection.is_idle() && tokio::runtime::Handle::try_current().is_ok() {
                true => return self.settle(connection),
                false => connection.give_up(),
            }
        }
        if !connection.is_idle() {
            if let Some(backend) = connection.unsettled() {
                self.0.enders.end(backend, &self.0.connector);
            }
            drop(connection);
            return self.free_place();
        }
        *self.0.down.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let mut state = loop {
            let mut state = self.lock();
            let Some(waiter) = state.alone.pop_front() else { break state };
            drop(state);
            // Not under the lock, which the end of a checkout takes as well.
            match waiter.send(Checkout { loan: self.loan(connection), flies: false }) {
                Ok(()) => return,
                Err(mut back) => match back.take() {
                    Some(returned) => connection = returned,
                    None => return,
                },
            }
        };
        let crowded = state.airborne >= self.0.flights;
        let waiting = state.waiting.iter_mut().filter(|_| !crowded);
        let convoy: Vec<_> = waiting.flat_map(|queue| queue.drain(..)).collect();
        if convoy.is_empty() {
            return state.idle.push(connection);
        }
        let loan = self.loan(connection);
        let convoy: Vec<_> =
            convoy.into_iter().map(|waiter| (waiter, self.flight(&mut state, &loan))).collect();
        drop(state);
        for (waiter, checkout) in convoy {
            drop(waiter.send(checkout));
        }
    }

    /// Waits for the answer to a call that was abandoned: answers come in order, so for the answer to one behind it.
    fn settle(&self, mut connection: Connection) {
        let home = self.clone();
        connection.abandonments += 1;
        self.0.connector.tasks.spawn(async move {
            let settled = tokio::time::timeout(SETTLES_WITHIN, connection.client.simple_query(""));
            if !matches!(settled.await, Ok(Ok(_))) {
                connection.give_up();
            } else if connection.abandonments >= ABANDONED_MAX {
                connection.broken.store(true, Relaxed);
            }
            home.give_back(connection);
        });
    }

    /// Lets every waiter try for the place: the first opens a connection or reports why it cannot.
    fn free_place(&self) {
        let mut state = self.lock();
        state.open -= 1;
        state.waiting.iter_mut().for_each(VecDeque::clear);
        state.alone.clear();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops idle connections, for the end.
    pub fn close(&self) {
        let mut state = self.lock();
        state.open -= state.idle.len();
        state.idle.clear();
    }

    pub fn size(&self) -> usize {
        self.0.size
    }

    /// Open connections that are carrying a flight right now.
    pub fn busy(&self) -> usize {
        let state = self.lock();
        state.open - state.idle.len()
    }

    /// Callers that wait for a connection.
    pub fn waiting(&self) -> usize {
        let state = self.lock();
        let waiting = state.waiting.iter().flatten().chain(&state.alone);
        waiting.filter(|waiter| !waiter.is_closed()).count()
    }

    pub fn connector(&self) -> &Connector {
        &self.0.connector
    }
}

/// Gives the place back if opening fails or is cancelled.
struct Reserved<'a>(&'a Connections);

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.0.free_place();
    }
}

/// A connection, alone or together with the rest of a convoy.
pub struct Checkout {
    loan: Arc<Loan>,
    flies: bool,
}

/// Goes home with the last who uses it.
struct Loan {
    connection: Option<Connection>,
    home: Connections,
}

impl Checkout {
    /// The connection itself, if nobody else flies with it.
    fn take(&mut self) -> Option<Connection> {
        Arc::get_mut(&mut self.loan)?.connection.take()
    }
}

impl Deref for Checkout {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.loan.connection.as_ref().expect("a loan holds its connection until it is dropped")
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        if self.flies {
            self.loan.home.lock().airborne -= 1;
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.home.give_back(connection);
        }
    }
}
