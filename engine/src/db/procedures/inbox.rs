//! The procedures of the inbox, for the one session that moves its rows.

use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};
use uuid::Uuid;

use super::Position;
use crate::db::{Connection, Error};

/// Prepared only on the connection that leads.
pub struct InboxStatements {
    look: Statement,
    take: Statement,
    clear: Statement,
}

/// A message that waits in the inbox.
pub struct InboxRow {
    pub xid: i64,
    pub number: i64,
    pub message_id: Uuid,
    pub trace_id: Option<Uuid>,
    pub queue: String,
    pub partition: String,
    pub transaction_id: Option<String>,
    pub payload: String,
}

impl InboxStatements {
    pub async fn prepare(db: &Connection) -> Result<Self, Error> {
        let prepare = async {
            let (look, take, clear) = tokio::try_join!(
                db.client.prepare("select * from queen.look_inbox($1, $2)"),
                db.client.prepare("select * from queen.take_inbox($1, $2, $3, $4)"),
                db.client.prepare("select queen.clear_inbox($1, $2, $3)"),
            )?;
            Ok(Self { look, take, clear })
        };
        db.within("prepare", prepare).await
    }

    /// `from`: `None` = everything. Returns where the next look starts, and transactions in the order of their
    /// commits.
    pub async fn look(
        &self,
        db: &Connection,
        from: Option<&Position>,
    ) -> Result<(Position, Vec<i64>), Error> {
        let (xmax, running) = match from {
            Some(position) => (Some(position.xmax), position.running.as_slice()),
            None => (None, [].as_slice()),
        };
        let row = db.within("queen.look_inbox", db.client.query_one(&self.look, &[&xmax, &running])).await?;
        Ok((Position { xmax: row.get(0), running: row.get(1) }, row.get(2)))
    }

    /// The next rows of these transactions, and whether there are more.
    pub async fn take(
        &self,
        db: &Connection,
        xids: &[i64],
        after: i64,
        limit: i32,
        bytes: i64,
    ) -> Result<(Vec<InboxRow>, bool), Error> {
        let parameters: [&(dyn ToSql + Sync); 4] = [&xids, &after, &limit, &bytes];
        let answers = db.within("queen.take_inbox", db.client.query(&self.take, &parameters)).await?;
        let row = |row: &Row| {
            Some(InboxRow {
                xid: row.get::<_, Option<i64>>(0)?,
                number: row.get(1),
                message_id: row.get(2),
                trace_id: row.get(3),
                queue: row.get(4),
                partition: row.get(5),
                transaction_id: row.get(6),
                payload: row.get(7),
            })
        };
        let taken: Vec<InboxRow> = answers.iter().filter_map(row).collect();
        let more = taken.len() < answers.len();
        Ok((taken, more))
    }

    /// Runs in the transaction that appends the rows. `false`: some of them no longer exist.
    pub async fn clear(&self, db: &Connection, rows: &[InboxRow], done: &[i64]) -> Result<bool, Error> {
        let xids: Vec<i64> = rows.iter().map(|row| row.xid).collect();
        let numbers: Vec<i64> = rows.iter().map(|row| row.number).collect();
        let parameters: [&(dyn ToSql + Sync); 3] = [&xids, &numbers, &done];
        let row = db.within("queen.clear_inbox", db.client.query_one(&self.clear, &parameters)).await?;
        let cleared: i64 = row.get(0);
        Ok(usize::try_from(cleared).is_ok_and(|cleared| cleared == rows.len()))
    }
}

pub async fn refuse_inbox(db: &Connection, row: &InboxRow, reason: &str) -> Result<(), Error> {
    let sql = "select queen.refuse_inbox($1, $2, $3)";
    let parameters: [&(dyn ToSql + Sync); 3] = [&row.xid, &row.number, &reason];
    db.within("queen.refuse_inbox", db.client.execute(sql, &parameters)).await.map(drop)
}

pub async fn inbox_is_led(db: &Connection) -> Result<bool, Error> {
    asks(db, "queen.inbox_is_led", "select queen.inbox_is_led()").await
}

/// From now on this session moves rows, unless another one does, and is notified of them.
pub async fn lead_inbox(db: &Connection) -> Result<bool, Error> {
    // A machine that vanishes without a word must not stay the leader for hours, and one locked partition must not
    // keep the others waiting.
    let session = "set tcp_keepalives_idle = 5; set tcp_keepalives_interval = 5; set tcp_keepalives_count = 3; \
                   set lock_timeout = 100; listen queen_inbox";
    db.within("listen", db.client.batch_execute(session)).await?;
    asks(db, "queen.lead_inbox", "select queen.lead_inbox()").await
}

/// `false`: not now, because a commit is under way.
pub async fn rest_inbox(db: &Connection) -> Result<bool, Error> {
    asks(db, "queen.rest_inbox", "select queen.rest_inbox()").await
}

pub async fn wake_inbox(db: &Connection) -> Result<(), Error> {
    asks(db, "queen.wake_inbox", "select queen.wake_inbox()").await.map(drop)
}

async fn asks(db: &Connection, procedure: &'static str, sql: &str) -> Result<bool, Error> {
    Ok(db.within(procedure, db.client.query_one(sql, &[])).await?.get(0))
}
