//! Maintenance: while an administrator works on the database, pushes go to the spool, or pops find nothing. All
//! brokers learn of it within a second.

use crate::Engine;
use crate::db::control;
use crate::error::Error;
use crate::spool::SpoolError;

/// What is switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Maintenance {
    pub push: bool,
    pub pop: bool,
}

impl Engine {
    /// As this broker knows it, which is enough to serve requests.
    pub fn maintenance(&self) -> Maintenance {
        let load = &self.shared.load;
        Maintenance { push: load.maintenance(), pop: load.pop_maintenance() }
    }

    /// As the database has it, or, while that cannot be reached, as this broker knows it.
    pub async fn fresh_maintenance(&self) -> Maintenance {
        if let Ok(pulse) = control::pulse(&self.shared.connections).await {
            self.shared.load.feel(&pulse);
        }
        self.maintenance()
    }

    pub async fn set_push_maintenance(&self, on: bool) -> Result<Maintenance, Error> {
        if on && self.shared.spool.is_none() {
            return Err(Error::Spool(SpoolError::None));
        }
        control::set_setting(&self.shared.connections, "maintenance", on).await?;
        Ok(self.fresh_maintenance().await)
    }

    pub async fn set_pop_maintenance(&self, on: bool) -> Result<Maintenance, Error> {
        control::set_setting(&self.shared.connections, "pop_maintenance", on).await?;
        Ok(self.fresh_maintenance().await)
    }
}
