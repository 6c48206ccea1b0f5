//! The end of a run: the network is healthy again, pending operations complete, the database is compared with the shadow, and every
//! group reads what is left.

use std::time::Duration;

use queen_engine::DeadLetterFilter;
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

use crate::plan::{Pop, Settlement};
use crate::shadow::{DeadLetter, Row, Violation};
use crate::words::{Group, LEASE_SECONDS_MAX, PARTITIONS, QUEUE, Via, now, partition_index, partition_name};
use crate::worker::Worker;
use crate::world::World;

const PATIENCE: Duration = Duration::from_secs(20);

pub async fn finale(world: &World, mut reader: Worker) {
    let sql = world.database.client().await;
    settled(world, &sql).await;
    for partition in 0..PARTITIONS {
        let rows = rows(&sql, &partition_name(partition)).await;
        world.check(|shadow| shadow.truth(now(), partition, &rows));
    }
    world.check(|shadow| shadow.transactions_are_whole());
    for group in [Group::Queue, Group::Billing, Group::Wander, Group::Auto] {
        drain(world, &mut reader, group).await;
        pending(world, &sql, group).await;
    }
    for group in Group::ALL {
        world.check(|shadow| shadow.all_was_delivered(group));
    }
    let letters = dead_letters(world).await;
    world.check(|shadow| shadow.dead_letters_match(&letters));
}

/// Waits until nothing is in flight and every lease has ended.
async fn settled(world: &World, sql: &Client) {
    let text = "select count(*) from pg_stat_activity
                where datname = current_database() and application_name = 'queen' and state <> 'idle'";
    let began = Instant::now();
    loop {
        let active: i64 = sql.query_one(text, &[]).await.expect("the database answers").get(0);
        let busy = [&world.healthy, &world.broken].map(|engine| engine.stats().connections_busy);
        if active == 0 && busy == [0, 0] {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "still {active} statements and {busy:?} connections at work");
        sleep(Duration::from_millis(20)).await;
    }
    sleep(Duration::from_millis(LEASE_SECONDS_MAX as u64 * 1000 + 50)).await;
}

async fn rows(sql: &Client, partition: &str) -> Vec<Row> {
    let text = "select m.id, m.message_offset, m.transaction_id, (m.payload::jsonb ->> 'serial')::bigint,
                       (extract(epoch from m.created_at) * 1000000)::bigint
                from queen.messages m where m.queue = $1 and m.partition = $2 order by m.message_offset";
    let rows = sql.query(text, &[&QUEUE, &partition]).await.expect("the log can be read");
    let row = |row: &tokio_postgres::Row| Row {
        id: row.get(0),
        offset: row.get(1),
        transaction: row.get(2),
        serial: row.get::<_, i64>(3) as u64,
        created_at: row.get(4),
    };
    rows.iter().map(row).collect()
}

/// Reads and acknowledges everything, through both engines in turn, until both return nothing.
async fn drain(world: &World, reader: &mut Worker, group: Group) {
    let engines: &[Via] = if group == Group::Auto { &[Via::Healthy] } else { &[Via::Healthy, Via::Broken] };
    let began = Instant::now();
    let mut empty = 0;
    for via in engines.iter().copied().cycle() {
        let partitions = PARTITIONS as u32;
        let lease_seconds = LEASE_SECONDS_MAX;
        let pop = Pop { via, group, partitions, batch: 100, lease_seconds, ..Pop::default() };
        match reader.pop(&pop).await {
            Some(true) => {
                empty = 0;
                for held in reader.hand.clone() {
                    reader.settle(via, &held, Settlement::Full, 100, None).await;
                }
            }
            Some(false) => {
                world.check(|shadow| shadow.nothing_is_left(group));
                empty += 1;
            }
            None => panic!("{via:?} does not recover"),
        }
        if empty == engines.len() {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{group:?} does not come to an end");
    }
}

/// Checks that the database also has nothing left to read.
async fn pending(world: &World, sql: &Client, group: Group) {
    let text = "select l.partition, l.pending from queen.lag l where l.consumer_group = $1 and l.pending > 0";
    let rows = sql.query(text, &[&group.name()]).await.expect("the database answers");
    for row in rows {
        let (partition, pending): (String, i64) = (row.get(0), row.get(1));
        let what = format!("pops find nothing, but {pending} messages are pending");
        let partition = partition_index(&partition).expect("a partition of ours");
        world.demand(false, || Violation { partition, group: Some(group), what });
    }
}

async fn dead_letters(world: &World) -> Vec<DeadLetter> {
    let filter = DeadLetterFilter { queue: Some(QUEUE.to_owned()), limit: 100_000, ..Default::default() };
    let (letters, total) = world.healthy.dead_letters(&filter).await.expect("dead letters can be read");
    assert_eq!(letters.len() as i64, total);
    let letter = |letter: &queen_engine::DeadLetter| {
        world.count(format!("dead letters of {}", letter.group));
        let reason = letter.error.as_deref().and_then(|error| error.strip_prefix("op "));
        DeadLetter {
            partition: partition_index(&letter.partition).expect("a partition of ours"),
            group: Group::ALL
                .into_iter()
                .find(|group| group.name() == letter.group)
                .expect("a group of ours"),
            id: letter.id,
            op: reason.and_then(|op| op.parse().ok()).expect("the reason of a nack of ours"),
            attempts: letter.attempts,
        }
    };
    letters.iter().map(letter).collect()
}
