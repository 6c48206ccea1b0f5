//! The tables as they are after all migrations, compared with what a reader of `engine/sql` is shown.

use std::fmt::Write;
use std::path::Path;

use queen_testkit::database;

use crate::support::engine;

/// Tables and views with columns, indexes and constraints. Extents are made and dropped while a broker runs.
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
