//! Why a consumer stops by itself, before it is interrupted.

use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug, Clone, Default)]
pub struct Cause(Arc<Mutex<Option<anyhow::Error>>>);

impl Cause {
    /// Keeps the first cause.
    pub fn note(&self, error: impl Into<anyhow::Error>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error.into());
    }

    pub fn is_noted(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub fn take(&self) -> Option<anyhow::Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
