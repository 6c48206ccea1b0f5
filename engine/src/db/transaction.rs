//! A transaction of several statements on one connection, whose commit is never in doubt for longer than it must.

use std::time::Duration;

use tokio_postgres::SimpleQueryMessage;

use super::connections::Connection;
use super::control;
use super::{Connector, Error};
use crate::clock;

const ASK_AGAIN: Duration = Duration::from_millis(100);

/// The database's name for a transaction. Only within one life of the server: numbers that left no trace on disk are given
/// away again after a crash, and a standby that takes over counts on its own.
pub struct Number(String);

pub async fn begin(db: &Connection) -> Result<Number, Error> {
    start(db, "").await
}

/// None of its statements waits longer than this for a lock.
pub async fn begin_within(db: &Connection, lock_wait: Duration) -> Result<Number, Error> {
    start(db, &format!("set local lock_timeout = {}; ", lock_wait.as_millis().max(1))).await
}

async fn start(db: &Connection, settings: &str) -> Result<Number, Error> {
    let text = format!("begin; {settings}select pg_current_xact_id()::text");
    db.enter_transaction();
    let begin = db.client.simple_query(&text);
    let answers = match db.within("begin", begin).await {
        Ok(answers) => answers,
        Err(error) => {
            // It may have begun.
            rollback(db).await;
            return Err(error);
        }
    };
    let number = answers.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    Ok(Number(number.unwrap_or_default()))
}

/// A connection that cannot even roll back stays in its transaction, and is closed when it is given back.
pub async fn rollback(db: &Connection) {
    if db.within("rollback", db.client.batch_execute("rollback")).await.is_ok() {
        db.leave_transaction();
    }
}

/// `Error::Lost` if it was rolled back, `Error::Unknown` if nobody could be asked for as long as patience lasts, or nobody
/// knows any more.
pub async fn commit(
    db: &Connection,
    connector: &Connector,
    number: &Number,
    patience: Duration,
) -> Result<(), Error> {
    match db.within("commit", db.client.batch_execute("commit")).await {
        Err(Error::Lost(_)) => confirm(connector, &number.0, db, patience).await,
        // A commit that is refused rolls back.
        answered => {
            db.leave_transaction();
            answered
        }
    }
}

/// The connection broke during the commit: only the database knows. Its process is ended, so that the commit cannot come later
/// and its locks are free. Asked by transaction number, the server then says what became of it as long as it lives.
async fn confirm(
    connector: &Connector,
    number: &str,
    db: &Connection,
    patience: Duration,
) -> Result<(), Error> {
    let started = clock::now();
    loop {
        let asked =
            tokio::time::timeout(patience, control::transaction_status(connector, number, db.backend));
        match asked.await.unwrap_or_else(|_| Err(Error::Unreachable("no answer".to_owned()))) {
            Ok((_, now)) if now != db.life => return Err(Error::Unknown),
            Ok((Some(status), _)) if status == "committed" => return Ok(()),
            Ok((Some(status), _)) if status == "aborted" => {
                return Err(Error::Lost("rolled back".to_owned()));
            }
            _ if clock::now() - started > patience => return Err(Error::Unknown),
            _ => tokio::time::sleep(ASK_AGAIN).await,
        }
    }
}
