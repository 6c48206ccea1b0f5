//! What a pop requests. The three routes become one request.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Which partitions a pop may claim from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PopFilter {
    Queue {
        queue: String,
    },
    Partition {
        queue: String,
        partition: String,
    },
    /// Every queue with this namespace and this task; `None` matches any.
    Labels {
        namespace: Option<String>,
        task: Option<String>,
    },
}

/// Where a group that is new to a partition starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subscription {
    All,
    New,
    /// Microseconds since 1970.
    From(i64),
}

impl Subscription {
    pub fn word(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::New => "new",
            Self::From(_) => "timestamp",
        }
    }

    /// `from` takes precedence over `mode`. An unknown word means all messages.
    pub fn parse(mode: Option<&str>, from: Option<&str>, default: Self) -> Result<Self, crate::BadRequest> {
        match (from.filter(|from| !from.is_empty()), mode.filter(|mode| !mode.is_empty())) {
            (Some("now"), _) => Ok(Self::New),
            (Some(time), _) => crate::parse_time("subscriptionFrom", time).map(Self::From),
            (None, Some("new" | "new-only" | "new_only" | "newonly")) => Ok(Self::New),
            (None, Some(_)) => Ok(Self::All),
            (None, None) => Ok(default),
        }
    }
}

/// The sender of a pop, to show who holds a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// `None` without access control, or if the token has no subject.
    pub name: Option<Arc<str>>,
    pub address: IpAddr,
}

#[derive(Debug, Clone)]
pub struct PopRequest {
    pub filter: PopFilter,
    pub group: String,
    pub batch: u32,
    pub partitions: u32,
    pub auto_ack: bool,
    /// `None`: respond at once. `Some`: park for at most this long.
    pub wait: Option<Duration>,
    /// 0: the queue's lease time.
    pub lease_seconds: i32,
    pub subscription: Subscription,
    /// The word with which the request chose the start, to be shown. `None`: our own word is shown.
    pub mode: Option<String>,
    /// Leave out fields of a message that are the same as in the previous message.
    pub brief: bool,
    pub holder: Option<Holder>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_goes_before_a_mode_and_silence_is_the_default() {
        let parse = |mode, from| Subscription::parse(mode, from, Subscription::All);
        assert_eq!(parse(Some("all"), Some("now")), Ok(Subscription::New));
        assert_eq!(parse(Some("new-only"), None), Ok(Subscription::New));
        assert_eq!(parse(Some("from_beginning"), Some("")), Ok(Subscription::All));
        assert_eq!(parse(None, Some("1970-01-01T00:00:01Z")), Ok(Subscription::From(1_000_000)));
        assert!(parse(None, Some("soon")).is_err());
        assert_eq!(Subscription::parse(None, None, Subscription::New), Ok(Subscription::New));
    }
}
