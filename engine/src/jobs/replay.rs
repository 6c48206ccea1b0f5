//! Replay: hands in what is in the spool, in order, once the database is back. How far it came is written down in the
//! same transaction, so that every record is handed in exactly once, whoever dies when.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use queen_protocol::Trace;
use tracing::{debug, error, info};

use crate::Engine;
use crate::clock;
use crate::db::control;
use crate::db::{Connection, Error, transaction};
use crate::message::append::{self, Landed, Parcel, Publication, Turn};
use crate::message::defer::{self, Deferral};
use crate::message::push::{Message, Missing, Secrecy, Sorted};
use crate::spool::{Read, Spool, Spooled};

/// Between two tries to reach the database.
const AGAIN: Duration = Duration::from_millis(250);

/// While the spool waits for a locked partition it holds the rows of others, so it does not wait long.
const LOCK_WAIT: Duration = Duration::from_millis(100);

/// Records handed in together.
const RECORDS_MAX: usize = 100;

/// How often folders are looked for that another broker of this machine has left behind.
const LOOK_EVERY: Duration = Duration::from_secs(10);

pub fn start(engine: &Engine) {
    let (Some(spool), Some(config)) = (engine.shared.spool.clone(), engine.shared.config.spool.clone())
    else {
        return;
    };
    let engine = engine.clone();
    let tasks = engine.shared.tasks.clone();
    // Not dropped in the middle of a transaction: its connection goes back to the others.
    tasks.clone().spawn(async move {
        let mut own = Replay::new(&engine, spool);
        let mut look_at = clock::now();
        while !tasks.is_stopping() {
            own.run().await;
            if clock::now() >= look_at && !engine.shared.load.maintenance() {
                look_at = clock::now() + LOOK_EVERY;
                for left in Spool::left_behind(&config).unwrap_or_default() {
                    info!(dir = %left.dir().display(), "handing in the spool of a broker that is gone");
                    Replay::new(&engine, left.clone()).run().await;
                    left.close();
                }
            }
            tokio::select! {
                () = tasks.stopping() => return,
                () = own.spool.written() => {}
                // Maintenance may be over, or the database be back.
                () = tokio::time::sleep(AGAIN) => {}
            }
        }
    });
}

struct Replay {
    engine: Engine,
    spool: Spool,
    /// The next record, as far as the database was asked.
    position: Option<u64>,
    /// What is below was put away.
    done: u64,
}

impl Replay {
    fn new(engine: &Engine, spool: Spool) -> Self {
        Self { engine: engine.clone(), spool, position: None, done: 0 }
    }

    /// Until it is empty, or something is in the way.
    async fn run(&mut self) {
        let shared = self.engine.shared.clone();
        while !self.spool.is_empty() && !shared.load.maintenance() && !shared.tasks.is_stopping() {
            if let Err(error) = self.turn().await {
                debug!(%error, "the spool waits");
                return;
            }
        }
    }

    async fn turn(&mut self) -> Result<(), Error> {
        let connections = &self.engine.shared.connections;
        let position = match self.position {
            Some(position) => position,
            None => control::spool_position(connections, self.spool.id()).await?,
        };
        let mut records = self.spool.read(self.done).await.map_err(|error| disk(&error))?;
        // Handed in and not put away, because the process ended in between, or the answer was lost.
        let old = records.iter().take_while(|record| record.number < position).count();
        if old > 0 {
            records.truncate(old);
            self.put_away(&records);
            self.position = Some(position);
            return Ok(());
        }
        records.truncate(RECORDS_MAX);
        let Some(last) = records.last() else {
            return Err(Error::Unreachable("there is nothing to read in the spool".to_owned()));
        };
        let next = last.number + 1;
        let handed = match self.hand_in(&records, position, next).await {
            Err(error) if (error.is_data() || error.is_lock_timeout()) && records.len() > 1 => {
                records.truncate(1);
                let next = records[0].number + 1;
                self.hand_in(&records, position, next).await.map(|()| next)
            }
            other => other.map(|()| next),
        };
        match handed {
            Ok(next) => self.position = Some(next),
            Err(error) if error.is_data() => {
                self.refused(&records[0], &error.to_string())?;
                let db = connections.acquire().await?;
                control::move_spool(&db, self.spool.id(), position, records[0].number + 1).await?;
                self.position = Some(records[0].number + 1);
            }
            Err(error) => {
                self.position = None;
                return Err(error);
            }
        }
        self.put_away(&records);
        if self.spool.is_empty() {
            info!("the spool is empty again");
        }
        Ok(())
    }

    fn put_away(&mut self, records: &[Read]) {
        self.spool.done(records);
        self.done = records.last().map_or(self.done, |last| last.number + 1);
    }

    /// One that PostgreSQL cannot store must not keep the others from it.
    fn refused(&self, record: &Read, reason: &str) -> Result<(), Error> {
        let path = self.spool.dir().join(format!("{:020}.refused.json", record.number));
        let options = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).clone();
        let mut file = options.open(&path).map_err(|error| disk(&error))?;
        file.write_all(&record.body).and_then(|()| file.sync_all()).map_err(|error| disk(&error))?;
        error!(file = %path.display(), %reason, "the database refuses a spooled push");
        Ok(())
    }

    async fn hand_in(&self, records: &[Read], from: u64, to: u64) -> Result<(), Error> {
        let mut requests: Vec<Spooled<'_>> = Vec::with_capacity(records.len());
        for record in records {
            match serde_json::from_slice(&record.body) {
                Ok(request) => requests.push(request),
                Err(error) => self.refused(record, &error.to_string())?,
            }
        }
        let messages: Vec<Message<'_>> = requests.iter().flat_map(messages).collect();
        let all: Vec<usize> = (0..messages.len()).collect();
        let Sorted { parcels, gone, .. } = match self.engine.parcels(&messages, &all, Missing::Made).await {
            Ok(sorted) => sorted,
            Err(crate::Error::Database(error)) => return Err(error),
            Err(error) => return Err(Error::Unreachable(error.to_string())),
        };
        if !gone.is_empty() {
            return Err(Error::Lost("a partition was deleted while it was made".to_owned()));
        }
        let shared = &self.engine.shared;
        let db = shared.connections.acquire().await?;
        let number = transaction::begin_within(&db, LOCK_WAIT).await?;
        let parcels: Vec<&Parcel> = parcels.iter().map(|(_, parcel)| parcel).collect();
        let published = match self.prepare(&db, &parcels, from, to).await {
            Ok(published) => published,
            Err(error) => {
                transaction::rollback(&db).await;
                return Err(error);
            }
        };
        let connector = shared.connections.connector();
        transaction::commit(&db, connector, &number, shared.config.retry_for).await?;
        append::publish(shared, &db, &published);
        Ok(())
    }

    /// Everything up to the commit.
    async fn prepare(
        &self,
        db: &Connection,
        parcels: &[&Parcel],
        from: u64,
        to: u64,
    ) -> Result<Vec<Publication>, Error> {
        let shared = &self.engine.shared;
        if !control::move_spool(db, self.spool.id(), from, to).await? {
            return Err(Error::Lost("another process has handed this spool in".to_owned()));
        }
        let mut published = Vec::new();
        let landed = append::append(shared, db, parcels, Turn::Direct, &mut published).await?;
        let mut behind: Vec<Deferral> = Vec::new();
        for (parcel, landed) in parcels.iter().zip(landed) {
            match landed {
                Landed::Placed(_) => {}
                Landed::Behind(placed) => behind.push(Deferral::new(parcel, &placed)),
                Landed::Gone => return Err(Error::Lost("a partition was deleted".to_owned())),
            }
        }
        let behind: Vec<&Deferral> = behind.iter().collect();
        if !behind.is_empty() && defer::store(shared, db, &behind).await?.contains(&true) {
            return Err(Error::Lost("a partition was deleted".to_owned()));
        }
        Ok(published)
    }
}

fn disk(error: &std::io::Error) -> Error {
    Error::Unreachable(format!("the spool cannot be used: {error}"))
}

fn messages<'a>(request: &'a Spooled<'_>) -> impl Iterator<Item = Message<'a>> {
    request.items.iter().map(|item| Message {
        queue: &item.queue,
        partition: &item.partition,
        namespace: item.namespace.as_deref(),
        task: item.task.as_deref(),
        transaction_id: &item.transaction_id,
        chosen: item.chosen,
        promised: Some(item.message_id),
        accepted: true,
        trace_id: item.trace_id,
        trace: item
            .traceparent
            .as_deref()
            .and_then(|parent| Trace::parse(parent, item.tracestate.as_deref())),
        producer_sub: request.producer_sub.as_deref(),
        secrecy: match &item.key_id {
            Some(key_id) => Secrecy::Done { key_id, in_doubt: item.in_doubt },
            None => Secrecy::Queue,
        },
        payload: item.payload.get(),
    })
}
