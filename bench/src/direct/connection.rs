//! One connection with the broker's session settings, prepared statements, and binary arrays.
//!
//! Every call fails unless PostgreSQL did everything it was asked for.

use anyhow::{Context, Result, ensure};
use queen_testkit::Random;
use tokio::task::JoinSet;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, NoTls, Statement};
use uuid::Uuid;

use super::frames::FrameWriter;
use super::place::{Lease, Place, in_order, list};

/// As in engine/src/db/connect.rs, except for the limit on open transactions: nothing here opens one.
const SESSION: &str = "set search_path = pg_catalog, pg_temp; set plan_cache_mode = force_generic_plan; set enable_seqscan = off; \
    set enable_bitmapscan = off; set enable_indexonlyscan = off; set enable_hashjoin = off; set enable_mergejoin = off; set jit = off; \
    set timezone = 'UTC'; set statement_timeout = 30000; set lock_timeout = 10000";
/// The default of QUEEN_POP_MAX_BYTES.
const POP_BYTES_MAX: i64 = 64 << 20;
/// Size of a call that fills the database: a few megabytes.
const FILL_MESSAGES_MAX: u32 = 5_000;

const APPENDED: i32 = 0;
const GRANTED: i32 = 0;

/// A connection without prepared statements, so that it works with any broker's procedures.
pub struct Link {
    pub client: Client,
    _driver: JoinSet<()>,
}

impl Link {
    pub async fn open(database: &Config) -> Result<Link> {
        let (client, connection) =
            database.connect(NoTls).await.context("cannot reach the broker's database")?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // The user of the client sees the failure there.
            let _ = connection.await;
        });
        client.batch_execute(SESSION).await?;
        Ok(Link { client, _driver: driver })
    }

    /// Work that a load leaves for later would otherwise happen during a measurement.
    pub async fn settle(&self) -> Result<()> {
        for command in ["set statement_timeout = 0", "vacuum (analyze)", "checkpoint"] {
            self.client.batch_execute(command).await.with_context(|| command.to_owned())?;
        }
        Ok(())
    }
}

pub struct Connection {
    link: Link,
    open: Statement,
    push: Statement,
    lease: Statement,
    fetch: Statement,
    ack: Statement,
    rewind: Statement,
    random: Random,
}

/// What a pop requests of each partition.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    pub group: &'a str,
    pub batch: u32,
    /// Committed at delivery.
    pub auto: bool,
    /// The group may read these partitions for the first time.
    pub readers: bool,
}

impl Connection {
    pub async fn open(database: &Config) -> Result<Connection> {
        let link = Link::open(database).await?;
        let calls = [
            "select * from queen.open($1, $2, $3, $4, $5, $6)",
            "select * from queen.push($1, $2, $3, $4, $5, $6, $7, $8, false)",
            "select * from queen.lease($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
            "select * from queen.fetch($1, $2, $3)",
            "select * from queen.complete($1, $2, $3, $4, $5, $6, null, null, false)",
            "update queen.consumers set cursor = 0 where partition_id = any ($1) and consumer_group = $2",
        ];
        let [open, push, lease, fetch, ack, rewind] = calls.map(|call| link.client.prepare(call));
        let (open, push, lease, fetch, ack, rewind) = tokio::try_join!(open, push, lease, fetch, ack, rewind)
            .context("the broker's procedures differ from those called here")?;
        let random = Random::from_entropy();
        Ok(Connection { link, open, push, lease, fetch, ack, rewind, random })
    }

    /// Creates missing partitions, in the order of their ids, which is the lock order.
    pub async fn partitions(&mut self, queue: &str, names: &[String]) -> Result<Vec<Place>> {
        let queues = vec![queue; names.len()];
        let ids: Vec<Uuid> = names.iter().map(|_| self.random.uuid()).collect();
        let nothing: Vec<Option<&str>> = vec![None; names.len()];
        let create = vec![true; names.len()];
        let rows = self
            .link
            .client
            .query(&self.open, &[&queues, &names, &ids, &nothing, &nothing, &create])
            .await
            .context("open")?;
        ensure!(rows.len() == names.len(), "open returned {} of {} partitions", rows.len(), names.len());
        let mut places: Vec<Place> =
            rows.iter().map(|row| Place::new(row.get("id"), row.get("head"))).collect();
        places.sort_by_key(|place| place.id);
        Ok(places)
    }

    /// Appends a segment with this many messages to each partition. Returns their sum.
    pub async fn push(&self, places: &mut [Place], counts: &[u32], writer: &mut FrameWriter) -> Result<u64> {
        let pairs = || places.iter().zip(counts);
        let segments: Vec<_> = pairs().map(|(place, &count)| writer.segment(place.head, count)).collect();
        let ids = Place::ids(places);
        let heads: Vec<i64> = places.iter().map(|place| place.head).collect();
        let message_counts: Vec<i32> = counts.iter().map(|&count| count.cast_signed()).collect();
        let bytes: Vec<i32> = segments.iter().map(|segment| segment.bytes_max).collect();
        let transactions: Vec<&[u8]> = segments.iter().map(|segment| &*segment.transactions).collect();
        let frames: Vec<&str> = segments.iter().map(|segment| &*segment.frames).collect();
        let suspects = vec![false; places.len()];
        let row = self
            .link
            .client
            .query_one(
                &self.push,
                &[&ids, &heads, &message_counts, &bytes, &transactions, &frames, &suspects, &heads],
            )
            .await
            .context("push")?;
        let (positions, statuses) = (list(&row, "positions")?, list(&row, "statuses")?);
        let offsets: Vec<i64> = list(&row, "base_offsets")?;
        let offsets = in_order("push", places.len(), APPENDED, (&positions, &statuses), &offsets)?;
        ensure!(offsets == heads, "push appended at {offsets:?} instead of {heads:?}");
        for (place, &count) in places.iter_mut().zip(counts) {
            place.head += i64::from(count);
        }
        Ok(counts.iter().map(|&count| u64::from(count)).sum())
    }

    /// Appends `each` messages to each partition, in segments of this size.
    pub async fn fill(
        &self,
        places: &mut [Place],
        each: u32,
        segment_messages: u32,
        writer: &mut FrameWriter,
    ) -> Result<()> {
        let rows = (FILL_MESSAGES_MAX / segment_messages.max(1)).max(1) as usize;
        let mut left = each;
        // Writing partition after partition would produce a log that no broker writes.
        while left > 0 {
            let count = left.min(segment_messages);
            for page in places.chunks_mut(rows) {
                self.push(page, &vec![count; page.len()], writer).await?;
            }
            left -= count;
        }
        Ok(())
    }

    /// A pop for each place; all must be granted and filled.
    pub async fn lease(&mut self, places: &mut [Place], claim: Claim<'_>) -> Result<Vec<Lease>> {
        let rows = places.len();
        let pops: Vec<i32> = (0..i32::try_from(rows)?).collect();
        let leases: Vec<Uuid> = pops.iter().map(|_| self.random.uuid()).collect();
        let (groups, auto) = (vec![claim.group; rows], vec![claim.auto; rows]);
        let (seconds, batches, one) = (vec![0; rows], vec![claim.batch.cast_signed(); rows], vec![1; rows]);
        let ids = Place::ids(places);
        let row = self
            .link
            .client
            .query_one(
                &self.lease,
                &[
                    &pops,
                    &ids,
                    &groups,
                    &leases,
                    &seconds,
                    &batches,
                    &one,
                    &auto,
                    &POP_BYTES_MAX,
                    &claim.readers,
                    &true,
                ],
            )
            .await
            .context("lease")?;
        let (positions, statuses) = (list(&row, "positions")?, list(&row, "statuses")?);
        let ordered = |values: Vec<i64>| in_order("lease", rows, GRANTED, (&positions, &statuses), &values);
        let (firsts, lasts) = (ordered(list(&row, "firsts")?)?, ordered(list(&row, "lasts")?)?);
        let mut granted = Vec::with_capacity(rows);
        for (index, place) in places.iter_mut().enumerate() {
            let lease = Lease { id: leases[index], first: firsts[index], last: lasts[index] };
            let expected = place.cursor + i64::from(claim.batch).min(place.unread());
            ensure!(
                (lease.first, lease.last) == (place.cursor, expected),
                "lease granted {lease:?} of {place:?}"
            );
            if claim.auto {
                place.cursor = lease.last;
            }
            granted.push(lease);
        }
        Ok(granted)
    }

    /// Reads what was leased.
    pub async fn fetch(&self, places: &[Place], leases: &[Lease]) -> Result<()> {
        let ids = Place::ids(places);
        let firsts: Vec<i64> = leases.iter().map(|lease| lease.first).collect();
        let lasts: Vec<i64> = leases.iter().map(|lease| lease.last).collect();
        let rows = self.link.client.query(&self.fetch, &[&ids, &firsts, &lasts]).await.context("fetch")?;
        ensure!(
            rows.len() >= places.len(),
            "fetch found {} segments for {} ranges",
            rows.len(),
            places.len()
        );
        Ok(())
    }

    /// Completes everything that was leased.
    pub async fn ack(&mut self, places: &mut [Place], group: &str, leases: &[Lease]) -> Result<()> {
        let rows = places.len();
        let acks: Vec<Uuid> = places.iter().map(|_| self.random.uuid()).collect();
        let ids = Place::ids(places);
        let groups = vec![group; rows];
        let held: Vec<Uuid> = leases.iter().map(|lease| lease.id).collect();
        let expected: Vec<i64> = leases.iter().map(|lease| lease.first).collect();
        let to: Vec<i64> = leases.iter().map(|lease| lease.last).collect();
        let parameters: [&(dyn ToSql + Sync); 6] = [&acks, &ids, &groups, &held, &expected, &to];
        let row = self.link.client.query_one(&self.ack, &parameters).await.context("ack")?;
        let (positions, released): (Vec<i32>, Vec<bool>) =
            (list(&row, "positions")?, list(&row, "released")?);
        let all = positions.len() == rows && released.iter().all(|released| *released);
        ensure!(all, "ack completed {} of {rows} leases, and ended {released:?}", positions.len());
        for (place, cursor) in places.iter_mut().zip(to) {
            place.cursor = cursor;
        }
        Ok(())
    }

    /// Moves cursors back to the beginning, to read the same messages again.
    pub async fn rewind(&self, places: &mut [Place], group: &str) -> Result<()> {
        let updated =
            self.link.client.execute(&self.rewind, &[&Place::ids(places), &group]).await.context("rewind")?;
        ensure!(updated == places.len() as u64, "rewound {updated} of {} partitions", places.len());
        for place in places {
            place.cursor = 0;
        }
        Ok(())
    }

    /// Fails unless the log contains exactly what is known of these partitions, and `group`, if given, is at its known position without
    /// a lease.
    pub async fn check(&self, places: &[Place], group: Option<&str>) -> Result<()> {
        let ids = Place::ids(places);
        let stored = "select (select coalesce(sum(s.count), 0)::bigint from queen.segments s
                      where s.partition_id = any ($1)),
                 (select coalesce(sum(h.head), 0)::bigint from queen.heads h where h.partition_id = any ($1))";
        let row = self.link.client.query_one(stored, &[&ids]).await?;
        let (messages, heads): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        let expected: i64 = places.iter().map(|place| place.head).sum();
        ensure!(
            messages == expected && heads == expected,
            "{expected} messages were pushed, segments hold {messages} and heads count {heads}"
        );
        let Some(group) = group else { return Ok(()) };
        let read = "select coalesce(sum(c.cursor), 0)::bigint, count(c.lease_id) from queen.consumers c
                    where c.partition_id = any ($1) and c.consumer_group = $2";
        let row = self.link.client.query_one(read, &[&ids, &group]).await?;
        let (cursors, leases): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        let expected: i64 = places.iter().map(|place| place.cursor).sum();
        ensure!(cursors == expected, "{expected} messages were read, cursors count {cursors}");
        ensure!(leases == 0, "{leases} leases were left");
        Ok(())
    }
}
