//! Refuses names that differ from a known one only in case, `_` or `-`. Other unknown names are ignored, because clients of other
//! releases send them; a misspelled one would make the request do more than intended.

use std::borrow::Cow;
use std::collections::HashMap;

use queen_protocol::{BadRequest, read_object};
use serde::de::IgnoredAny;

/// Checks the fields of a body.
pub fn refuse_fields(body: &[u8], known: &[&str]) -> Result<(), BadRequest> {
    let fields: HashMap<Cow<'_, str>, IgnoredAny> = read_object(body)?;
    for name in fields.keys().map(AsRef::as_ref).filter(|name| !known.contains(name)) {
        if let Some(meant) = known.iter().find(|known| letters(known).eq(letters(name))) {
            return Err(BadRequest(format!("unknown name {name:?}; did you mean {meant:?}?")));
        }
    }
    Ok(())
}

fn letters(name: &str) -> impl Iterator<Item = char> {
    name.chars().filter(|char| !matches!(char, '_' | '-')).flat_map(char::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_looks_like_a_known_one_is_refused_and_others_are_ignored() {
        let known = ["toEnd", "dryRun"];
        for fields in [r#"{"toEnd":1,"dryRun":2}"#, r#"{"position":0,"dry":1}"#, "{}"] {
            assert_eq!(refuse_fields(fields.as_bytes(), &known), Ok(()), "{fields}");
        }
        for name in ["dryrun", "dry_run", "dry-run", "DRYRUN", "d\\u0072yrun"] {
            let BadRequest(text) =
                refuse_fields(format!(r#"{{"{name}":true}}"#).as_bytes(), &known).unwrap_err();
            assert!(text.contains("did you mean \"dryRun\""), "{text}");
        }
    }
}
