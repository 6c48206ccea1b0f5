//! The temporary group of `--watch`. If it stayed, it would hold back the removal of completed messages for good.

use anyhow::{Error, Result};
use queen_client::{ErrorKind, Queen};
use uuid::Uuid;

use super::interrupt::Interrupt;
use super::output::note;

#[derive(Debug)]
pub struct Guest {
    name: String,
    queue: String,
}

impl Guest {
    /// Deletes the group before it exists: a token that may not do that could not clean up at the end either.
    pub async fn announce(queen: &Queen, queue: &str) -> Result<Self> {
        let name = format!("watch-{}", Uuid::now_v7().simple());
        queen.admin().delete_group_in(&name, queue).await.map_err(|error| match error.kind() {
            ErrorKind::Forbidden => Error::new(error).context(
                "--watch deletes its group at the end, and this token may not delete groups; use --group instead",
            ),
            _ => error.into(),
        })?;
        Ok(Self { name, queue: queue.to_owned() })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub async fn leave(self, queen: &Queen, interrupt: &mut Interrupt) {
        match interrupt.or(queen.admin().delete_group_in(&self.name, &self.queue)).await {
            Some(Ok(_)) => {}
            Some(Err(error)) => self.abandon(&error.to_string()),
            None => self.abandon("interrupted"),
        }
    }

    pub fn abandon(self, why: &str) {
        note(format!("group {} was not deleted: {why}", self.name));
    }
}
