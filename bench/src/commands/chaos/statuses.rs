//! Counts the responses of each route by status.

use std::collections::BTreeMap;

use crate::report::Table;

#[derive(Debug, Default)]
pub struct Statuses(BTreeMap<(String, Option<u16>), u64>);

impl Statuses {
    /// None if no response arrived.
    pub fn add(&mut self, route: &str, status: Option<u16>) {
        *self.0.entry((route.to_owned(), status)).or_default() += 1;
    }

    pub fn merge(&mut self, other: &Statuses) {
        for (key, count) in &other.0 {
            *self.0.entry(key.clone()).or_default() += count;
        }
    }

    pub fn table(&self) -> Table {
        let mut table = Table::new(2, ["route", "answer", "times"]);
        for ((route, status), count) in &self.0 {
            let status = status.map_or("none".to_owned(), |status| status.to_string());
            table.push(vec![route.clone(), status, count.to_string()]);
        }
        table
    }
}
