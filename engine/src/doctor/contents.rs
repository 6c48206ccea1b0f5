//! Judges what Queen keeps in the database: tables, indexes, extents, deferred operations, leases. Pure.

use super::facts::{Contents, Facts, Leases, Table};
use super::{Circumstances, Findings, size, span};

/// Rows that are updated with every flight.
const HOT_TABLES: [&str; 2] = ["heads", "consumers"];
/// By the design of generations 15 of 16 updates are HOT.
const HOT_SHARE_MIN: f64 = 0.75;
/// Fewer say nothing.
const UPDATES_MIN: i64 = 10_000;
/// Autovacuum is told to come at 5 percent, so this many are a sign that it does not, or cannot.
const DEAD_MIN: i64 = 50_000;
const DEAD_PER_LIVE: i64 = 2;
const BLOAT_BYTES_MIN: i64 = 256 << 20;
/// A row takes some 150 bytes, in a table that is half empty by intention, and as much in the index.
const BLOAT_BYTES_PER_ROW: i64 = 4096;
/// The log is cut into about 32.
const EXTENTS_MAX: i64 = 100;
const DEFERRED_SECONDS_MAX: f64 = 10.0;
const INBOX_SECONDS_MAX: f64 = 10.0;
/// Longer than any handler should need; a lease may be renewed for ever.
const LEASE_SECONDS_MAX: f64 = 3600.0;

/// Without one of these an operation reads whole tables.
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
            "index queen.{index} is not valid and may not be used: a build of it failed or is still going \
             on; `reindex index queen.{index}`"));
    }
    for index in INDEXES.iter().filter(|index| !facts.indexes.iter().any(|there| there == *index)) {
        found.problem("index_missing", format!(
            "index queen.{index} is missing: operations read whole tables without it. Create it anew as the \
             schema files in engine/sql/schema have it"));
    }
    if let Some(first) = here.unreadable.first() {
        let others = match here.unreadable.len() - 1 {
            0 => String::new(),
            others => format!(", and {others} other partition(s) wait like this"),
        };
        found.problem("message_unreadable", format!(
            "{first}{others}. Nothing is lost: give this broker the key in QUEEN_ENCRYPTION_OLD_KEYS, or delete or \
             dead-letter the message to let the partition go on"));
    }
    match &facts.contents {
        Some(contents) => judge_contents(contents, here, found),
        None => found.warning(
            "tables_unread",
            "tables of Queen could not be read within a second, because somebody holds a lock on one as a \
             whole; see the other findings",
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
            "autovacuum is switched off for queen.{name}: nothing in it is reused; `alter table queen.{name} \
             reset (autovacuum_enabled)`"));
    }
    let hot = HOT_TABLES.contains(&name.as_str());
    if hot
        && table.updates >= UPDATES_MIN
        && (table.hot_updates as f64) < table.updates as f64 * HOT_SHARE_MIN
    {
        let percent = table.hot_updates * 100 / table.updates;
        found.warning("hot_updates", format!(
            "only {percent} percent of the {} updates of queen.{name} were HOT (93 are normal): each of the \
             others writes to the indexes, too. Look for indexes somebody has added, and for transactions \
             that keep old row versions",
            table.updates));
    }
    if table.dead >= DEAD_MIN && table.dead > table.live * DEAD_PER_LIVE {
        found.warning(
            "dead_tuples",
            format!(
                "queen.{name} holds {} dead row versions beside {} live ones: vacuum cannot keep up, or \
                 something keeps it from removing them; see the other findings, then `vacuum queen.{name}`",
                table.dead, table.live
            ),
        );
    }
    if hot && table.bytes > BLOAT_BYTES_MIN && table.bytes / table.live.max(1) > BLOAT_BYTES_PER_ROW {
        found.warning("bloat", format!(
            "queen.{name} takes {} for {} rows. Space is reused but not given back; if it matters, `vacuum \
             full queen.{name}` stops everything for some seconds",
            size(table.bytes), table.live));
    }
}

fn judge_contents(contents: &Contents, here: &Circumstances, found: &mut Findings) {
    if contents.schema != here.schema {
        found.warning(
            "schema_version",
            format!(
                "the schema in this database has version {}, this program knows {}: brokers of different \
                 versions are in use; bring them to one",
                contents.schema, here.schema
            ),
        );
    }
    let deferred = &contents.deferred;
    if deferred.open > 0 {
        let oldest = deferred.oldest_seconds.unwrap_or(0.0);
        let text = format!("{} deferred operation(s) wait, the oldest for {}", deferred.open, span(oldest));
        match oldest > DEFERRED_SECONDS_MAX {
            true => found.problem(
                "deferred_waiting",
                format!("{text}: the database does not keep up; see the other findings"),
            ),
            false => found.info("deferred_waiting", text),
        }
    }
    if deferred.failed > 0 {
        found.problem(
            "deferred_failed",
            format!(
                "{} deferred operation(s) have failed, the last because: {}; decide about them with \
                 `/api/v1/operations?status=failed`",
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
                "{} message(s) pushed with SQL wait in queen.inbox, the oldest for {}: no broker moves them into \
                 the log; is one running, is maintenance off, and is there the key that their queues require?",
                inbox.waiting,
                span(oldest)
            ),
        );
    }
    if inbox.refused > 0 {
        found.problem(
            "inbox_refused",
            format!(
                "{} message(s) in queen.inbox were refused by the log, the last because: {}; correct or delete them",
                inbox.refused,
                inbox.error.as_deref().unwrap_or("unknown")
            ),
        );
    }
    if let (false, Some(queue)) = (here.can_seal, contents.encrypted_queues.first()) {
        found.warning("encryption_without_key", format!(
            "{} queue(s) ask for encryption, {queue:?} among them, but there is no key: what is pushed there is stored as \
             it is, or refused with QUEEN_ENCRYPTION_REQUIRED; set QUEEN_ENCRYPTION_KEY", contents.encrypted_queues.len()));
    }
    if contents.maintenance {
        found.info("maintenance", "maintenance mode is on: pushes wait in the spools of the brokers");
    }
    if contents.pop_maintenance {
        found.info("pop_maintenance", "pop maintenance mode is on: pops find nothing");
    }
    let extents = &contents.extents;
    if extents.count != extents.tables {
        found.problem("extents_differ", format!(
            "the log has {} tables, but queen.extents lists {}: somebody has changed one by hand; bring both \
             to the same state",
            extents.tables, extents.count));
    } else if extents.count > EXTENTS_MAX {
        found.warning("extents_many", format!(
            "the log is in {} extents, the oldest {} old, and every read looks into each: dropping them does \
             not keep up. Look for sessions that use the log for long, and for a queue that keeps everything \
             beside one that does not",
            extents.count, span(extents.oldest_seconds.unwrap_or(0.0))));
    }
}

fn judge_leases(leases: &Leases, found: &mut Findings) {
    if leases.orphaned > 0 {
        found.problem("lease_orphaned", format!(
            "{} lease(s) are held for deferred acknowledgements that do not exist, and would be for weeks: \
             nobody gets these messages; seek the group, or delete it from the queue", leases.orphaned));
    }
    let oldest = leases.oldest_seconds.unwrap_or(0.0);
    if let (true, Some(at)) = (oldest > LEASE_SECONDS_MAX, &leases.oldest) {
        found.warning("lease_stuck", format!(
            "queue {:?}, partition {:?}: group {:?} got messages {} ago and still holds them. Its handler is \
             stuck and renews its lease, or its lease time is very long; the partition waits for \
             it", at.queue, at.partition, at.group, span(oldest)));
    }
}
