//! The source of spooled pushes: the files of this broker, and those that other brokers of this machine have left behind.
//! Its mark is a position in the database, so records are moved in the order they were accepted in, across partitions.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use queen_protocol::Trace;
use tracing::{debug, error, info};

use super::{Fault, Source, Undone, parcels};
use crate::Engine;
use crate::db::{Connection, Error as DbError, control};
use crate::error::Error;
use crate::message::append::Behind;
use crate::message::parcel::{Message, Parcel, Secrecy};
use crate::spool::{Read, Spool, SpoolError, Spooled};

/// Pause between two tries to reach the database.
const AGAIN: Duration = Duration::from_millis(250);

/// Records of one batch.
const RECORDS_MAX: usize = 100;

/// How often to look for folders that another broker of this machine has left behind.
const LOOK_EVERY: Duration = Duration::from_secs(10);

pub fn start(engine: &Engine) {
    let shared = engine.shared.clone();
    let (Some(spool), Some(config)) = (shared.spool.clone(), shared.config.spool.clone()) else { return };
    let mut own = Folder::new(engine, spool);
    engine.shared.tasks.spawn({
        let shared = shared.clone();
        async move { super::run(&shared, &mut own).await }
    });
    let engine = engine.clone();
    shared.tasks.clone().spawn(async move {
        while !shared.tasks.is_stopping() {
            let left = match shared.load.maintenance() {
                true => Vec::new(),
                false => Spool::left_behind(&config).unwrap_or_default(),
            };
            for left in left {
                info!(dir = %left.dir().display(), "handing in the spool of a broker that is gone");
                if let Err(why) = super::pass(&shared, &mut Folder::new(&engine, left.clone())).await {
                    debug!(%why, "a spool that was left behind waits");
                }
                left.close();
            }
            tokio::select! {
                () = shared.tasks.stopping() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    });
}

struct Folder {
    engine: Engine,
    spool: Spool,
    /// The next record. `None`: it has to be read from the database.
    position: Option<u64>,
    /// Records below this were removed from the files.
    removed: u64,
}

/// Consecutive records.
struct Records {
    from: u64,
    records: Vec<Read>,
    parcels: Vec<Parcel>,
}

impl Records {
    fn to(&self) -> u64 {
        self.records.last().map_or(self.from, |last| last.number + 1)
    }
}

impl Folder {
    fn new(engine: &Engine, spool: Spool) -> Self {
        Self { engine: engine.clone(), spool, position: None, removed: 0 }
    }

    async fn position(&mut self) -> Result<u64, DbError> {
        let position = match self.position {
            Some(position) => position,
            None => control::spool_position(&self.engine.shared.connections, self.spool.id()).await?,
        };
        self.position = Some(position);
        Ok(position)
    }

    fn remove(&mut self, records: &[Read]) {
        self.spool.done(records);
        self.removed = records.last().map_or(self.removed, |last| last.number + 1);
        if self.spool.is_empty() {
            info!("the spool is empty again");
        }
    }

    /// A record that cannot be stored must not keep later ones out of the log.
    fn keep_refused(&self, record: &Read, reason: &str) -> Result<(), Error> {
        let path = self.spool.dir().join(format!("{:020}.refused.json", record.number));
        let options = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).clone();
        let mut file = options.open(&path).map_err(|error| disk(&error))?;
        file.write_all(&record.body).and_then(|()| file.sync_all()).map_err(|error| disk(&error))?;
        error!(file = %path.display(), %reason, "the database refuses a spooled push");
        Ok(())
    }
}

impl Source for Folder {
    const NAME: &'static str = "spool";
    const BEHIND: Behind = Behind::Defer;
    type Batch = Records;

    async fn take(&mut self) -> Result<Option<Records>, Undone> {
        while !self.spool.is_empty() {
            let from = self.position().await?;
            let mut records = self.spool.read(self.removed).await.map_err(|error| disk(&error))?;
            // Moved but not removed, because the process ended in between, or the response was lost.
            let moved = records.iter().take_while(|record| record.number < from).count();
            if moved > 0 {
                records.truncate(moved);
                self.remove(&records);
                continue;
            }
            records.truncate(RECORDS_MAX);
            if records.is_empty() {
                return Err(Error::Spool(SpoolError::Unusable("its files hold no record".to_owned())).into());
            }
            self.spool.moving(Some(&records));
            return Ok(Some(Records { from, records, parcels: Vec::new() }));
        }
        Ok(None)
    }

    async fn prepare(&self, batch: &mut Records) -> Result<(), Undone> {
        let mut requests: Vec<Spooled<'_>> = Vec::with_capacity(batch.records.len());
        for record in &batch.records {
            match serde_json::from_slice(&record.body) {
                Ok(request) => requests.push(request),
                Err(error) => self.keep_refused(record, &error.to_string())?,
            }
        }
        let messages: Vec<Message<'_>> = requests.iter().flat_map(messages).collect();
        batch.parcels = parcels(&self.engine, &messages).await?.1;
        Ok(())
    }

    fn parcels(batch: &Records) -> &[Parcel] {
        &batch.parcels
    }

    async fn hold(&self, db: &Connection, batch: &mut Records) -> Result<(), Undone> {
        match control::move_spool(db, self.spool.id(), batch.from, batch.to()).await? {
            true => Ok(()),
            false => Err(Undone::Changed),
        }
    }

    fn landed(&mut self, batch: &Records) {
        self.position = Some(batch.to());
        self.remove(&batch.records);
    }

    fn split(&self, batch: Records, _fault: Fault) -> Result<Vec<Records>, Records> {
        if batch.records.len() == 1 {
            return Err(batch);
        }
        let mut from = batch.from;
        let alone = |record: Read| {
            let next = record.number + 1;
            let from = std::mem::replace(&mut from, next);
            Records { from, records: vec![record], parcels: Vec::new() }
        };
        Ok(batch.records.into_iter().map(alone).collect())
    }

    async fn refuse(&mut self, mut item: Records, error: &Error) -> Result<(), Undone> {
        self.keep_refused(&item.records[0], &error.to_string())?;
        let db = self.engine.shared.connections.acquire().await?;
        self.hold(&db, &mut item).await?;
        self.landed(&item);
        Ok(())
    }

    async fn wait(&mut self, ended: Result<(), Undone>) {
        self.position = self.position.filter(|_| ended.is_ok());
        self.spool.moving(None);
        tokio::select! {
            () = self.spool.written() => {}
            // Maintenance may be over, or the database reachable again.
            () = tokio::time::sleep(AGAIN) => {}
        }
    }
}

fn disk(error: &std::io::Error) -> Error {
    Error::Spool(SpoolError::Unusable(error.to_string()))
}

fn messages<'a>(request: &'a Spooled<'_>) -> impl Iterator<Item = Message<'a>> {
    request.items.iter().map(|item| Message {
        namespace: item.namespace.as_deref(),
        task: item.task.as_deref(),
        chosen: item.chosen,
        promised: Some(item.message_id),
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
        ..Message::accepted(&item.queue, &item.partition, &item.transaction_id, item.payload.get())
    })
}
