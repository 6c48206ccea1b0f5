//! The group of who only looks on. It is nobody's afterwards, and would hold back the removal of completed messages for ever.

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
    /// Deletes it before it has come: whoever may not do that could not do it in the end either.
    pub async fn announce(queen: &Queen, queue: &str) -> Result<Self> {
        let name = format!("watch-{}", Uuid::now_v7().simple());
        queen.admin().delete_group_in(&name, queue).await.map_err(|error| match error.kind() {
            ErrorKind::Forbidden => Error::new(error).context(
                "--watch deletes its group in the end, which this token may not do; name a --group instead",
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
        note(format!("the group {} is left behind: {why}", self.name));
    }
}
