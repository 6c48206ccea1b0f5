//! A transaction of several statements on one connection: [`run`] begins it, and commits or rolls back. The outcome of
//! its commit is in doubt no longer than necessary.

use std::time::Duration;

use tokio_postgres::SimpleQueryMessage;

use super::connections::{Connection, Connections};
use super::{Connector, Error, server};
use crate::clock;

const ASK_AGAIN: Duration = Duration::from_millis(100);

/// The database's number for a transaction. Valid only within one incarnation of the server: after a crash, numbers
/// that left no trace on disk are used again, and a standby that takes over counts on its own.
pub struct Number(String);

/// Runs `work` in a transaction, which is committed if `work` succeeds and rolled back if it fails. No statement in it
/// waits longer for a lock than `lock_wait`; `None`: as long as `DB_LOCK_TIMEOUT` allows.
///
/// The error is that of the work, or of a statement around it: [`Error::RolledBack`] if nothing was committed after all,
/// [`Error::Unknown`] if that could not be found out.
///
/// # Cancel safety
/// If dropped, the connection is closed when it is given back. The commit may have been sent by then, so callers run
/// in tasks that are not dropped.
pub async fn run<T, E: From<Error>>(
    connections: &Connections,
    db: &Connection,
    lock_wait: Option<Duration>,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let number = match lock_wait {
        None => begin(db).await?,
        Some(time) => begin_within(db, time).await?,
    };
    match work.await {
        Ok(done) => {
            commit(db, connections.connector(), &number, connections.patience()).await?;
            Ok(done)
        }
        Err(error) => {
            rollback(db).await;
            Err(error)
        }
    }
}

async fn begin(db: &Connection) -> Result<Number, Error> {
    start(db, "").await
}

/// None of its statements waits longer than this for a lock.
async fn begin_within(db: &Connection, lock_wait: Duration) -> Result<Number, Error> {
    start(db, &format!("set local lock_timeout = {}; ", lock_wait.as_millis().max(1))).await
}

async fn start(db: &Connection, settings: &str) -> Result<Number, Error> {
    let text = format!("begin; {settings}select pg_current_xact_id()::text");
    db.enter_transaction();
    let begin = db.client.simple_query(&text);
    let answers = match db.within("begin", begin).await {
        Ok(answers) => answers,
        Err(error) => {
            // The transaction may have begun.
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
async fn rollback(db: &Connection) {
    if db.within("rollback", db.client.batch_execute("rollback")).await.is_ok() {
        db.leave_transaction();
    }
}

/// `Error::RolledBack` if the connection was lost and nothing was committed, `Error::Unknown` if the database could
/// not be asked within `patience`, or no longer knows.
async fn commit(
    db: &Connection,
    connector: &Connector,
    number: &Number,
    patience: Duration,
) -> Result<(), Error> {
    match db.within("commit", db.client.batch_execute("commit")).await {
        Err(error) if error.is_outcome_unknown() => confirm(connector, &number.0, db, patience).await,
        // A commit that is refused rolls back.
        answered => {
            db.leave_transaction();
            answered
        }
    }
}

/// The connection broke during the commit, so only the database knows its outcome. The backend is ended first, so that
/// it cannot commit later and its locks are free. The server then reports the outcome by transaction number, for as
/// long as it runs.
async fn confirm(
    connector: &Connector,
    number: &str,
    db: &Connection,
    patience: Duration,
) -> Result<(), Error> {
    let started = clock::now();
    loop {
        let asked = tokio::time::timeout(patience, server::transaction_status(connector, number, db.backend));
        match asked.await {
            Ok(Ok((_, now))) if now != db.incarnation.name() => return Err(Error::Unknown),
            Ok(Ok((Some(status), _))) if status == "committed" => return Ok(()),
            Ok(Ok((Some(status), _))) if status == "aborted" => return Err(Error::RolledBack),
            _ if clock::now() - started > patience => return Err(Error::Unknown),
            _ => tokio::time::sleep(ASK_AGAIN).await,
        }
    }
}
