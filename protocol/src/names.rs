//! Names: queues, partitions, consumer groups and transaction ids. Checked at the door, because one bad name
//! inside a merged batch would fail its neighbours.

use crate::BadRequest;

/// The consumer group of everybody who names none.
pub const QUEUE_MODE: &str = "__QUEUE_MODE__";

/// The columns are as wide, and an index entry of four-byte characters still fits a page.
const NAME_CHARS_MAX: usize = 255;

/// Accepts any text up to 255 characters, the empty one included; PostgreSQL cannot hold a NUL.
pub fn check_name(what: &str, name: &str) -> Result<(), BadRequest> {
    if name.len() > NAME_CHARS_MAX && name.chars().count() > NAME_CHARS_MAX {
        return Err(BadRequest(format!("{what} is longer than {NAME_CHARS_MAX} characters")));
    }
    if name.contains('\0') {
        return Err(BadRequest(format!("{what} must not contain a NUL character")));
    }
    Ok(())
}

/// Of a queue or partition that may come into being. `.` and `..` are steps in a path to browsers, proxies and most URL parsers,
/// percent-encoded as well, so a route with such a name would reach something else.
pub fn check_new_name(what: &str, name: &str) -> Result<(), BadRequest> {
    match name {
        "." | ".." => {
            Err(BadRequest(format!("{what} must not be {name:?}: it cannot stand in the path of a URL")))
        }
        _ => check_name(what, name),
    }
}

pub fn check_transaction_id(id: &str) -> Result<(), BadRequest> {
    check_name("transactionId", id)?;
    if id.is_empty() { Err(BadRequest::new("transactionId must not be empty")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_be_anything_a_person_types_up_to_255_characters() {
        for name in ["", "orders", "a b/c:d", "🐝", &"ü".repeat(255)] {
            assert_eq!(check_name("queue", name), Ok(()));
        }
        assert!(check_name("queue", &"x".repeat(256)).is_err());
        assert!(check_name("queue", "a\0b").is_err());
        assert!(check_name("queue", "..").is_ok(), "one that exists can be read");
        for name in [".", "..", "a\0b"] {
            assert!(check_new_name("queue", name).is_err());
        }
        assert!(check_new_name("queue", "...").is_ok());
    }
}
