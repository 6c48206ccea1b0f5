//! Checks what Queen keeps in the database: tables, indexes, extents, deferred operations, leases. Pure.

use super::facts::{Contents, Facts, Leases, Table};
use super::{Circumstances, Findings, size, span};

/// Tables whose rows are updated by every flight.
const HOT_TABLES: [&str; 2] = ["heads", "consumers"];
/// By the design of generations 63 of 64 updates are HOT.
const HOT_SHARE_MIN: f64 = 0.75;
/// With fewer updates, the share means nothing.
const UPDATES_MIN: i64 = 10_000;
/// Autovacuum is set to run at 5 percent, so this many dead rows mean that it does not run or cannot remove them.
const DEAD_MIN: i64 = 50_000;
const DEAD_PER_LIVE: i64 = 2;
const BLOAT_BYTES_MIN: i64 = 256 << 20;
/// A row takes about 150 bytes, as much again in the index, and the table is half empty by design.
const BLOAT_BYTES_PER_ROW: i64 = 4096;
/// Normally the log has about 32.
const EXTENTS_MAX: i64 = 100;
const DEFERRED_SECONDS_MAX: f64 = 10.0;
const INBOX_SECONDS_MAX: f64 = 10.0;
/// Longer than any handler should need. A lease can be renewed without limit.
const LEASE_SECONDS_MAX: f64 = 3600.0;

/// Indexes without which an operation reads whole tables.
pub const INDEXES: [&str; 14] = [
    "queues_pkey",
    "queues_name_key",
    "partitions_pkey",
    "partitions_number_key",
    "partitions_queue_id_name_key",
    "heads_pkey",
    "consumers_pkey",
    "groups_pkey",
    "dead_letters_pkey",
    "dead_letters_newest",
    "segments_range",
    "segments_xid",
    "deferred_pkey",
    "deferred_open",
];

pub fn judge(facts: &Facts, here: &Circumstances, found: &mut Findings) {
    for table in &facts.tables {
        judge_table(table, found);
    }
    for index in &facts.invalid_indexes {
        found.problem("index_invalid", format!(
            "index queen.{index} is invalid and not used: building it failed or is still in progress; if it \
             failed, run `reindex index queen.{index}`"));
    }
    for index in INDEXES.iter().filter(|index| !facts.indexes.iter().any(|there| there == *index)) {
        found.problem("index_missing", format!(
            "index queen.{index} is missing: operations read whole tables without it; recreate it as defined \
             in engine/sql/schema"));
    }
    if let Some(first) = here.unreadable.first() {
        let others = match here.unreadable.len() - 1 {
            0 => String::new(),
            others => format!("; {others} other partition(s) are blocked the same way"),
        };
        found.problem("message_unreadable", format!(
            "{first}{others}. The message is still stored: add its key to QUEEN_ENCRYPTION_OLD_KEYS of this broker, or \
             delete or dead-letter it to unblock the partition"));
    }
    match &facts.contents {
        Some(contents) => judge_contents(contents, here, found),
        None => found.warning(
            "tables_unread",
            "Queen's tables could not be read within a second because another session holds a table lock; see \
             the other findings",
        ),
    }
    if let Some(leases) = &facts.leases {
        judge_leases(leases, found);
    }
}

fn judge_table(table: &Table, found: &mut Findings) {
    let name = &table.name;
    if table.autovacuum_off {
        found.problem("autovacuum_off_table", format!(
            "autovacuum is disabled for queen.{name}: its dead rows are never reclaimed; run `alter table \
             queen.{name} reset (autovacuum_enabled)`"));
    }
    let hot = HOT_TABLES.contains(&name.as_str());
    if hot
        && table.updates >= UPDATES_MIN
        && (table.hot_updates as f64) < table.updates as f64 * HOT_SHARE_MIN
    {
        let percent = table.hot_updates * 100 / table.updates;
        found.warning("hot_updates", format!(
            "only {percent} percent of the {} updates of queen.{name} were HOT (98 percent is normal); every \
             other update also writes to the indexes. Look for added indexes and for long transactions that \
             keep old row versions",
            table.updates));
    }
    if table.dead >= DEAD_MIN && table.dead > table.live * DEAD_PER_LIVE {
        found.warning(
            "dead_tuples",
            format!(
                "queen.{name} has {} dead row versions and {} live ones: vacuum cannot keep up or is blocked; \
                 resolve the other findings, then run `vacuum queen.{name}`",
                table.dead, table.live
            ),
        );
    }
    if hot && table.bytes > BLOAT_BYTES_MIN && table.bytes / table.live.max(1) > BLOAT_BYTES_PER_ROW {
        found.warning("bloat", format!(
            "queen.{name} takes {} for {} rows. The space is reused but not returned to the system; `vacuum \
             full queen.{name}` returns it, and blocks all traffic for some seconds",
            size(table.bytes), table.live));
    }
}

fn judge_contents(contents: &Contents, here: &Circumstances, found: &mut Findings) {
    if contents.schema != here.schema {
        found.warning(
            "schema_version",
            format!(
                "the database has schema version {}, this program has version {}: brokers of different \
                 releases are running; upgrade all of them to the same release",
                contents.schema, here.schema
            ),
        );
    }
    let deferred = &contents.deferred;
    if deferred.open > 0 {
        let oldest = deferred.oldest_seconds.unwrap_or(0.0);
        let text =
            format!("{} deferred operation(s) pending, the oldest for {}", deferred.open, span(oldest));
        match oldest > DEFERRED_SECONDS_MAX {
            true => found.problem(
                "deferred_waiting",
                format!("{text}: the database cannot keep up; see the other findings"),
            ),
            false => found.info("deferred_waiting", text),
        }
    }
    if deferred.failed > 0 {
        found.problem(
            "deferred_failed",
            format!(
                "{} deferred operation(s) failed, most recently with: {}; list them with `queen ops list --status \
                 failed`, then retry or cancel each",
                deferred.failed,
                deferred.error.as_deref().unwrap_or("unknown")
            ),
        );
    }
    let inbox = &contents.inbox;
    if let Some(oldest) = inbox.oldest_seconds.filter(|oldest| *oldest > INBOX_SECONDS_MAX) {
        found.warning(
            "inbox_waiting",
            format!(
                "{} message(s) pushed from SQL are waiting in queen.inbox, the oldest for {}: no broker is moving them \
                 into the log. Check that a broker is running, that maintenance mode is off, and that the \
                 encryption key their queues require is set",
                inbox.waiting,
                span(oldest)
            ),
        );
    }
    if inbox.refused > 0 {
        found.problem(
            "inbox_refused",
            format!(
                "{} message(s) in queen.inbox could not be stored, most recently because: {}; correct or delete them",
                inbox.refused,
                inbox.error.as_deref().unwrap_or("unknown")
            ),
        );
    }
    if let (false, Some(queue)) = (here.can_seal, contents.encrypted_queues.first()) {
        found.warning("encryption_without_key", format!(
            "{} queue(s) require encryption, for example {queue:?}, but no key is set: their messages are stored \
             unencrypted, or refused with QUEEN_ENCRYPTION_REQUIRED; set QUEEN_ENCRYPTION_KEY", contents.encrypted_queues.len()));
    }
    if contents.maintenance {
        found.info("maintenance", "maintenance mode is on: brokers spool pushes to disk");
    }
    if contents.pop_maintenance {
        found.info("pop_maintenance", "pop maintenance mode is on: pops return no messages");
    }
    let extents = &contents.extents;
    if extents.count != extents.tables {
        found.problem("extents_differ", format!(
            "the log has {} tables, but queen.extents lists {}: one of them was changed by hand; make them match",
            extents.tables, extents.count));
    } else if extents.count > EXTENTS_MAX {
        found.warning("extents_many", format!(
            "the log has {} extents, the oldest {} old, and every read searches all of them: extents are created \
             faster than they are dropped. Look for sessions that use the log for a long time, and for a queue \
             without retention beside busy queues that have it",
            extents.count, span(extents.oldest_seconds.unwrap_or(0.0))));
    }
}

fn judge_leases(leases: &Leases, found: &mut Findings) {
    if leases.orphaned > 0 {
        found.problem("lease_orphaned", format!(
            "{} lease(s) are held for deferred acknowledgements that no longer exist: their messages would not be \
             delivered for weeks; seek the group, or delete it from the queue", leases.orphaned));
    }
    let oldest = leases.oldest_seconds.unwrap_or(0.0);
    if let (true, Some(at)) = (oldest > LEASE_SECONDS_MAX, &leases.oldest) {
        found.warning("lease_stuck", format!(
            "queue {:?}, partition {:?}: group {:?} leased messages {} ago and still holds them, which blocks the \
             partition; its handler is stuck while its lease is renewed, or the lease time is very \
             long", at.queue, at.partition, at.group, span(oldest)));
    }
}
