//! Names: queues, partitions, consumer groups and transaction ids. They are checked on arrival, because one bad name in
//! a merged batch would fail the other requests in it.

use crate::BadRequest;

/// The consumer group of all consumers that name none.
pub const QUEUE_MODE: &str = "__QUEUE_MODE__";

/// The columns have the same limit. An index entry of that many four-byte characters still fits a page.
const NAME_CHARS_MAX: usize = 255;

/// Accepts any text up to 255 characters, including the empty one. PostgreSQL cannot store a NUL.
pub fn check_name(what: &str, name: &str) -> Result<(), BadRequest> {
    if name.len() > NAME_CHARS_MAX && name.chars().count() > NAME_CHARS_MAX {
        return Err(BadRequest(format!("{what} is longer than {NAME_CHARS_MAX} characters")));
    }
    if name.contains('\0') {
        return Err(BadRequest(format!("{what} must not contain a NUL character")));
    }
    Ok(())
}

/// For a queue or partition that the request may create. Browsers, proxies and most URL parsers treat `.` and `..` in a
/// path as steps, even percent-encoded, so a route with such a name would reach something else.
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
