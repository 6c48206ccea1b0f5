//! The listener for errors that belong to no call's result.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::error::Error;

type Hear = dyn Fn(&Error) + Send + Sync;

#[derive(Clone, Default)]
pub struct OnError(Option<Arc<Hear>>);

impl OnError {
    pub fn new(hear: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hear)))
    }

    /// Without a listener, `log` reports the error. A panic of the listener is contained, because the caller has more messages to
    /// deal with.
    pub fn tell(&self, error: &Error, log: impl FnOnce()) {
        if let Some(hear) = &self.0 {
            // The panic hook has printed it.
            let _ = catch_unwind(AssertUnwindSafe(|| hear(error)));
        } else {
            log();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_that_panics_is_on_its_own() {
        OnError::new(|error| panic!("no {error}"))
            .tell(&Error::bad_use("x"), || panic!("it is not logged as well"));
    }

    #[test]
    fn errors_without_a_listener_are_logged() {
        let mut logged = false;
        OnError::default().tell(&Error::bad_use("x"), || logged = true);
        assert!(logged);
    }
}
