//! Checks the server: its settings, its sessions and replication. Pure.

use super::facts::{Facts, Holder, Slot};
use super::{Circumstances, Findings, size, span};
use crate::start::reads_size;

const VERSION_MIN: i32 = 150_000;
const GIB: i64 = 1 << 30;

/// PostgreSQL's default. With less, a busy queue causes checkpoints all the time.
const WAL_BYTES_MIN: i64 = GIB;
/// A good value for a queue; the embedded PostgreSQL uses it.
const WAL_BYTES_GOOD: i64 = 4 * GIB;
/// With fewer checkpoints, their causes mean nothing.
const CHECKPOINTS_MIN: i64 = 10;
const SHARED_BUFFERS_MIN: i64 = 64 << 20;
/// An application's transaction should not take longer. Reports and backups may, at a cost.
const TRANSACTION_SECONDS_MAX: f64 = 300.0;
/// For holders whose age is unknown. A broker under load makes a million transactions in about ten minutes.
const TRANSACTIONS_MAX: i64 = 1_000_000;
const OWN_LOCK_SECONDS_MAX: f64 = 5.0;
/// PostgreSQL stops at 2 billion; this leaves time to act.
const WRAPAROUND_PROBLEM: i64 = 1_200_000_000;
/// Ids of spooled messages contain the broker's time; a second or two is normal.
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
                "the clock of this machine is {} {side} the database's: leases use the database's clock, ids of \
                 spooled messages and log lines use this one; synchronize both with a time server",
                span(offset)
            ),
        );
    }
    if here.pooled == Some(true) {
        found.problem(
            "transaction_pooler",
            "statements of one connection reach different PostgreSQL sessions: a pooler in transaction mode is in \
             between (for example PgBouncer with pool_mode=transaction). Prepared statements, session settings \
             and notifications do not work through it; connect Queen directly, or in session mode",
        );
    }
    if !facts.sees_others {
        found.info(
            "limited_view",
            "Queen's role cannot see the activity of other sessions, so some causes cannot be named; grant it \
             pg_read_all_stats",
        );
    }
}

fn sessions(facts: &Facts, found: &mut Findings) {
    for blocker in &facts.blockers {
        let ours = blocker.name.as_deref() == Some("queen");
        // Flights often wait for each other's rows, briefly.
        if ours && blocker.seconds <= 1.0 {
            continue;
        }
        let state = blocker.state.as_ref().map_or(String::new(), |state| format!(", {state}"));
        let since = blocker
            .transaction_seconds
            .map_or(String::new(), |s| format!(", in a transaction for {}", span(s)));
        found.problem("blocked", format!(
            "{} of Queen's statements, the longest for {}, are waiting for a lock held by session {} \
             ({}{state}{since}), last statement: {}; let it finish, or end it with `select pg_terminate_backend({})`",
            blocker.waiting, span(blocker.seconds), blocker.pid, blocker.name.as_deref().unwrap_or("unnamed"),
            statement(blocker.query.as_deref()), blocker.pid));
    }
    for wait in facts.waits.iter().filter(|wait| wait.waiting >= 3 && wait.waiting * 2 > wait.active) {
        let why = match wait.event.starts_with("IO/") || wait.event == "LWLock/WALWrite" {
            true => "the disk is slow or busy with other work",
            false => "see wait events in the PostgreSQL manual",
        };
        found.problem(
            "waits",
            format!(
                "{} of Queen's {} active statements are waiting for {}: {why}",
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
        // Brokers lock tables briefly, to drop an extent or to migrate.
        let momentary = user.name == "queen" && seconds < OWN_LOCK_SECONDS_MAX;
        if user.exclusive && !momentary {
            found.problem(
                "table_locked",
                format!(
                    "one of Queen's tables has been locked for {} by {who}; all traffic waits for it",
                    span(seconds)
                ),
            );
        } else if user.name != "queen" && !user.exclusive && seconds > TRANSACTION_SECONDS_MAX {
            found.warning("log_in_use", format!(
                "the log has been in use for {} by {who}; until it ends, no expired extent can be dropped and no \
                 disk space is freed", span(seconds)));
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
            "this server is read-only: it is a standby, or default_transaction_read_only is on; set DATABASE_URL \
             to the primary",
        );
    }
    if !settings.fsync {
        found.problem(
            "fsync_off",
            "fsync is off: a crash of the machine may corrupt the whole database and lose messages that were \
             stored; set it to on and restart PostgreSQL",
        );
    }
    if !settings.full_page_writes {
        found.problem(
            "full_page_writes_off",
            "full_page_writes is off: a crash of the machine during a write may leave damaged pages; set it to on, \
             unless the file system writes pages atomically",
        );
    }
    if settings.synchronous_commit == "off" {
        found.warning(
            "synchronous_commit_off",
            "synchronous_commit is off: a crash loses what was committed just before it; set it to on unless you \
             accept that",
        );
    }
    if !settings.autovacuum {
        found.problem(
            "autovacuum_off",
            "autovacuum is off (or track_counts, which it needs): Queen's tables grow with every message and no \
             space is reused; set it to on",
        );
    }
    let points = &facts.checkpoints;
    if settings.max_wal_bytes < WAL_BYTES_MIN {
        found.warning("max_wal_size", format!(
            "max_wal_size is only {}, which causes frequent checkpoints, and each makes writes more expensive for a \
             while; set it to 4GB",
            size(settings.max_wal_bytes)));
    } else if settings.max_wal_bytes < WAL_BYTES_GOOD
        && points.requested > CHECKPOINTS_MIN
        && points.requested > points.timed
    {
        found.warning("max_wal_size", format!(
            "{} of {} checkpoints came early because max_wal_size ({}) was reached, and each makes writes more \
             expensive for a while; set it to 4GB",
            points.requested, points.requested + points.timed, size(settings.max_wal_bytes)));
    }
    if settings.shared_buffers_bytes < SHARED_BUFFERS_MIN {
        found.warning(
            "shared_buffers",
            format!(
                "shared_buffers is only {}; set it to a quarter of the memory, at most one or two gigabytes",
                size(settings.shared_buffers_bytes)
            ),
        );
    }
}

/// The text of a statement, known for Queen's own only: readers of findings may not be allowed to see others.
fn statement(query: Option<&str>) -> &str {
    query.unwrap_or("not shown, see pg_stat_activity")
}

/// Reports sessions, standbys and prepared transactions that keep old row versions alive.
fn pinned(holder: &Holder, found: &mut Findings) {
    let old = match holder.seconds {
        Some(seconds) => seconds > TRANSACTION_SECONDS_MAX,
        None => holder.transactions.unwrap_or(0) > TRANSACTIONS_MAX,
    };
    if !old {
        return;
    }
    let age = holder.seconds.map_or(format!("{} transactions", holder.transactions.unwrap_or(0)), span);
    let cost = "until it ends, old row versions cannot be removed and tables grow";
    match (holder.kind.as_str(), holder.pid.unwrap_or(0)) {
        ("prepared", _) => found.problem("prepared_transaction", format!(
            "prepared transaction {:?} of {} has been open for {age}: {cost}, even across restarts; end it with \
             `commit prepared` or `rollback prepared`",
            holder.name, holder.owner.as_deref().unwrap_or("an unknown role"))),
        ("standby", _) => found.warning("standby_feedback", format!(
            "standby {:?} keeps row versions from {age} ago for a query (hot_standby_feedback): {cost}; end the \
             long query there",
            holder.name)),
        (_, pid) if holder.state.as_deref().is_some_and(|state| state.starts_with("idle in transaction")) => {
            found.problem("idle_in_transaction", format!(
                "session {pid} ({}) has been idle in a transaction for {age}: {cost}; fix the program, end the \
                 session with `select pg_terminate_backend({pid})`, and set \
                 idle_in_transaction_session_timeout. Its last statement: {}",
                holder.name, statement(holder.query.as_deref())));
        }
        (_, pid) => found.problem("long_transaction", format!(
            "session {pid} ({}) has been in a transaction for {age}: {cost}; let it finish, or end it with \
             `select pg_terminate_backend({pid})`. Its statement: {}",
            holder.name, statement(holder.query.as_deref()))),
    }
}

fn replication(slot: &Slot, max_wal_bytes: i64, found: &mut Findings) {
    let (name, held) = (&slot.name, size(slot.wal_bytes));
    let much = slot.wal_bytes > max_wal_bytes.max(GIB);
    if slot.lost {
        found.warning("slot_lost", format!(
            "replication slot {name:?} has lost WAL that it needs: its consumer has to start over; drop the slot \
             with `select pg_drop_replication_slot('{name}')`"));
    } else if !slot.active && (much || slot.transactions.is_some()) {
        found.problem("slot_inactive", format!(
            "replication slot {name:?} is inactive and keeps {held} of WAL{}: the disk is filling up; reconnect its \
             consumer, or drop the slot with `select pg_drop_replication_slot('{name}')`",
            slot.transactions.map_or(String::new(), |age| format!(" and row versions of {age} \
             transactions"))));
    } else if !slot.active {
        found.warning(
            "slot_inactive",
            format!(
                "replication slot {name:?} is inactive and keeps {held} of WAL, growing with every message; \
                 reconnect its consumer, or drop the slot with `select pg_drop_replication_slot('{name}')`"
            ),
        );
    } else if much {
        found.warning(
            "slot_behind",
            format!(
                "the consumer of replication slot {name:?} is {held} behind; that much WAL is kept on disk for it"
            ),
        );
    } else if slot.transactions.is_some_and(|age| age > TRANSACTIONS_MAX) {
        found.warning(
            "standby_feedback",
            format!(
                "replication slot {name:?} keeps the row versions of {} transactions for its standby \
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
            "{} of {allowed} connections of the server are in use; soon it will refuse new ones; close some, or \
             raise max_connections", sessions.clients));
        return;
    }
    // The pool, the connections for lists, and one to listen.
    let each = (here.pool + reads_size(here.pool) + 1) as i64;
    let wanted = sessions.brokers * each;
    let others = sessions.clients - sessions.queen;
    if wanted + others > allowed {
        found.warning("connections_wanted", format!(
            "{} broker(s) may open {each} connections each ({} for messages, {} for lists, 1 to listen), other programs \
             use {others}, and the server allows {allowed}: under load some will be refused; lower SIDECAR_POOL_SIZE or \
             raise max_connections", sessions.brokers, here.pool, reads_size(here.pool)));
    }
}

fn age(facts: &Facts, found: &mut Findings) {
    let age = facts.wraparound.transactions.max(facts.wraparound.multixacts);
    if age > WRAPAROUND_PROBLEM {
        found.problem(
            "wraparound",
            format!(
                "the oldest row of this database is {age} transactions old, and PostgreSQL stops at 2 billion: \
                 vacuum cannot keep up or is blocked; resolve the findings about transactions and slots, then run \
                 `vacuum freeze`"
            ),
        );
    } else if age > 2 * facts.settings.freeze_max_age {
        found.warning(
            "wraparound",
            format!(
                "the oldest row of this database is {age} transactions old, more than twice \
             autovacuum_freeze_max_age ({}): vacuum cannot keep up or is blocked",
                facts.settings.freeze_max_age
            ),
        );
    }
}
