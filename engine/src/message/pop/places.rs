//! Where a pop looks: the watches of its queues, each registered for its group and filled from the database once.

use std::sync::Arc;
use std::time::Duration;

use queen_protocol::{PopFilter, QUEUE_MODE, Subscription};
use uuid::Uuid;

use super::Pop;
use crate::clock;
use crate::db::control;
use crate::db::procedures;
use crate::db::{Checkout, Error as DbError};
use crate::error::Error;
use crate::log::Partition;
use crate::message::claim::FOREIGN_LEASE_LOOK;
use crate::message::open::{Open, Opened};
use crate::pop::watch::{Interest, Watch};

/// One page of a queue's partitions when a watch is filled; 10,000 take the database about 20 ms.
const SEED_PAGE: i32 = 10_000;

/// Partitions for which a broker remembers that it registered a group; a second registration changes nothing.
const REGISTERED_MAX: usize = 10_000;

/// A watch that a pop draws from; `name` if it wants one partition of it, which may not exist yet.
pub struct Place {
    pub watch: Arc<Watch>,
    /// The generation in which the pop looks.
    pub generation: u64,
    pub partition: Option<Arc<Partition>>,
    pub name: Option<Arc<str>>,
}

impl Place {
    pub fn interest(&self) -> Interest<'_> {
        match &self.name {
            Some(name) => Interest::Partition(name),
            None => Interest::Any,
        }
    }

    pub fn was_reset(&self) -> bool {
        self.watch.generation() != self.generation
    }
}

impl Pop<'_> {
    /// The watches to draw from. Registers the group on its first contact with a queue.
    pub(super) async fn open(&self) -> Result<Vec<Place>, Error> {
        let shared = &self.engine.shared;
        match &self.request.filter {
            PopFilter::Queue { queue } => Ok(vec![self.open_queue(queue).await?]),
            PopFilter::Partition { queue, partition } => {
                Ok(vec![self.open_partition(queue, partition).await?])
            }
            PopFilter::Labels { namespace, task } => {
                let (namespace, task) = (namespace.as_deref(), task.as_deref());
                let queues = control::queues_matching(&shared.connections, namespace, task).await?;
                let mut places = Vec::with_capacity(queues.len());
                for queue in queues {
                    places.push(self.open_queue(&queue).await?);
                }
                Ok(places)
            }
        }
    }

    /// On first contact the group is registered, and the first page of partitions is read into the ready list.
    async fn open_queue(&self, queue: &str) -> Result<Place, Error> {
        let (watch, generation) = self.engine.shared.watches.look(queue, &self.request.group);
        let mut seeding = watch.seeding().await;
        if !seeding.registered {
            let exists = self.register(&watch, "").await?;
            self.must_exist(exists, queue)?;
            seeding.registered = true;
        }
        if !seeding.started {
            seeding.next = self.seed_page(&watch, Uuid::nil()).await?;
            seeding.started = true;
        }
        drop(seeding);
        Ok(Place { watch, generation, partition: None, name: None })
    }

    async fn open_partition(&self, queue: &str, partition: &str) -> Result<Place, Error> {
        let shared = &self.engine.shared;
        let (watch, generation) = shared.watches.look(queue, &self.request.group);
        // An unregistered group starts at the oldest message anyway.
        if self.request.subscription != Subscription::All && self.request.group != QUEUE_MODE {
            let mut seeding = watch.seeding().await;
            if !seeding.registered && !seeding.partitions.contains(partition) {
                let exists = self.register(&watch, partition).await?;
                self.must_exist(exists, queue)?;
                if seeding.partitions.len() >= REGISTERED_MAX {
                    seeding.partitions.clear();
                }
                seeding.partitions.insert(partition.into());
            }
        }
        let name: Arc<str> = partition.into();
        let open = Open {
            queue: watch.queue.clone(),
            partition: name.clone(),
            namespace: None,
            task: None,
            create: Some(false),
        };
        let opened = self.engine.open(vec![open]).await?;
        let partition = opened.into_iter().find_map(Opened::known).map(|known| known.partition);
        if partition.is_none() && !shared.config.auto_create {
            let exists = control::queue_exists(&shared.connections, queue).await?;
            self.must_exist(exists, queue)?;
        }
        Ok(Place { watch, generation, partition, name: Some(name) })
    }

    /// Returns whether there is such a queue.
    async fn register(&self, watch: &Watch, partition: &str) -> Result<bool, DbError> {
        let request = self.request;
        let (new, since) = match request.subscription {
            Subscription::All => (false, None),
            Subscription::New => (true, None),
            Subscription::From(time) => (false, Some(time)),
        };
        let mode = request.mode.as_deref().unwrap_or(request.subscription.word());
        let (queue, group) = (&*watch.queue, &*watch.group);
        let registration = &procedures::Registration { queue, group, partition, mode, new, since };
        let register = |db: Checkout| async move { procedures::register_group(&db, registration).await };
        self.engine.shared.connections.persist(register).await
    }

    /// Where queues are not created automatically, it is useless to wait for one that does not exist.
    fn must_exist(&self, exists: bool, queue: &str) -> Result<(), Error> {
        match exists || self.engine.shared.config.auto_create {
            true => Ok(()),
            false => Err(Error::NoQueue(queue.to_owned())),
        }
    }

    /// Reads the next page of each queue that has one. False: all lists are complete.
    pub(super) async fn seed(&self) -> Result<bool, DbError> {
        let mut seeded = false;
        for place in &self.places {
            let mut seeding = place.watch.seeding().await;
            if let Some(after) = seeding.next {
                seeding.next = self.seed_page(&place.watch, after).await?;
                seeded = true;
            }
        }
        Ok(seeded)
    }

    /// Fills the ready list from the database. Returns where the next page starts, if there is one.
    async fn seed_page(&self, watch: &Arc<Watch>, after: Uuid) -> Result<Option<Uuid>, DbError> {
        let seed = |db: Checkout| async move {
            procedures::seed(&db, &watch.queue, &watch.group, after, SEED_PAGE).await
        };
        let mut rows = self.engine.shared.connections.persist(seed).await?;
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
}
