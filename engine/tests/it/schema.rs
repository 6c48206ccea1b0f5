//! The tables after all migrations, compared with the snapshot for readers of `engine/sql`, and with
//! the table of queue options.

use std::fmt::Write;
use std::path::Path;

use queen_protocol::{Configure, OPTIONS, QueueOption};
use queen_testkit::database;
use serde_json::{Map, Value, json};

use crate::support::{engine, number};

/// Tables and views with columns, indexes and constraints. Extents are left out, because they are created and dropped
/// while a broker runs.
const SHAPE: &str = "
    select c.relname::text, c.relkind = 'v',
           array(select a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
                        || case when a.attnotnull then ' not null' else '' end
                        || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '')
                        || case when a.attidentity <> '' then ' identity' else '' end
                 from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
                 where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
                 order by a.attnum),
           array(select pg_get_constraintdef(k.oid) from pg_constraint k
                 where k.conrelid = c.oid and k.contype in ('c', 'f', 'p', 'u') order by k.contype desc, k.conname),
           array(select regexp_replace(pg_get_indexdef(i.indexrelid), '^.* USING ', '') from pg_index i
                 where i.indrelid = c.oid and not exists (select 1 from pg_constraint k where k.conindid = i.indexrelid)
                 order by 1)
    from pg_class c
    where c.relnamespace = 'queen'::regnamespace and c.relkind in ('r', 'p', 'v') and not c.relispartition
    order by c.relkind = 'v', c.relname";

#[tokio::test]
async fn the_snapshot_of_the_schema_is_up_to_date() {
    let db = database().await;
    let _broker = engine(db.url()).await;
    let mut shape = String::from(
        "The tables and views of schema queen after all migrations.\nWritten by engine/tests/it/schema.rs.\n",
    );
    for row in db.client().await.query(SHAPE, &[]).await.unwrap() {
        let kind = if row.get(1) { "view" } else { "table" };
        write!(shape, "\n{kind} {}\n", row.get::<_, &str>(0)).unwrap();
        for (what, lines) in
            [("", 2), ("", 3), ("index ", 4)].map(|(what, at)| (what, row.get::<_, Vec<String>>(at)))
        {
            for line in lines {
                writeln!(shape, "    {what}{}", line.split_whitespace().collect::<Vec<_>>().join(" "))
                    .unwrap();
            }
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("sql/schema.snapshot.txt");
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    if known != shape {
        std::fs::write(&path, shape).unwrap();
        panic!(
            "{} was out of date and is written anew: look at the difference, and commit it",
            path.display()
        );
    }
}

#[tokio::test]
async fn every_option_is_a_column_with_its_default_and_room_for_its_range() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let sql = "insert into queen.queues as q (name) values ('new')
               returning (to_jsonb(q) - '{id,name,namespace,task,created_at}'::text[])::text";
    let row = db.client().await.query_one(sql, &[]).await.unwrap();
    let columns: Map<String, Value> = serde_json::from_str(row.get(0)).unwrap();
    let defaults = OPTIONS.iter().map(|option| (option.column.to_owned(), option.default.clone()));
    assert_eq!(columns, defaults.collect::<Map<_, _>>(), "columns of queen.queues and the table of options");

    let bounds: [fn(&QueueOption) -> i64; 2] = [|option| option.min, |option| option.max];
    for bound in bounds {
        let value = |option: &QueueOption| match option.default.is_boolean() {
            true => Value::Bool(bound(option) == 1),
            false => bound(option).into(),
        };
        let options: Map<String, Value> =
            OPTIONS.iter().map(|option| (option.name.to_owned(), value(option))).collect();
        let body = json!({"queue": "q", "options": options}).to_string();
        let stored = broker.configure(&Configure::parse(body.as_bytes()).unwrap()).await.unwrap();
        assert_eq!(serde_json::to_value(&stored.options).unwrap(), Value::Object(options));
    }
}

#[tokio::test]
async fn generations_never_go_down_also_for_rows_that_0_1_0_has_written() {
    let db = database().await;
    let _engine = engine(db.url()).await;
    let sql = db.client().await;
    // There, a row's generation was its version by 16.
    let lower = "select count(*) from generate_series(0, 5000) v where queen.next_generation(v / 16, v) < (v + 1) / 64
                     or queen.next_generation(v / 16, v) < v / 16";
    assert_eq!(number(&sql, lower).await, 0);
    let begun = "select count(*) from generate_series(0, 6399) v where queen.next_generation(7, v) = 8";
    assert_eq!(number(&sql, begun).await, 100, "one for every 64 versions");
}
