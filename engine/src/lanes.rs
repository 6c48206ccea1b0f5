//! The lanes of a broker. To add one, add a line to the table below; metrics and figures follow.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::Slots;
use crate::message;
use crate::shared::Shared;
use crate::sidecar::{Lane, LaneCounts, LaneSettings, LaneSpread, Operation};

/// What happens to an entry that could not be sent because the database is unreachable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Away {
    /// It waits.
    Waits,
    /// It fails at once if there is a spool, which then takes its messages.
    Spools,
}

macro_rules! lanes {
    ($($lane:ident: $operation:ty, $slots:expr, $away:expr;)*) => {
        pub struct Lanes {
            $(pub $lane: Lane<$operation>,)*
        }

        impl Lanes {
            pub fn new(shared: &Arc<Shared>) -> Self {
                Self { $($lane: lane(shared, $slots, $away),)* }
            }

            /// By kind of entry.
            pub fn counts(&self) -> Vec<(&'static str, LaneCounts)> {
                let mut all = Vec::new();
                $(all.extend(self.$lane.counts());)*
                all
            }

            /// How their flights were spread, by kind of entry.
            pub fn spreads(&self) -> Vec<(&'static str, LaneSpread)> {
                let mut all = Vec::new();
                $(all.extend(self.$lane.spreads());)*
                all
            }

            /// Entries that have not left yet. Those of one lane wait together, whatever their kind.
            pub fn waiting(&self, now: Instant) -> Vec<(&'static str, usize)> {
                vec![$((self.$lane.name(), self.$lane.pressure(now).waiting)),*]
            }
        }
    };
}

lanes! {
    open: message::open::Open, |slots| slots.push, Away::Spools;
    push: message::parcel::Parcel, |slots| slots.push, Away::Spools;
    defer: message::defer::Request, |slots| slots.push, Away::Spools;
    defer_ack: message::defer_ack::DeferredAck, |slots| slots.ack, Away::Waits;
    fetch: message::fetch::Fetch, |slots| slots.pop, Away::Waits;
    consume: message::consume::Consume, |slots| slots.pop.max(slots.ack), Away::Waits;
    locate: message::locate::Locate, |slots| slots.ack, Away::Waits;
    renew: message::renew::Renew, |slots| slots.renew, Away::Waits;
    transaction: message::transaction::Transaction, |slots| slots.transaction, Away::Waits;
}

fn lane<O: Operation<Context = Shared>>(
    shared: &Arc<Shared>,
    slots: impl Fn(&Slots) -> usize,
    away: Away,
) -> Lane<O> {
    let config = &shared.config;
    let settings = LaneSettings {
        waiting_max: config.waiting_max,
        items_max: config.flight_items_max,
        bytes_max: config.flight_bytes_max,
        slots: slots(&config.slots),
        linger: if O::ALONE { Duration::ZERO } else { config.linger },
        retry_for: config.retry_for,
        waits_for_database: away == Away::Waits || shared.spool.is_none(),
    };
    Lane::new(shared.clone(), shared.connections.clone(), shared.tasks.clone(), &settings)
}
