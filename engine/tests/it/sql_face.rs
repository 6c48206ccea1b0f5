//! The SQL interface for people, tools and roles: views, functions of published tools, grants, and their documentation.

use std::time::Duration;

use queen_protocol::{AckStatus, PopRequest, PushStatus, Subscription};
use queen_testkit::{Database, connect, database};
use serde_json::{Value, json};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::support::{
    Ask, ack, ack_all, any, config, configure, data, drain, engine, engine_with, eventually, named, number,
    parked, pop, push, push_ids, send, travel, write_unnoticed,
};

const LONG: Duration = Duration::from_secs(12);

/// The JSON that a function returns.
async fn asks(sql: &Client, function: &str, argument: &Value) -> Value {
    let text = format!("select queen.{function}($1::text::jsonb)::text");
    let row = sql.query_one(&text, &[&argument.to_string()]).await.unwrap();
    serde_json::from_str(row.get(0)).unwrap()
}

/// All cells of all rows as text.
async fn rows(sql: &Client, text: &str) -> Vec<Vec<String>> {
    let rows = sql.simple_query(text).await.unwrap_or_else(|error| panic!("{text}: {error:?}"));
    let cells = |row: &tokio_postgres::SimpleQueryRow| {
        (0..row.len()).map(|column| row.get(column).unwrap_or("null").to_owned()).collect()
    };
    let rows = rows.iter().filter_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => Some(cells(row)),
        _ => None,
    });
    rows.collect()
}

#[tokio::test]
async fn push_messages_is_in_the_log_at_once_for_any_pop() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    let items = json!([
        {"queue": "q", "partition": "p", "transactionId": "a", "payload": {"n": 1}, "producerSub": "alice"},
        {"queue": "q", "partition": "p", "transactionId": "b", "payload": "\"\n", "producerSub": ""},
        {"queue": "q.t", "payload": null, "traceId": "00000000-0000-0000-0000-000000000007"},
        {"queue": "q", "partition": "p", "transactionId": "a", "payload": "again"},
    ]);
    let results = asks(&sql, "push_messages_v3", &items).await;
    let statuses: Vec<_> = results.as_array().unwrap().iter().map(|result| &result["status"]).collect();
    assert_eq!(statuses, ["queued", "queued", "queued", "duplicate"]);
    assert_eq!(results[3]["message_id"], results[0]["message_id"]);
    assert_eq!(results[3]["index"], 3);
    let popped = pop(&broker, any("q").batch(9)).await.expect("a pop that does not wait");
    assert_eq!(popped.data(), [json!({"n": 1}), json!("\"\n")]);
    assert_eq!(results[0]["message_id"], popped.messages[0].id.to_string());
    assert_eq!(results[0]["partition_id"], popped.partition_id.to_string());
    assert_eq!(popped.messages[0].producer_sub.as_deref(), Some("alice"));
    assert_eq!(popped.messages[1].producer_sub, None);
    assert!(ack(&broker, &popped.messages[1], AckStatus::Completed).await.success);
    let other = pop(&broker, named("q.t", "Default")).await.expect("the third");
    assert_eq!((other.messages[0].trace_id, other.data()), (Some(Uuid::from_u128(7)), vec![Value::Null]));
    // Both ways to push have the same duplicates.
    assert_eq!(push_ids(&broker, "q", "p", &["b"]).await[0].status, PushStatus::Duplicate);
    let again = json!([{"queue": "q", "partition": "p", "transactionId": "b"},
                       {"queue": "q", "partition": "p", "transactionId": "c", "payload": 3}]);
    let results = asks(&sql, "push_messages_v2", &again).await;
    assert_eq!((&results[0]["status"], &results[1]["status"]), (&json!("duplicate"), &json!("queued")));
    assert_eq!(results[0]["message_id"], popped.messages[1].id.to_string());
    assert_eq!(data(&broker, named("q", "p").batch(9)).await, [3]);
}

#[tokio::test]
async fn push_messages_wakes_a_parked_pop_and_follows_deferred_pushes() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    let waiting = parked(&broker, any("q").wait(LONG)).await;
    asks(&sql, "push_messages_v3", &json!([{"queue": "q", "partition": "p", "payload": 1}])).await;
    assert_eq!(waiting.answer().await.expect("within a second").data(), [1]);
    broker.stop().await;
    let defer = "select queen.defer_pushes(array[gen_random_uuid()], array[p.id], array[1],
                        array[queen.transaction_hash('x', true)], array['{\"transactionId\":\"x\",\"payload\":2}'], 30, 3, 5)
                 from queen.partitions p";
    sql.batch_execute(defer).await.unwrap();
    let items = json!([{"queue": "q", "partition": "p", "payload": 3}, {"queue": "q", "partition": "p", "payload": 4}]);
    let results = asks(&sql, "push_messages_v3", &items).await;
    assert_eq!(results[1]["status"], "queued");
    assert_eq!(number(&sql, "select count(*) from queen.messages").await, 1);
    let broker = engine(db.url()).await;
    eventually("they land", async || {
        (number(&sql, "select count(*) from queen.messages").await == 4).then_some(())
    })
    .await;
    let found = drain(&broker, "q", "p", "g").await;
    assert_eq!(found.iter().map(|message| message.json()).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(results[1]["message_id"], found[3].id.to_string());
}

#[tokio::test]
async fn push_messages_takes_many_and_refuses_what_is_no_message() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    let items: Vec<Value> = (0..2_500)
        .map(|n| json!({"queue": "q", "partition": format!("p{}", n % 2), "transactionId": format!("t{n}"), "payload": n}))
        .collect();
    asks(&sql, "push_messages_v3", &json!(items)).await;
    let found = drain(&broker, "q", "p1", "g").await;
    assert!(
        found.iter().map(|message| message.json()).eq((0..2_500).filter(|n| n % 2 == 1).map(Value::from))
    );
    assert!(number(&sql, "select max(count)::bigint from queen.segments").await <= 1_000);
    assert_eq!(asks(&sql, "push_messages_v3", &json!([])).await, json!([]));
    for (argument, words) in [
        (json!({}), "array of messages"),
        (json!([{"payload": 1}]), "message 0 has no queue"),
        (json!([{"queue": "q"}, {"queue": "x".repeat(256)}]), "message 1: names"),
        (json!([{"queue": "q", "transactionId": ""}]), "message 0: names"),
    ] {
        let text = "select queen.push_messages_v3($1::text::jsonb)";
        let error = sql.query(text, &[&argument.to_string()]).await.expect_err("it is refused");
        let said = error.as_db_error().unwrap().message().to_owned();
        assert!(said.contains(words), "{argument}: {said}");
    }
}

#[tokio::test]
async fn pop_specific_batch_takes_a_lease_that_brokers_honour() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    let items = json!([{"queue": "q", "partition": "p", "transactionId": "a", "payload": 1, "producerSub": "alice"},
                       {"queue": "q", "partition": "p", "transactionId": "b", "payload": 2},
                       {"queue": "q", "partition": "p", "transactionId": "c", "payload": 3}]);
    asks(&sql, "push_messages_v3", &items).await;
    let ask = |idx: i32, partition: &str, group: &str| {
        json!({"idx": idx, "queue_name": "q", "partition_name": partition, "consumer_group": group,
               "lease_seconds": 60, "worker_id": "w", "batch_size": 2, "sub_mode": "all", "sub_from": ""})
    };
    let asked =
        json!([ask(0, "p", "g"), ask(1, "nowhere", "g"), ask(2, "p", "__QUEUE_MODE__"), ask(3, "p", "g")]);
    let answers = asks(&sql, "pop_specific_batch", &asked).await;
    let ids = |index: usize| {
        let messages = answers[index]["result"]["messages"].as_array().unwrap().iter();
        messages.map(|message| message["transactionId"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        (ids(0), ids(1), ids(2), ids(3)),
        (vec!["a".into(), "b".into()], vec![], vec!["a".into(), "b".into()], vec![])
    );
    assert_eq!(answers[2]["idx"], 2);
    let message = &answers[0]["result"]["messages"][0];
    assert_eq!((&message["producerSub"], &message["data"]), (&json!("alice"), &json!(1)));
    assert_eq!(answers[0]["result"]["messages"][1]["producerSub"], Value::Null);
    let stored = rows(&sql, "select id from queen.messages where transaction_id = 'a'").await;
    assert_eq!(message["id"], stored[0][0]);
    // The broker neither delivers the range to another pop nor refuses the lease.
    assert!(pop(&broker, named("q", "p").group("g")).await.is_none());
    let last: crate::support::Message = {
        let mut last = answers[0]["result"]["messages"][1].clone();
        last["createdAt"] = json!("");
        serde_json::from_value(last).unwrap()
    };
    let renewed = broker.renew(&last.lease_id, 60).await.unwrap();
    assert!(renewed.success);
    assert!(ack(&broker, &last, AckStatus::Completed).await.success);
    assert_eq!(data(&broker, named("q", "p").group("g").batch(9)).await, [3]);
    // A group that starts at new messages gets no old ones.
    let mut new = ask(0, "p", "new");
    new["sub_mode"] = json!("new");
    let answers = asks(&sql, "pop_specific_batch", &json!([new])).await;
    assert_eq!(
        answers,
        json!([{"idx": 0, "result": {"success": true, "queue": "q", "partition": "p",
        "partitionId": last.partition_id, "leaseId": "", "consumerGroup": "new", "messages": []}}])
    );
}

#[tokio::test]
async fn watermarks_exist_after_an_empty_pop_and_decide_nothing() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    push(&broker, "q", "p", 0..2).await;
    let group = || any("q").group("g").batch(9);
    crate::support::complete(&broker, &pop(&broker, group()).await.unwrap()).await;
    assert!(pop(&broker, group()).await.is_none());
    let there =
        "select count(*) from queen.consumer_watermarks where queue_name = 'q' and consumer_group = 'g'
                 and last_empty_scan_at <= now() and updated_at <= now()";
    assert_eq!(number(&sql, there).await, 1);
    sql.batch_execute(
        "update queen.consumer_watermarks set last_empty_scan_at = now() + interval '10 minutes',
                                              updated_at = now() + interval '10 minutes'",
    )
    .await
    .unwrap();
    let before = queen_engine::SeekTo::Time(0);
    broker.seek("g", "q", before).await.unwrap();
    assert_eq!(data(&broker, group()).await, [0, 1]);
    sql.batch_execute("delete from queen.consumer_watermarks").await.unwrap();
    broker.seek("g", "q", queen_engine::SeekTo::Time(0)).await.unwrap();
    assert_eq!(data(&broker, group()).await, [0, 1]);
}

#[tokio::test]
async fn views_tell_what_is_stored_read_leased_and_given_up() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    configure(&broker, "q", json!({"retryLimit": 0})).await;
    push_ids(&broker, "q", "p", &["a", "b", "c", "d"]).await;
    push_ids(&broker, "q", "r", &["e"]).await;
    // More versions than a generation has.
    for n in 0..70 {
        push(&broker, "q", "busy", n..n + 1).await;
        let popped = pop(&broker, named("q", "busy")).await.unwrap();
        crate::support::complete(&broker, &popped).await;
    }
    let popped = pop(&broker, named("q", "p").batch(2)).await.unwrap();
    ack_all(&broker, &popped.messages, &[AckStatus::Completed, AckStatus::Failed]).await;
    travel(&sql, "90 seconds").await;
    let held = pop(&broker, named("q", "p").batch(1)).await.unwrap();

    let text = "select message_offset, transaction_id, payload, producer_sub from queen.messages
                where queue = 'q' and partition = 'p' order by message_offset";
    let messages = rows(&sql, text).await;
    assert_eq!(messages[0], ["0", "a", "\"a\"", "null"]);
    assert_eq!(messages.iter().map(|row| row[1].as_str()).collect::<Vec<_>>(), ["a", "b", "c", "d"]);
    assert_eq!(number(&sql, "select count(*) from queen.messages").await, 75);

    let text = "select queue, partition, consumer_group, cursor, head, pending,
                       round(extract(epoch from oldest_pending_age) / 90) from queen.lag order by partition";
    let lag = rows(&sql, text).await;
    assert_eq!(lag[0], ["q", "busy", "__QUEUE_MODE__", "70", "70", "0", "null"]);
    assert_eq!(lag[1], ["q", "p", "__QUEUE_MODE__", "2", "4", "2", "1"]);
    assert_eq!(lag.len(), 2, "nobody has read the other partition");

    let text = "select queue, partition, consumer_group, cursor, lease_end, attempts, is_held, lease_id from queen.leases";
    let leases = rows(&sql, text).await;
    let lease = held.lease_id.split('.').next().unwrap();
    assert_eq!(leases, [["q", "p", "__QUEUE_MODE__", "2", "3", "0", "f", lease]]);

    let text = "select queue, partition, consumer_group, transaction_id, payload, error, attempts, message_id, message_offset,
                       failed_at >= created_at from queen.dead_letters";
    let id = popped.messages[1].id.to_string();
    let letters = rows(&sql, text).await;
    assert_eq!(
        letters,
        [["q", "p", "__QUEUE_MODE__", "b", "\"b\"", "no use for b", "0", id.as_str(), "1", "t"]]
    );
    assert_eq!(crate::support::dead_letters(&broker, "q").await.len(), 1, "as the API has it");
    let deleted =
        sql.execute("delete from queen.dead_letters where failed_at < now() + interval '1 hour'", &[]).await;
    assert_eq!(deleted.unwrap(), 1);
    assert!(crate::support::dead_letters(&broker, "q").await.is_empty());
}

/// The tables of a partition are read by index, and no more rows than it has.
#[tokio::test]
async fn a_view_of_one_partition_reads_one_partition() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    let items: Vec<Value> =
        (0..2_000).map(|n| json!({"queue": "q", "partition": format!("p{n}"), "payload": n})).collect();
    send(&broker, &json!(items)).await.unwrap();
    let popped = pop(&broker, PopRequest { partitions: 1_000, ..any("q").batch(1_000) }).await;
    popped.expect("leases in many partitions");
    sql.batch_execute(
        "analyze queen.segments; analyze queen.heads; analyze queen.partitions; analyze queen.consumers",
    )
    .await
    .unwrap();
    let id = rows(&sql, "select id from queen.partitions where name = 'p77'").await[0][0].clone();
    for text in [
        format!("select * from queen.messages where partition_id = '{id}'"),
        "select * from queen.messages where queue = 'q' and partition = 'p77'".to_owned(),
        "select * from queen.lag where queue = 'q' and partition = 'p77'".to_owned(),
        format!("select * from queen.leases where partition_id = '{id}'"),
    ] {
        let plan: Vec<String> = rows(&sql, &format!("explain (analyze, timing off) {text}")).await.concat();
        let plan = plan.join("\n");
        for table in ["segments", "heads", "consumers", "partitions"] {
            assert!(!plan.contains(&format!("Seq Scan on {table}")), "{text}\n{plan}");
        }
        assert!(
            !text.contains("messages") || plan.contains("segments_1_partition_id_base_offset_idx"),
            "{text}\n{plan}"
        );
    }
    drop(broker);
}

#[tokio::test]
async fn a_queue_deleted_by_hand_takes_everything_along() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    configure(&broker, "q", json!({"retryLimit": 0})).await;
    push_ids(&broker, "q", "p", &["a", "b"]).await;
    let popped = pop(&broker, any("q").group("g")).await.unwrap();
    ack(&broker, &popped.messages[0], AckStatus::Failed).await;
    pop(&broker, any("q").group("g")).await.unwrap();
    write_unnoticed(&sql, "q", "p", "c").await;
    sql.batch_execute("delete from queen.queues where name = 'q'").await.unwrap();
    let left = "select (select count(*) from queen.messages) + (select count(*) from queen.lag) + (select count(*) from queen.leases)
                     + (select count(*) from queen.dead_letters) + (select count(*) from queen.dead_letter_rows)
                     + (select count(*) from queen.groups) + (select count(*) from queen.consumer_watermarks)
                     + (select count(*) from queen.heads) + (select count(*) from queen.consumers)
                     + (select count(*) from queen.partitions)";
    assert_eq!(number(&sql, left).await, 0);
    assert!(pop(&broker, any("q").group("g")).await.is_none());
    assert_eq!(push_ids(&broker, "q", "p", &["a"]).await[0].status, PushStatus::Queued);
    assert_eq!(data(&broker, any("q").group("g")).await, ["a"]);
}

/// A role with its own session. It lives as long as the cluster, which other tests share, so its name
/// contains that of the database.
async fn role(db: &Database, sql: &Client, suffix: &str, grants: &str) -> Client {
    let name = format!("{}_{suffix}", db.name());
    sql.batch_execute(&format!("create role {name} login password 'x'; {}", grants.replace("$role", &name)))
        .await
        .unwrap();
    let config: tokio_postgres::Config = db.url().parse().unwrap();
    let user = config.get_user().unwrap().to_owned();
    let url = db.url().replace(&format!("user={user}"), &format!("user={name}"));
    connect(&format!("{url} password=x")).await.expect("the role may connect")
}

async fn denied(session: &Client, text: &str) {
    let error = session.batch_execute(text).await.expect_err(text);
    let said = error.as_db_error().expect("PostgreSQL says so");
    assert_eq!(said.code().code(), "42501", "{text}: {said}");
}

#[tokio::test]
async fn a_role_may_push_and_nothing_else_and_another_may_read_and_nothing_else() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    let grants = "grant usage on schema queen to $role;
                  grant execute on function queen.push(text, text, jsonb, text, uuid) to $role";
    let app = role(&db, &sql, "app", grants).await;
    push_ids(&broker, "q", "p", &["a"]).await;
    for text in [
        "select * from queen.messages",
        "select * from queen.inbox",
        "insert into queen.inbox (number, message_id, is_first, queue, partition, payload)
         values (1, gen_random_uuid(), true, 'q', 'p', '1')",
        "select nextval('queen.inbox_numbers')",
        "select queen.delete_queue('q')",
        "select queen.put_in_inbox('q', 'p', 'no json', null, null)",
        "select queen.push_messages_v3('[]')",
        "select queen.pop_specific_batch('[]')",
        "select queen.push_json('q', 'p', '1')",
        "select queen.lead_inbox()",
        "select queen.push('{}'::uuid[], '{}', '{}', '{}', '{}', '{}', '{}', '{}', false)",
        "delete from queen.queues",
        "delete from queen.dead_letters",
    ] {
        denied(&app, text).await;
    }
    // Not even with its own function that hides ours.
    app.batch_execute(
        "create function pg_temp.nextval(text) returns bigint language sql as 'select 1';
         set search_path = pg_temp, queen, public;
         begin; select queen.push('q', 'p', '\"b\"', 'b'); commit",
    )
    .await
    .unwrap();
    let messages = eventually("it arrives", async || {
        let found = rows(&sql, "select transaction_id from queen.messages order by message_offset").await;
        (found.len() == 2).then_some(found)
    })
    .await;
    assert_eq!(messages.concat(), ["a", "b"]);

    let grants = "grant usage on schema queen to $role;
                  grant select on queen.messages, queen.lag, queen.leases, queen.dead_letters to $role";
    let reader = role(&db, &sql, "reader", grants).await;
    pop(&broker, any("q")).await.unwrap();
    assert_eq!(rows(&reader, "select payload from queen.messages").await.len(), 2);
    assert_eq!(rows(&reader, "select oldest_pending_age from queen.lag").await.len(), 1);
    assert_eq!(rows(&reader, "select * from queen.leases").await.len(), 1);
    assert!(rows(&reader, "select payload from queen.dead_letters").await.is_empty());
    for text in [
        "select * from queen.segments",
        "select * from queen.heads",
        "delete from queen.dead_letters",
        "select queen.push('q', 'p', '1')",
        "select queen.configure('q', null, null, '{}', false)",
    ] {
        denied(&reader, text).await;
    }
}

#[tokio::test]
async fn only_procedures_that_views_call_are_executable_by_everyone() {
    let db = database().await;
    let sql = db.client().await;
    let broker = engine(db.url()).await;
    let open = "select p.proname from pg_proc p
                where p.pronamespace = 'queen'::regnamespace and has_function_privilege('public', p.oid, 'execute') order by 1";
    let expected = [["frame_header"], ["frame_payload"], ["message_id"], ["now"]];
    assert_eq!(rows(&sql, open).await, expected);
    // A grant of an administrator survives a restart.
    sql.batch_execute("grant execute on function queen.push(text, text, jsonb, text, uuid) to public")
        .await
        .unwrap();
    broker.stop().await;
    engine_with(config(db.url())).await;
    assert_eq!(rows(&sql, open).await.len(), expected.len() + 1);
}

/// The blocks of docs/sql.md, in order, on one database. Those of an application run in its session.
#[tokio::test]
async fn the_examples_of_the_page_about_sql_run() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    let page = include_str!("../../../docs/sql.md");
    let blocks: Vec<&str> =
        page.split("```sql\n").skip(1).map(|rest| rest.split("```").next().expect("it ends")).collect();
    assert!(blocks.len() > 3);
    for block in blocks {
        let suffix = db.name();
        // Roles belong to the cluster, which other tests use as well.
        let text =
            block.replace("shop", &format!("shop_{suffix}")).replace("analyst", &format!("analyst_{suffix}"));
        sql.batch_execute(&text).await.unwrap_or_else(|error| panic!("{text}\n{error:?}"));
    }
    eventually("what the page pushes arrives", async || pop(&broker, any("orders")).await).await;
}

#[tokio::test]
async fn lag_counts_partitions_that_a_group_has_not_read_yet_as_the_api_does() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    push(&broker, "q", "a", 0..14).await;
    push(&broker, "q", "b", 0..10).await;
    travel(&sql, "1 minute").await;
    let late = PopRequest { subscription: Subscription::New, ..any("q").group("late") };
    assert!(pop(&broker, late).await.is_none());
    let waits = PopRequest { subscription: Subscription::New, ..named("q", "c").group("of c") };
    assert!(pop(&broker, waits).await.is_none());
    travel(&sql, "2 minutes").await;
    push(&broker, "q", "c", 0..5).await;
    push(&broker, "q", "b", 10..11).await;
    // The last of them reads one partition by its name, so it is not a reader of the others.
    for request in [any("q").group("whole"), any("q"), named("q", "a").group("narrow")] {
        let first = pop(&broker, request).await.unwrap();
        assert!(ack(&broker, &first.messages[0], AckStatus::Completed).await.success);
    }
    for (group, unread) in
        [("whole", 29), (queen_protocol::QUEUE_MODE, 29), ("late", 6), ("of c", 5), ("narrow", 13)]
    {
        let figures = broker.groups(Some(group), Some("q"), 1, 0).await.unwrap().remove(0);
        let text = format!(
            "select sum(pending)::bigint from queen.lag where queue = 'q' and consumer_group = '{group}'"
        );
        assert_eq!((figures.unread, number(&sql, &text).await), (unread, unread), "{group}");
    }
    let text =
        "select partition, cursor::text, pending::text, (oldest_pending_at is null)::text from queen.lag
                where queue = 'q' and consumer_group = 'late' order by partition";
    let expected = [["a", "14", "0", "true"], ["b", "10", "1", "false"], ["c", "0", "5", "false"]];
    assert_eq!(rows(&sql, text).await, expected);
    // A role that may read the view needs nothing else.
    sql.batch_execute(&format!(
        "create role {0}_reader; grant usage on schema queen to {0}_reader;
                                grant select on queen.lag to {0}_reader; set role {0}_reader",
        db.name()
    ))
    .await
    .unwrap();
    assert_eq!(
        number(&sql, "select sum(pending)::bigint from queen.lag where consumer_group = 'whole'").await,
        29
    );
    sql.batch_execute(&format!("reset role; drop owned by {0}_reader; drop role {0}_reader", db.name()))
        .await
        .unwrap();
}
