//! What Queen and its clients share: requests, responses, queue options, error codes, times. It parses and writes JSON.
//! It knows no socket, no database and no clock.

mod ack;
mod bounded;
mod configure;
mod error;
mod lease;
mod names;
mod nearest;
mod object;
mod operation;
mod options;
mod pop;
mod push;
mod time;
mod trace;
mod transaction;
pub mod units;

pub use ack::{AckBatchBody, AckBody, AckItem, AckResult, AckStatus};
pub use configure::Configure;
pub use error::{BadRequest, ErrorCode};
pub use lease::{LeaseId, RenewBody, Renewed};
pub use names::{QUEUE_MODE, check_name, check_new_name, check_transaction_id};
pub use nearest::nearest;
pub use object::read_object;
pub use operation::{OperationStats, OperationStatus, Queued, QueuedOperation, SystemHealth, Ticket};
pub use options::{OPTIONS, QueueOption, QueueOptions, Section, Unit, check_option};
pub use pop::{Holder, PopFilter, PopRequest, Subscription};
pub use push::{PushBody, PushItem, PushResult, PushStatus};
pub use time::{format_micros, format_millis, parse_time};
pub use trace::{Trace, TraceParent};
pub use transaction::{Operation, TransactionBody, TransactionOutcome, TransactionResult};
