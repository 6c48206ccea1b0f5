//! The doctor's checks: each fires on its own fact, and all are silent on a healthy database.

use serde_json::{Value, json};

use super::*;

fn healthy() -> Value {
    let indexes = contents::INDEXES.to_vec();
    json!({
        "now": 1.0, "version": 150_004, "version_text": "15.4", "read_only": false, "sees_others": true,
        "settings": {
            "fsync": true, "full_page_writes": true, "synchronous_commit": "on", "autovacuum": true,
            "max_wal_bytes": 1_i64 << 30, "shared_buffers_bytes": 128 << 20, "max_connections": 100,
            "reserved_connections": 3, "freeze_max_age": 200_000_000,
        },
        "checkpoints": {"timed": 100, "requested": 20},
        "wraparound": {"transactions": 1_000_000, "multixacts": 1},
        "sessions": {"clients": 30, "queen": 26, "brokers": 1},
        "holders": [{"kind": "session", "name": "queen", "pid": 7, "owner": "queen", "state": "active", "seconds": 0.01,
                     "transactions": 3, "query": "select 1"}],
        "slots": [{"name": "standby", "active": true, "wal_bytes": 1_000_000, "lost": false, "transactions": 50}],
        "tables": [{"name": "heads", "live": 1_000, "dead": 400, "updates": 1_000_000, "hot_updates": 984_000,
                    "bytes": 1 << 20, "autovacuum_off": false}],
        "indexes": indexes, "invalid_indexes": [], "blockers": [], "waits": [], "log_users": [],
        "contents": {
            "schema": 4, "deferred": {"open": 0, "oldest_seconds": null, "failed": 0, "error": null},
            "inbox": {"waiting": 0, "oldest_seconds": null, "refused": 0, "error": null},
            "encrypted_queues": [], "maintenance": false, "pop_maintenance": false, "extents": {"count": 32, "oldest_seconds": 1e6, "tables": 32},
        },
        "leases": {"live": 1, "oldest_seconds": 20.0, "oldest": {"queue": "q", "partition": "p", "group": "g"}, "orphaned": 0},
    })
}

fn here() -> Circumstances {
    Circumstances {
        pool: 25,
        schema: 4,
        clock_offset_seconds: 0.2,
        pooled: Some(false),
        can_seal: false,
        unreadable: Vec::new(),
    }
}

fn judged(facts: Value, here: &Circumstances) -> Vec<(Severity, &'static str)> {
    let facts: Facts = serde_json::from_value(facts).unwrap();
    judge(&facts, here).iter().map(|finding| (finding.severity, finding.code)).collect()
}

/// The findings when one fact of a healthy database is replaced.
fn with(pointer: &str, value: Value) -> Vec<(Severity, &'static str)> {
    let mut facts = healthy();
    *facts.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
    judged(facts, &here())
}

#[test]
fn a_healthy_database_has_no_findings() {
    assert_eq!(judged(healthy(), &here()), []);
}

#[test]
fn each_fact_that_is_wrong_is_found_and_nothing_else() {
    use Severity::{Info, Problem, Warning};
    let holder = |kind: &str, state: Value, seconds: Value, transactions: i64| {
        json!([{"kind": kind, "name": "n", "pid": 1, "owner": "o", "state": state, "seconds": seconds,
                "transactions": transactions, "query": "q"}])
    };
    let slot = |active: bool, wal_bytes: i64, lost: bool, transactions: Value| json!([{"name": "s", "active": active, "wal_bytes": wal_bytes, "lost": lost, "transactions": transactions}]);
    let user = |name: &str, seconds: f64, exclusive: bool| json!([{"pid": 1, "name": name, "seconds": seconds, "query": "q", "exclusive": exclusive}]);
    let blocker = |name: &str, seconds: f64| {
        json!([{"pid": 1, "waiting": 2, "seconds": seconds, "name": name, "state": "active",
                "transaction_seconds": 5.0, "query": "q"}])
    };
    let wait =
        |waiting: i64, active: i64| json!([{"event": "IO/WALSync", "waiting": waiting, "active": active}]);
    for (pointer, value, expected) in [
        ("/version", json!(140_000), (Problem, "server_version")),
        ("/read_only", json!(true), (Problem, "read_only")),
        ("/sees_others", json!(false), (Info, "limited_view")),
        ("/settings/fsync", json!(false), (Problem, "fsync_off")),
        ("/settings/full_page_writes", json!(false), (Problem, "full_page_writes_off")),
        ("/settings/synchronous_commit", json!("off"), (Warning, "synchronous_commit_off")),
        ("/settings/autovacuum", json!(false), (Problem, "autovacuum_off")),
        ("/settings/max_wal_bytes", json!(512 << 20), (Warning, "max_wal_size")),
        ("/checkpoints/requested", json!(101), (Warning, "max_wal_size")),
        ("/settings/shared_buffers_bytes", json!(16 << 20), (Warning, "shared_buffers")),
        ("/settings/max_connections", json!(32), (Problem, "connections_used")),
        ("/sessions/brokers", json!(4), (Warning, "connections_wanted")),
        ("/wraparound/transactions", json!(400_000_001_i64), (Warning, "wraparound")),
        ("/wraparound/transactions", json!(1_500_000_000_i64), (Problem, "wraparound")),
        ("/wraparound/multixacts", json!(1_500_000_000_i64), (Problem, "wraparound")),
        ("/holders", holder("session", json!("active"), json!(301.0), 5), (Problem, "long_transaction")),
        ("/holders", holder("session", Value::Null, Value::Null, 2_000_000), (Problem, "long_transaction")),
        (
            "/holders",
            holder("session", json!("idle in transaction"), json!(301.0), 5),
            (Problem, "idle_in_transaction"),
        ),
        ("/holders", holder("prepared", Value::Null, json!(301.0), 5), (Problem, "prepared_transaction")),
        ("/holders", holder("standby", Value::Null, Value::Null, 2_000_000), (Warning, "standby_feedback")),
        ("/slots", slot(false, 16 << 20, false, Value::Null), (Warning, "slot_inactive")),
        ("/slots", slot(false, 2 << 30, false, Value::Null), (Problem, "slot_inactive")),
        ("/slots", slot(false, 0, false, json!(10)), (Problem, "slot_inactive")),
        ("/slots", slot(false, 0, true, Value::Null), (Warning, "slot_lost")),
        ("/slots", slot(true, 2 << 30, false, Value::Null), (Warning, "slot_behind")),
        ("/slots", slot(true, 0, false, json!(2_000_000)), (Warning, "standby_feedback")),
        ("/tables/0/autovacuum_off", json!(true), (Problem, "autovacuum_off_table")),
        ("/tables/0/hot_updates", json!(600_000), (Warning, "hot_updates")),
        ("/tables/0/dead", json!(60_000), (Warning, "dead_tuples")),
        ("/tables/0/bytes", json!(1_i64 << 30), (Warning, "bloat")),
        ("/invalid_indexes", json!(["heads_pkey"]), (Problem, "index_invalid")),
        ("/indexes/0", json!("other"), (Problem, "index_missing")),
        ("/blockers", blocker("app", 0.1), (Problem, "blocked")),
        ("/blockers", blocker("queen", 1.5), (Problem, "blocked")),
        ("/waits", wait(3, 5), (Problem, "waits")),
        ("/log_users", user("dump", 301.0, false), (Warning, "log_in_use")),
        ("/log_users", user("queen", 6.0, true), (Problem, "table_locked")),
        ("/contents", Value::Null, (Warning, "tables_unread")),
        ("/contents/schema", json!(3), (Warning, "schema_version")),
        (
            "/contents/deferred",
            json!({"open": 2, "oldest_seconds": 1.0, "failed": 0, "error": null}),
            (Info, "deferred_waiting"),
        ),
        (
            "/contents/deferred",
            json!({"open": 2, "oldest_seconds": 11.0, "failed": 0, "error": null}),
            (Problem, "deferred_waiting"),
        ),
        ("/contents/deferred/failed", json!(1), (Problem, "deferred_failed")),
        ("/contents/inbox/oldest_seconds", json!(11.0), (Warning, "inbox_waiting")),
        ("/contents/inbox/refused", json!(2), (Problem, "inbox_refused")),
        ("/contents/encrypted_queues", json!(["q"]), (Warning, "encryption_without_key")),
        ("/contents/maintenance", json!(true), (Info, "maintenance")),
        ("/contents/pop_maintenance", json!(true), (Info, "pop_maintenance")),
        ("/contents/extents/tables", json!(31), (Problem, "extents_differ")),
        (
            "/contents/extents",
            json!({"count": 101, "oldest_seconds": 1.0, "tables": 101}),
            (Warning, "extents_many"),
        ),
        ("/leases/oldest_seconds", json!(3_601.0), (Warning, "lease_stuck")),
        ("/leases/orphaned", json!(1), (Problem, "lease_orphaned")),
    ] {
        assert_eq!(with(pointer, value.clone()), [expected], "{pointer} = {value}");
    }
    for (pointer, value) in [
        ("/holders", holder("session", json!("active"), json!(299.0), 2_000_000)),
        ("/slots", json!([])),
        ("/blockers", blocker("queen", 0.5)),
        ("/waits", wait(2, 3)),
        ("/waits", wait(3, 6)),
        ("/log_users", user("dump", 299.0, false)),
        ("/log_users", user("queen", 1_000.0, false)),
        ("/log_users", user("queen", 0.2, true)),
        ("/leases", Value::Null),
        ("/tables/0/updates", json!(9_999)),
        ("/settings/synchronous_commit", json!("remote_apply")),
    ] {
        assert_eq!(with(pointer, value.clone()), [], "{pointer} = {value}");
    }
}

#[test]
fn what_is_known_besides_the_facts_counts_as_well() {
    let unreadable = UnreadableMessage {
        queue: "q".to_owned(),
        partition: "p".to_owned(),
        transaction_id: "t".to_owned(),
        cause: crate::crypt::Unreadable::UnknownKey("k".to_owned()),
    };
    for (different, code) in [
        (Circumstances { pooled: Some(true), ..here() }, "transaction_pooler"),
        (Circumstances { clock_offset_seconds: 6.0, ..here() }, "clock_difference"),
        (Circumstances { clock_offset_seconds: -6.0, ..here() }, "clock_difference"),
        (Circumstances { schema: 5, ..here() }, "schema_version"),
        (Circumstances { pool: 95, ..here() }, "connections_wanted"),
        (Circumstances { unreadable: vec![unreadable], ..here() }, "message_unreadable"),
    ] {
        let found = judged(healthy(), &different);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].1, code);
    }
    assert_eq!(judged(healthy(), &Circumstances { pooled: None, ..here() }), []);
    // 97, of which other programs use 4. Four connections for lists and one to listen are added to the pool.
    assert_eq!(judged(healthy(), &Circumstances { pool: 88, ..here() }), []);
    let wanted = judged(healthy(), &Circumstances { pool: 89, ..here() });
    assert_eq!(wanted, [(Severity::Warning, "connections_wanted")]);
    let mut encrypted = healthy();
    encrypted["contents"]["encrypted_queues"] = json!(["q"]);
    assert_eq!(judged(encrypted, &Circumstances { can_seal: true, ..here() }), []);
}

#[test]
fn the_worst_comes_first() {
    let mut facts = healthy();
    facts["contents"]["maintenance"] = json!(true);
    facts["settings"]["synchronous_commit"] = json!("off");
    facts["leases"]["orphaned"] = json!(1);
    let severities: Vec<Severity> = judged(facts, &here()).into_iter().map(|found| found.0).collect();
    assert_eq!(severities, [Severity::Problem, Severity::Warning, Severity::Info]);
}

#[test]
fn a_clock_is_off_only_by_what_the_call_cannot_explain() {
    assert_eq!(offset(100.0, 104.0, 101.0), 0.0);
    assert_eq!(offset(100.0, 104.0, 92.0), 10.0);
    assert_eq!(offset(100.0, 104.0, 112.0), -10.0);
}

#[test]
fn numbers_are_for_people() {
    assert_eq!(
        [span(1.25), span(600.0), span(10_800.0), span(864_000.0)],
        ["1.2 s", "10 min", "3.0 h", "10.0 days"]
    );
    assert_eq!([size(8192), size(256 << 20), size(3 << 29)], ["8 kB", "256 MB", "1.5 GB"]);
}
