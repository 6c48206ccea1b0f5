//! The state of a partition, as tracked by its only reader and writer. Pure.

use anyhow::{Context, Result, ensure};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;
use uuid::Uuid;

/// # Invariants
/// `cursor` ≤ `head`; both equal PostgreSQL's values as long as nothing else touches the partition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    pub id: Uuid,
    pub head: i64,
    pub cursor: i64,
}

impl Place {
    pub fn new(id: Uuid, head: i64) -> Place {
        Place { id, head, cursor: 0 }
    }

    pub fn unread(&self) -> i64 {
        self.head - self.cursor
    }

    pub fn ids(places: &[Place]) -> Vec<Uuid> {
        places.iter().map(|place| place.id).collect()
    }
}

/// A leased range of a partition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lease {
    pub id: Uuid,
    pub first: i64,
    pub last: i64,
}

/// Checks that every element of an array response has this status. Returns the elements of another array in the order of the
/// request; positions count from 1.
pub fn in_order(
    call: &str,
    asked: usize,
    expected_status: i32,
    (positions, statuses): (&[i32], &[i32]),
    values: &[i64],
) -> Result<Vec<i64>> {
    let mut ordered = vec![None; asked];
    for ((&position, &status), &value) in positions.iter().zip(statuses).zip(values) {
        ensure!(status == expected_status, "{call} returned status {status}");
        let place = usize::try_from(position - 1).ok().and_then(|index| ordered.get_mut(index));
        *place.with_context(|| format!("{call} returned position {position} of {asked}"))? = Some(value);
    }
    let ordered: Option<Vec<i64>> = ordered.into_iter().collect();
    ordered.with_context(|| format!("{call} returned {} of {asked}", positions.len()))
}

/// An array of a response; an empty one is null.
pub fn list<'a, T: FromSql<'a>>(row: &'a Row, column: &str) -> Result<Vec<T>> {
    Ok(row.try_get::<_, Option<Vec<T>>>(column)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_put_in_the_order_of_the_question() {
        let ordered = in_order("push", 3, 0, (&[3, 1, 2], &[0, 0, 0]), &[30, 10, 20]).unwrap();
        assert_eq!(ordered, [10, 20, 30]);
    }

    #[test]
    fn less_than_was_asked_for_is_an_error() {
        assert!(in_order("push", 2, 0, (&[1], &[0]), &[10]).is_err());
        assert!(in_order("push", 2, 0, (&[1, 1], &[0, 0]), &[10, 10]).is_err());
        assert!(in_order("push", 1, 0, (&[2], &[0]), &[10]).is_err());
        let error = in_order("lease", 1, 0, (&[1], &[2]), &[10]).unwrap_err();
        assert_eq!(error.to_string(), "lease returned status 2");
    }
}
