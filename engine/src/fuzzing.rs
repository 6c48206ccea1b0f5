//! Functions that read unchecked bytes, exported for `fuzz/`. Not part of the engine's interface.

pub use crate::log::Partition;
pub use crate::log::frames::{Frame, read_string, with_ids, write_frame};
pub use crate::log::ids::{TransactionHash, message_id};
pub use crate::log::segments::Segment;
pub use crate::pop::answer::{Delivery, Written, write_answer};
pub use crate::spool::files::{Files, Read};
pub use crate::spool::{Spooled, SpooledItem, record};
