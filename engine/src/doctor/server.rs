//! Judges the server: its settings, its sessions and replication. Pure.

use super::facts::{Facts, Holder, Slot};
use super::{Circumstances, Findings, size, span};
use crate::start::reads_size;

const VERSION_MIN: i32 = 150_000;
const GIB: i64 = 1 << 30;

/// Below PostgreSQL's own default, a busy queue is in a checkpoint all the time.
const WAL_BYTES_MIN: i64 = GIB;
/// What a queue wants, as the embedded PostgreSQL has it.
const WAL_BYTES_GOOD: i64 = 4 * GIB;
/// Fewer checkpoints than this say nothing about why they happen.
const CHECKPOINTS_MIN: i64 = 10;
const SHARED_BUFFERS_MIN: i64 = 64 << 20;
/// A transaction of an application is over by then; a report or a backup may take longer, and costs something.
const TRANSACTION_SECONDS_MAX: f64 = 300.0;
/// For holders without a known age. A broker under load makes a million transactions in some ten minutes.
const TRANSACTIONS_MAX: i64 = 1_000_000;
const OWN_LOCK_SECONDS_MAX: f64 = 5.0;
/// Of 2 billion: time to act before PostgreSQL does.
const WRAPAROUND_PROBLEM: i64 = 1_200_000_000;
/// Ids of spooled messages carry the broker's time; a second or two is ordinary.
const CLOCK_SECONDS_MAX: f64 = 5.0;

pub fn judge(facts: &Facts, here: &Circumstances, found: &mut Findings) {
    sessions(facts, found);
    settings(facts, found);
    for holder in &facts.holders {
        pinned(holder, found);
    }
    for slot in &facts.slots {
        replication(slot, facts.settings.max_wal_bytes, found);
    }
    connections(facts, here, found);
    age(facts, found);
    if here.clock_offset_seconds.abs() > CLOCK_SECONDS_MAX {
        let (offset, side) = match here.clock_offset_seconds {
            offset if offset > 0.0 => (offset, "ahead of"),
            offset => (-offset, "behind"),
        };
        found.warning(
            "clock_difference",
            format!(
                "the clock of this machine is {} {side} that of the database: leases go by that one, but ids of \
                 spooled messages and the log go by this one; let both follow a time server",
                span(offset)
            ),
        );
    }
    if here.pooled == Some(true) {
        found.problem(
            "transaction_pooler",
            "statements of one connection reach different sessions of PostgreSQL: there is a pooler in \
             transaction mode in between (PgBouncer's pool_mode=transaction, for example). Prepared \
             statements, session settings and notifications get lost there; connect Queen directly, or in \
             session mode",
        );
    }
    if !facts.sees_others {
        found.info(
            "limited_view",
            "the role of Queen may not see what other sessions do, so some causes stay unnamed; `grant \
             pg_read_all_stats` to it",
        );
    }
}

fn sessions(facts: &Facts, found: &mut Findings) {
    for blocker in &facts.blockers {
        let ours = blocker.name.as_deref() == Some("queen");
        // Flights wait for each other's rows all the time, for a moment.
        if ours && blocker.seconds <= 1.0 {
            continue;
        }
        let state = blocker.state.as_ref().map_or(String::new(), |state| format!(", {state}"));
        let since = blocker
            .transaction_seconds
            .map_or(String::new(), |s| format!(", in its transaction for {}", span(s)));
        found.problem("blocked", format!(
            "{} statement(s) of Queen wait, the longest for {}, for a lock of session {} ({}{state}{since}), \
             last statement: {}; let it finish, or end it with `select pg_terminate_backend({})`",
            blocker.waiting, span(blocker.seconds), blocker.pid, blocker.name.as_deref().unwrap_or("unnamed"),
            statement(blocker.query.as_deref()), blocker.pid));
    }
    for wait in facts.waits.iter().filter(|wait| wait.waiting >= 3 && wait.waiting * 2 > wait.active) {
        let why = match wait.event.starts_with("IO/") || wait.event == "LWLock/WALWrite" {
            true => "the disk is slow or busy with other work",
            false => "see the chapter about wait events in the handbook of PostgreSQL",
        };
        found.problem(
            "waits",
            format!(
                "{} of {} active statements of Queen wait for {}: {why}",
                wait.waiting, wait.active, wait.event
            ),
        );
    }
    for user in &facts.log_users {
        let seconds = user.seconds.unwrap_or(0.0);
        let who = format!(
            "session {} ({}), last statement: {}",
            user.pid,
            user.name,
            statement(user.query.as_deref())
        );
        // Brokers lock whole tables for a moment, to drop an extent or to migrate.
        let momentary = user.name == "queen" && seconds < OWN_LOCK_SECONDS_MAX;
        if user.exclusive && !momentary {
            found.problem(
                "table_locked",
                format!(
                    "a table of Queen is locked as a whole, for {}, by {who}; everything waits for it",
                    span(seconds)
                ),
            );
        } else if user.name != "queen" && !user.exclusive && seconds > TRANSACTION_SECONDS_MAX {
            found.warning("log_in_use", format!(
                "the log has been in use for {} by {who}; meanwhile no expired extent can be dropped and no \
                 disk space comes back", span(seconds)));
        }
    }
}

fn settings(facts: &Facts, found: &mut Findings) {
    let settings = &facts.settings;
    if facts.version < VERSION_MIN {
        found.problem(
            "server_version",
            format!("PostgreSQL {} is too old: Queen needs 15 or newer", facts.version_text),
        );
    }
    if facts.read_only {
        found.problem(
            "read_only",
            "this server takes no writes: it is a standby, or default_transaction_read_only is on; name the \
             primary in DATABASE_URL",
        );
    }
    if !settings.fsync {
        found.problem(
            "fsync_off",
            "fsync is off: a crash of the machine may destroy the whole database, messages that were \
             acknowledged included; switch it on and restart PostgreSQL",
        );
    }
    if !settings.full_page_writes {
        found.problem(
            "full_page_writes_off",
            "full_page_writes is off: a crash of the machine in the middle of a write may leave damaged \
             pages; switch it on, unless the file system cannot tear pages",
        );
    }
    if settings.synchronous_commit == "off" {
        found.warning(
            "synchronous_commit_off",
            "synchronous_commit is off: messages that were acknowledged in the last moments before a crash \
             are lost; switch it on unless you can bear that",
        );
    }
    if !settings.autovacuum {
        found.problem(
            "autovacuum_off",
            "autovacuum is off (or track_counts, which it needs): tables of Queen grow with every message \
             and nothing is reused; switch it on",
        );
    }
    let points = &facts.checkpoints;
    if settings.max_wal_bytes < WAL_BYTES_MIN {
        found.warning("max_wal_size", format!(
            "max_wal_size is only {}: PostgreSQL writes whole pages again and again after every checkpoint; \
             set it to 4GB",
            size(settings.max_wal_bytes)));
    } else if settings.max_wal_bytes < WAL_BYTES_GOOD
        && points.requested > CHECKPOINTS_MIN
        && points.requested > points.timed
    {
        found.warning("max_wal_size", format!(
            "{} of {} checkpoints came early because max_wal_size ({}) was used up, and each makes writes \
             dearer for a while; set it to 4GB",
            points.requested, points.requested + points.timed, size(settings.max_wal_bytes)));
    }
    if settings.shared_buffers_bytes < SHARED_BUFFERS_MIN {
        found.warning(
            "shared_buffers",
            format!(
                "shared_buffers is only {}; give PostgreSQL a quarter of the memory, up to a gigabyte or two",
                size(settings.shared_buffers_bytes)
            ),
        );
    }
}

/// Only Queen's own are told: findings are read by people who may not read what other programs send.
fn statement(query: Option<&str>) -> &str {
    query.unwrap_or("not shown, see pg_stat_activity")
}

/// Who keeps old row versions alive.
fn pinned(holder: &Holder, found: &mut Findings) {
    let old = match holder.seconds {
        Some(seconds) => seconds > TRANSACTION_SECONDS_MAX,
        None => holder.transactions.unwrap_or(0) > TRANSACTIONS_MAX,
    };
    if !old {
        return;
    }
    let age = holder.seconds.map_or(format!("{} transactions", holder.transactions.unwrap_or(0)), span);
    let cost = "meanwhile no old row version can be removed and tables grow";
    match (holder.kind.as_str(), holder.pid.unwrap_or(0)) {
        ("prepared", _) => found.problem("prepared_transaction", format!(
            "the prepared transaction {:?} of {} has been open for {age}: {cost}, also through restarts; end \
             it with `commit prepared` or `rollback prepared`",
            holder.name, holder.owner.as_deref().unwrap_or("somebody"))),
        ("standby", _) => found.warning("standby_feedback", format!(
            "the standby {:?} keeps row versions of {age} ago for its readers (hot_standby_feedback): \
             {cost}; end the long query there",
            holder.name)),
        (_, pid) if holder.state.as_deref().is_some_and(|state| state.starts_with("idle in transaction")) => {
            found.problem("idle_in_transaction", format!(
                "session {pid} ({}) has been in a transaction for {age} and does nothing in it: {cost}; mend \
                 the program, end the session with `select pg_terminate_backend({pid})`, and set \
                 idle_in_transaction_session_timeout. Its last statement: {}",
                holder.name, statement(holder.query.as_deref())));
        }
        (_, pid) => found.problem("long_transaction", format!(
            "session {pid} ({}) has been in its transaction for {age}: {cost}; let it finish, or end it with \
             `select pg_terminate_backend({pid})`. Its statement: {}",
            holder.name, statement(holder.query.as_deref()))),
    }
}

fn replication(slot: &Slot, max_wal_bytes: i64, found: &mut Findings) {
    let (name, held) = (&slot.name, size(slot.wal_bytes));
    let much = slot.wal_bytes > max_wal_bytes.max(GIB);
    if slot.lost {
        found.warning("slot_lost", format!(
            "replication slot {name:?} has lost the WAL it needs: whoever reads from it has to start over; \
             drop it with `select pg_drop_replication_slot('{name}')`"));
    } else if !slot.active && (much || slot.transactions.is_some()) {
        found.problem("slot_inactive", format!(
            "nobody reads from replication slot {name:?}, and it keeps {held} of WAL{}: the disk fills up; \
             bring its reader back, or drop it with `select pg_drop_replication_slot('{name}')`",
            slot.transactions.map_or(String::new(), |age| format!(" and row versions of {age} \
             transactions"))));
    } else if !slot.active {
        found.warning(
            "slot_inactive",
            format!(
                "nobody reads from replication slot {name:?}; it keeps {held} of WAL, and more with every \
                 message; bring its reader back, or drop it with `select pg_drop_replication_slot('{name}')`"
            ),
        );
    } else if much {
        found.warning(
            "slot_behind",
            format!(
                "the reader of replication slot {name:?} is {held} of WAL behind, which stays on disk for it"
            ),
        );
    } else if slot.transactions.is_some_and(|age| age > TRANSACTIONS_MAX) {
        found.warning(
            "standby_feedback",
            format!(
                "replication slot {name:?} keeps row versions of {} transactions for its standby \
                 (hot_standby_feedback); end the long query there",
                slot.transactions.unwrap_or(0)
            ),
        );
    }
}

fn connections(facts: &Facts, here: &Circumstances, found: &mut Findings) {
    let (settings, sessions) = (&facts.settings, &facts.sessions);
    let allowed = settings.max_connections - settings.reserved_connections;
    if sessions.clients * 10 > allowed * 9 {
        found.problem("connections_used", format!(
            "{} of {allowed} connections of the server are in use; soon it refuses new ones. Close some, or \
             raise max_connections", sessions.clients));
        return;
    }
    // And those for lists, and one to listen.
    let each = (here.pool + reads_size(here.pool) + 1) as i64;
    let wanted = sessions.brokers * each;
    let others = sessions.clients - sessions.queen;
    if wanted + others > allowed {
        found.warning("connections_wanted", format!(
            "{} broker(s) may open {each} connections each ({} for messages, {} for lists, 1 to listen), {others} are \
             used by others, and the server allows {allowed}: under load some will be refused; lower SIDECAR_POOL_SIZE \
             or raise max_connections", sessions.brokers, here.pool, reads_size(here.pool)));
    }
}

fn age(facts: &Facts, found: &mut Findings) {
    let age = facts.wraparound.transactions.max(facts.wraparound.multixacts);
    if age > WRAPAROUND_PROBLEM {
        found.problem(
            "wraparound",
            format!(
                "the oldest row of this database is {age} transactions old; at 2 billion PostgreSQL stops. \
                 Vacuum cannot keep up or is held back: run `vacuum freeze` and see the findings about \
                 transactions and slots"
            ),
        );
    } else if age > 2 * facts.settings.freeze_max_age {
        found.warning("wraparound", format!(
            "the oldest row of this database is {age} transactions old, twice what autovacuum_freeze_max_age \
             allows ({}): vacuum cannot keep up or is held back",
            facts.settings.freeze_max_age));
    }
}
