//! A list with a limit. An item takes far more memory than the few bytes of JSON that it is parsed from, so items
//! beyond the limit are counted and not kept.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};

use crate::BadRequest;

#[derive(Debug)]
pub struct Bounded<T, const MAX: usize> {
    kept: Vec<T>,
    count: usize,
}

impl<T, const MAX: usize> Default for Bounded<T, MAX> {
    fn default() -> Self {
        Self { kept: Vec::new(), count: 0 }
    }
}

impl<T, const MAX: usize> Bounded<T, MAX> {
    /// All items, or an error that says how many there are. `what`: "items in one push", for example.
    pub fn checked(self, what: &str) -> Result<Vec<T>, BadRequest> {
        match self.count > MAX {
            true => Err(BadRequest(format!("{} {what}, at most {MAX} are taken", self.count))),
            false => Ok(self.kept),
        }
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Bounded<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(List(PhantomData))
    }
}

struct List<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for List<T, MAX> {
    type Value = Bounded<T, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut kept = Vec::new();
        while kept.len() < MAX {
            match list.next_element()? {
                Some(item) => kept.push(item),
                None => return Ok(Bounded { count: kept.len(), kept }),
            }
        }
        let mut count = MAX;
        while list.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(Bounded { kept, count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_is_counted_and_not_kept() {
        let read = |text| serde_json::from_str::<Bounded<u8, 3>>(text).unwrap();
        assert_eq!(read("[1,2,3]").checked("things").unwrap(), [1, 2, 3]);
        let many = read(r#"[1,2,3,"anything",[5]]"#);
        assert_eq!(many.kept.len(), 3);
        assert_eq!(many.checked("things").unwrap_err().0, "5 things, at most 3 are taken");
        assert!(serde_json::from_str::<Bounded<u8, 3>>("{}").is_err());
        assert!(serde_json::from_str::<Bounded<u8, 3>>("[1,2,3,4").is_err());
    }
}
