//! Turns measurements into tables, charts and a JSON file. Measures nothing itself.

mod comparison;
mod contender;
mod format;
mod goals;
mod markdown;
mod plots;
mod summary;
mod table;
mod tables;

pub use comparison::{Comparison, compare};
pub use contender::Contender;
pub use format::{millis, significant, thousands, times};
pub use markdown::{markdown, section};
pub use plots::plot;
#[cfg(test)]
pub use summary::tests;
pub use summary::{Row, Spread, Summary};
pub use table::Table;
pub use tables::{
    comparison as comparison_table, costs as cost_table, memory as memory_table, results as result_table,
};
