//! Turns what was measured into tables, pictures and a JSON file. Measures nothing itself.

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
pub use markdown::markdown;
pub use plots::plot;
pub use summary::Row;
pub use tables::{
    comparison as comparison_table, costs as cost_table, memory as memory_table, results as result_table,
};
