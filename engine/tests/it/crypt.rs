//! Encryption at rest: nothing readable is stored, whatever happens to a message, and nothing unreadable is delivered.

use std::path::Path;
use std::time::Duration;

use queen_engine::{Config, Engine, Error, Keys, RedriveAsk};
use queen_protocol::{AckStatus, Configure, PopRequest, PushStatus, TransactionBody};
use queen_testkit::{Proxy, database};
use serde_json::json;
use tempfile::TempDir;
use tokio_postgres::Client;

use crate::spool::{buffered, cut_off, emptied, spooling};
use crate::support::*;

pub const ONE: &str = "one:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const TWO: &str = "two:ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff";
const MARK: &str = "sentence-nobody-may-read";

fn keys(current: Option<&str>, old: Option<&str>) -> Keys {
    Keys::parse(current, old).unwrap()
}

fn with(config: Config, current: Option<&str>, old: Option<&str>) -> Config {
    Config { keys: keys(current, old), ..config }
}

pub async fn holding(url: &str, current: Option<&str>, old: Option<&str>) -> Engine {
    engine_with(with(config(url), current, old)).await
}

pub async fn encrypt(engine: &Engine, queue: &str) {
    configure(engine, queue, json!({"encryptionEnabled": true})).await;
}

/// The tables of Queen with rows that contain this text.
async fn found(sql: &Client, text: &str) -> Vec<String> {
    let tables = "select c.oid::regclass::text from pg_class c
                  where c.relnamespace = 'queen'::regnamespace and c.relkind = 'r'";
    let mut found = Vec::new();
    for table in sql.query(tables, &[]).await.unwrap() {
        let table: String = table.get(0);
        let count = format!("select count(*) from {table} t where t::text like '%{text}%'");
        if number(sql, &count).await > 0 {
            found.push(table);
        }
    }
    found
}

fn files_hold(dir: &Path, text: &str) -> bool {
    std::fs::read_dir(dir).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files_hold(&path, text),
            false => memchr_find(&std::fs::read(&path).unwrap(), text),
        }
    })
}

fn memchr_find(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

async fn push_mark(engine: &Engine, queue: &str, ids: &[&str]) {
    let item =
        |id: &&str| json!({"queue": queue, "partition": "p", "payload": {"text": MARK}, "transactionId": id});
    send(engine, &ids.iter().map(item).collect()).await.unwrap();
}

async fn unreadable(engine: &Engine, request: PopRequest) -> String {
    match engine.pop(request).await {
        Err(error @ Error::Unreadable(_)) => error.to_string(),
        other => panic!("{:?}", other.map(|answer| answer.map(|answer| answer.messages))),
    }
}

#[tokio::test]
async fn what_rests_in_the_database_is_unreadable_and_what_comes_out_is_what_went_in() {
    let db = database().await;
    let sql = db.client().await;
    let broker = holding(db.url(), Some(ONE), None).await;
    encrypt(&broker, "q").await;
    let payloads = [json!({"text": MARK}), json!(null), json!({}), json!(MARK), json!([1, {"a": "\u{0}"}])];
    let items = payloads.iter().map(|payload| json!({"queue": "q", "partition": "p", "payload": payload}));
    send(&broker, &items.collect()).await.unwrap();
    assert_eq!(found(&sql, MARK).await, Vec::<String>::new());
    // A view shows the envelope; the key id says that it is one.
    let shown = sql
        .query("select payload::text, key_id from queen.messages order by message_offset", &[])
        .await
        .unwrap();
    for row in &shown {
        let envelope: serde_json::Value = serde_json::from_str(row.get(0)).unwrap();
        assert_eq!((row.get::<_, &str>(1), envelope["keyId"].as_str()), ("one", Some("one")));
        assert!(["encrypted", "iv", "authTag"].iter().all(|field| envelope[field].is_string()), "{envelope}");
    }
    let popped = pop(&broker, named("q", "p").group("g").batch(10)).await.unwrap();
    assert_eq!(popped.data(), payloads);
    // Dead-lettered, listed, replayed: readable through the broker, and nowhere else.
    ack_all(&broker, &popped.messages, &[AckStatus::Dlq; 5]).await;
    let letters = dead_letters(&broker, "q").await;
    assert_eq!(letters.iter().filter(|letter| letter.payload.contains(MARK)).count(), 2);
    let first = &popped.messages[0];
    let detail = broker.message(first.partition_id, &first.transaction_id).await.unwrap().unwrap();
    assert!(detail.encrypted && detail.payload.contains(MARK) && detail.unreadable.is_none());
    let replayed = broker.replay_message(first.partition_id, &first.transaction_id).await.unwrap().unwrap();
    let again = pop(&broker, named("q", "p").group("g").batch(10)).await.unwrap();
    assert_eq!((again.data(), again.messages[0].id), (vec![payloads[0].clone()], replayed.push.message_id));
    assert_eq!(found(&sql, MARK).await, Vec::<String>::new());
}

#[tokio::test]
async fn every_way_in_encrypts() {
    let db = database().await;
    let sql = db.client().await;
    let busy = {
        let mut config = with(idle(db.url()), Some(ONE), None);
        config.deferring.push_utilisation = 0.0;
        config.deferring.patience = Duration::ZERO;
        engine_with(config).await
    };
    encrypt(&busy, "q").await;
    let deferred = eventually("a push is deferred", async || {
        let items = json!([{"queue": "q", "partition": "d", "payload": MARK}]);
        send(&busy, &items).await.unwrap().remove(0).ticket
    })
    .await;
    assert_eq!(found(&sql, MARK).await, Vec::<String>::new(), "deferred operations");
    let worker = holding(db.url(), Some(ONE), None).await;
    landed(&worker, &Some(deferred)).await;
    let outcome = transact(&worker, &json!({"operations": [push_operation("q", "t", &json!(MARK))]})).await;
    assert!(outcome.success, "{outcome:?}");
    sql.batch_execute(&format!("select queen.push('q', 's', '\"{MARK}\"')")).await.unwrap();
    for partition in ["d", "t", "s"] {
        let popped = pop_soon(&worker, &named("q", partition).group("g")).await;
        assert_eq!(popped.data(), [json!(MARK)], "{partition}");
    }
    assert_eq!(found(&sql, MARK).await, Vec::<String>::new());
    let refused =
        sql.query("select queen.push_messages_v3('[{\"queue\": \"q\", \"payload\": 1}]')", &[]).await;
    let refused = refused.unwrap_err();
    assert!(refused.as_db_error().unwrap().message().contains("encryption"), "{refused}");
}

#[tokio::test]
async fn the_spool_holds_nothing_readable_and_hands_in_what_the_queue_wants() {
    let db = database().await;
    let sql = db.client().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let dir = TempDir::new().unwrap();
    let broker = engine_with(with(spooling(proxy.url(), dir.path()), Some(ONE), None)).await;
    encrypt(&broker, "secret").await;
    push_mark(&broker, "secret", &["before"]).await;
    cut_off(&proxy);
    buffered(&broker).await;
    for queue in ["secret", "open"] {
        let items =
            json!([{"queue": queue, "partition": "p", "payload": {"text": MARK}, "transactionId": "away"}]);
        assert_eq!(send(&broker, &items).await.unwrap()[0].status, PushStatus::Buffered);
    }
    assert!(files_hold(dir.path(), "away") && !files_hold(dir.path(), MARK), "nothing readable on the disk");
    proxy.refuse(false);
    emptied(&broker).await;
    for (queue, count) in [("secret", 2), ("open", 1)] {
        let messages = drain(&broker, queue, "p", "g").await;
        assert_eq!(messages.len(), count);
        assert!(messages.iter().all(|message| message.json()["text"] == MARK));
    }
    let kept = "select queue || ' ' || (key_id is not null)::text from queen.messages
                where transaction_id = 'away' order by queue";
    let kept: Vec<String> = sql.query(kept, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(kept, ["open false", "secret true"], "encrypted in doubt only, and in doubt no longer");
}

#[tokio::test]
async fn a_switch_counts_from_the_next_push_on_and_a_look_alike_is_a_payload() {
    let db = database().await;
    let broker = holding(db.url(), Some(ONE), None).await;
    let look_alike = json!({"encrypted": "aGVsbG8=", "iv": "AAAAAAAAAAAAAAAA", "authTag": "AAAAAAAAAAAAAAAAAAAAAA==", "keyId": "one"});
    let send_one = async |payload: &serde_json::Value, id: &str| {
        let items = json!([{"queue": "q", "partition": "p", "payload": payload, "transactionId": id}]);
        send(&broker, &items).await.unwrap()[0].status
    };
    send_one(&look_alike, "a").await;
    encrypt(&broker, "q").await;
    send_one(&json!(2), "b").await;
    send_one(&look_alike, "c").await;
    assert_eq!(send_one(&json!("another"), "a").await, PushStatus::Duplicate, "a duplicate is one as before");
    configure(&broker, "q", json!({"encryptionEnabled": false})).await;
    send_one(&json!(4), "d").await;
    let popped = pop(&broker, named("q", "p").batch(10)).await.unwrap();
    assert_eq!(popped.data(), [look_alike.clone(), json!(2), look_alike, json!(4)]);
    let mut encrypted = Vec::new();
    for message in &popped.messages {
        let detail = broker.message(message.partition_id, &message.transaction_id).await.unwrap().unwrap();
        encrypted.push(detail.encrypted);
    }
    assert_eq!(encrypted, [false, true, true, false]);
}

#[tokio::test]
async fn without_a_key_it_works_unencrypted_and_the_doctor_says_so() {
    let db = database().await;
    let broker = engine(db.url()).await;
    encrypt(&broker, "q").await;
    push_mark(&broker, "q", &["a"]).await;
    assert_eq!(data(&broker, named("q", "p")).await, [json!({"text": MARK})]);
    assert_eq!(found(&db.client().await, MARK).await.len(), 1, "as it is");
    let codes =
        |examined: &queen_engine::Examination| examined.findings.iter().map(|f| f.code).collect::<Vec<_>>();
    assert!(codes(&broker.examine().await.unwrap()).contains(&"encryption_without_key"));
    let with_key = holding(db.url(), Some(ONE), None).await;
    assert!(!codes(&with_key.examine().await.unwrap()).contains(&"encryption_without_key"));
}

#[tokio::test]
async fn where_encryption_is_required_nothing_is_stored_readable_without_a_key() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let dir = TempDir::new().unwrap();
    let first = holding(db.url(), Some(ONE), None).await;
    encrypt(&first, "secret").await;
    first.stop().await;
    let broker = Config { encryption_required: true, ..spooling(proxy.url(), dir.path()) };
    let broker = engine_with(broker).await;
    let refused = async |queue: &str, status: u16| {
        let items = json!([{"queue": queue, "partition": "p", "payload": {"text": MARK}}]);
        let error = send(&broker, &items).await.unwrap_err();
        assert!(error.to_string().contains("QUEEN_ENCRYPTION_KEY"), "{error}");
        assert_eq!(error.code().status(), status, "{error}");
    };
    refused("secret", 409).await;
    let push = json!({"operations": [{"type": "push", "queue": "secret", "payload": MARK}]}).to_string();
    let transaction = TransactionBody::parse(push.as_bytes()).unwrap();
    assert!(broker.transaction(&transaction, None).await.is_err());
    let ask = Configure::parse(br#"{"queue":"new","options":{"encryptionEnabled":true}}"#).unwrap();
    assert!(matches!(broker.configure(&ask).await, Err(Error::KeyRequired(queue)) if queue == "new"));
    configure(&broker, "new", json!({"encryptionEnabled": false})).await;
    // A queue that is known not to require encryption can still use the spool. The broker may have just forgotten it,
    // because it starts to receive notifications of other brokers.
    let probe = json!([{"queue": "probe", "payload": 1}]);
    eventually("both queues are known while the database is away", async || {
        proxy.refuse(false);
        let secret = json!([{"queue": "secret", "partition": "p", "payload": 1}]);
        if send(&broker, &secret).await.unwrap_err().code().status() != 409 {
            return None;
        }
        send(&broker, &probe).await.ok()?;
        cut_off(&proxy);
        for _ in 0..20 {
            match send(&broker, &probe).await {
                Ok(pushed) if pushed[0].status == PushStatus::Buffered => return Some(()),
                _ => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
        None
    })
    .await;
    refused("secret", 409).await;
    refused("unheard-of", 503).await;
    proxy.refuse(false);
    emptied(&broker).await;
    assert_eq!(found(&db.client().await, MARK).await, [""; 0]);
}

#[tokio::test]
async fn a_push_from_sql_waits_in_the_inbox_for_the_key_that_is_required() {
    let db = database().await;
    let sql = db.client().await;
    let first = holding(db.url(), Some(ONE), None).await;
    encrypt(&first, "secret").await;
    first.stop().await;
    let without = engine_with(Config { encryption_required: true, ..config(db.url()) }).await;
    let pushes = |numbers: &[u32]| {
        let both = |n: &u32| {
            format!("select queen.push('secret', 'p', '[{n}, \"{MARK}\"]'), queen.push('open', 'p', '{n}');")
        };
        format!("begin; {} commit", numbers.iter().map(both).collect::<String>())
    };
    let mut open = Vec::new();
    for numbers in [&[1, 2][..], &[3], &[4, 5]] {
        sql.batch_execute(&pushes(numbers)).await.unwrap();
        while open.len() < *numbers.last().unwrap() as usize {
            let popped = pop_soon(&without, &named("open", "p").batch(10)).await;
            open.extend(popped.data());
            ack_all(&without, &popped.messages, &vec![AckStatus::Completed; popped.messages.len()]).await;
        }
    }
    assert_eq!(open, [1, 2, 3, 4, 5], "what needs no key goes on");
    assert_eq!(number(&sql, "select count(*) from queen.messages where queue = 'secret'").await, 0);
    assert_eq!(number(&sql, "select count(*) from queen.inbox where error is null").await, 5);
    // The broker without the key leads the inbox, and makes way for one that has the key.
    let with_key = holding(db.url(), Some(ONE), None).await;
    eventually("the inbox is empty", async || {
        (number(&sql, "select count(*) from queen.inbox").await == 0).then_some(())
    })
    .await;
    let read: Vec<_> =
        drain(&with_key, "secret", "p", "g").await.iter().map(|m| m.json()[0].clone()).collect();
    assert_eq!(read, [1, 2, 3, 4, 5], "in their order");
    assert_eq!(found(&sql, MARK).await, [""; 0]);
}

#[tokio::test]
async fn a_dead_letter_stays_where_it_is_while_a_required_key_for_its_target_is_missing() {
    let db = database().await;
    let sql = db.client().await;
    let first = holding(db.url(), Some(ONE), None).await;
    encrypt(&first, "secret").await;
    first.stop().await;
    let without = engine_with(Config { encryption_required: true, ..config(db.url()) }).await;
    push(&without, "open", "p", 0..1).await;
    let popped = pop(&without, any("open")).await.unwrap();
    ack(&without, &popped.messages[0], AckStatus::Dlq).await;
    let ask = RedriveAsk {
        queue: "open".to_owned(),
        target_queue: Some("secret".to_owned()),
        partition: None,
        group: None,
        from: None,
        to: None,
        error: None,
        shape: None,
        per_second: 10,
    };
    let redrive = without.start_redrive(&ask).await.unwrap().unwrap().id;
    let done = eventually("the redrive is done", async || {
        without.redrive(redrive).await.unwrap().filter(|redrive| redrive.status == "completed")
    });
    let done = done.await;
    assert_eq!((done.done, done.failed), (0, 1));
    assert!(done.error.unwrap().contains("no encryption key"));
    assert_eq!(number(&sql, "select count(*) from queen.messages where queue = 'secret'").await, 0);
    assert_eq!(dead_letters(&without, "open").await.len(), 1);
}

#[tokio::test]
async fn a_key_is_replaced_without_losing_what_the_old_one_protects() {
    let db = database().await;
    let sql = db.client().await;
    let before = holding(db.url(), Some(ONE), None).await;
    encrypt(&before, "q").await;
    push_mark(&before, "q", &["a", "b"]).await;
    before.stop().await;
    let after = holding(db.url(), Some(TWO), Some(ONE)).await;
    push_mark(&after, "q", &["c"]).await;
    let popped = pop(&after, named("q", "p").group("g").batch(10)).await.unwrap();
    assert_eq!(popped.data(), vec![json!({"text": MARK}); 3]);
    let ids = "select count(*) from queen.messages where key_id = (case when transaction_id = 'c' then 'two' else 'one' end)";
    assert_eq!(number(&sql, ids).await, 3);
    // A replay to another queue encrypts with the current key, although that queue does not require encryption.
    ack_all(&after, &popped.messages, &[AckStatus::Dlq; 3]).await;
    let ask = RedriveAsk {
        queue: "q".to_owned(),
        target_queue: Some("elsewhere".to_owned()),
        partition: None,
        group: None,
        from: None,
        to: None,
        error: None,
        shape: None,
        per_second: 1000,
    };
    after.start_redrive(&ask).await.unwrap().unwrap();
    let moved = "select count(*) from queen.messages where queue = 'elsewhere' and key_id = 'two'";
    eventually("all are replayed", async || (number(&sql, moved).await == 3).then_some(())).await;
    let moved = drain(&after, "elsewhere", "p", "g").await;
    assert!(moved.len() == 3 && moved.iter().all(|message| message.json()["text"] == MARK));
    assert_eq!(found(&sql, MARK).await, Vec::<String>::new());
}

#[tokio::test]
async fn without_its_key_a_message_waits_and_its_neighbours_do_not() {
    let db = database().await;
    let sql = db.client().await;
    let before = holding(db.url(), Some(ONE), None).await;
    push_ids(&before, "q", "p", &["plain"]).await;
    encrypt(&before, "q").await;
    push_ids(&before, "q", "p", &["secret", "later"]).await;
    before.stop().await;
    let blind = holding(db.url(), Some(TWO), None).await;
    push_ids(&blind, "q", "neighbour", &["n1", "n2"]).await;
    for auto_ack in [false, true] {
        let group = if auto_ack { "auto" } else { "g" };
        let ask = |request: PopRequest| PopRequest { auto_ack, ..request.group(group).batch(10) };
        // Messages before it are delivered, and no more than those are leased.
        let first = pop(&blind, ask(named("q", "p"))).await.unwrap();
        assert_eq!(first.data(), [json!("plain")]);
        if !auto_ack {
            complete(&blind, &first).await;
        }
        for _ in 0..2 {
            let said = unreadable(&blind, ask(named("q", "p"))).await;
            assert!(said.contains("\"secret\"") && said.contains("\"one\""), "{said}");
        }
        // A pop of any partition gets readable messages, and skips blocked partitions.
        let other = pop(&blind, PopRequest { partitions: 5, ..ask(any("q")) }).await.unwrap();
        assert_eq!(other.data(), [json!("n1"), json!("n2")]);
        assert!(pop(&blind, ask(any("q"))).await.is_none());
        let held =
            format!("select count(*) from queen.leases where consumer_group = '{group}' and partition = 'p'");
        assert_eq!(number(&sql, &held).await, 0, "no lease is left behind");
    }
    let examined = blind.examine().await.unwrap();
    let finding = examined.findings.iter().find(|finding| finding.code == "message_unreadable").unwrap();
    assert!(finding.text.contains("\"one\""), "{}", finding.text);
    blind.stop().await;
    // With the key no message is missing, in any group.
    let seeing = holding(db.url(), Some(TWO), Some(ONE)).await;
    for group in ["g", "auto"] {
        let rest = drain(&seeing, "q", "p", group).await;
        assert_eq!(rest.iter().map(Message::json).collect::<Vec<_>>(), [json!("secret"), json!("later")]);
    }
}

#[tokio::test]
async fn a_message_that_was_changed_is_never_delivered_and_can_be_taken_out_of_the_way() {
    let db = database().await;
    let sql = db.client().await;
    let before = holding(db.url(), Some(ONE), None).await;
    encrypt(&before, "q").await;
    let partition = push_ids(&before, "q", "p", &["a", "b"]).await[0].partition_id;
    before.stop().await;
    // Makes the payload of one message pass for that of another.
    let swapped = "update queen.segments set frames = regexp_replace(frames, '\"transactionId\":\"a\"', '\"transactionId\":\"x\"')";
    assert_eq!(sql.execute(swapped, &[]).await.unwrap(), 1);
    let broker = holding(db.url(), Some(ONE), None).await;
    let said = unreadable(&broker, named("q", "p").batch(10)).await;
    assert!(said.contains("was changed"), "{said}");
    let waiting = named("q", "p").batch(10).wait(Duration::from_secs(20));
    unreadable(&broker, waiting).await;
    let detail = broker.message(partition, "a").await.unwrap().unwrap();
    assert!(detail.encrypted && detail.unreadable.is_some() && detail.payload == "null");
    assert!(broker.delete_message(partition, "a").await.unwrap());
    assert_eq!(data(&broker, named("q", "p").batch(10)).await, [json!("b")]);
}

#[tokio::test]
async fn a_dead_letter_without_its_key_stays_one() {
    let db = database().await;
    let before = holding(db.url(), Some(ONE), None).await;
    encrypt(&before, "q").await;
    let partition = push_ids(&before, "q", "p", &["a"]).await[0].partition_id;
    let popped = pop(&before, named("q", "p").group("g")).await.unwrap();
    ack(&before, &popped.messages[0], AckStatus::Dlq).await;
    before.stop().await;
    let blind = holding(db.url(), None, None).await;
    assert!(matches!(blind.replay_message(partition, "a").await, Err(Error::Unreadable(_))));
    let letters = dead_letters(&blind, "q").await;
    assert!(letters.len() == 1 && letters[0].payload == "null" && letters[0].unreadable.is_some());
    blind.stop().await;
    // A broker that has the key only for reading does not replay it unencrypted either.
    let reading = holding(db.url(), None, Some(ONE)).await;
    assert_eq!(dead_letters(&reading, "q").await[0].payload, "\"a\"");
    assert!(matches!(reading.replay_message(partition, "a").await, Err(Error::NoKey)));
    assert_eq!(dead_letters(&reading, "q").await.len(), 1);
}
