//! The results of one broker after its series.

use serde::Serialize;

use super::summary::{Row, Spread, Summary};
use crate::measure::Memory;
use crate::series::Series;

#[derive(Debug, Serialize)]
pub struct Contender {
    /// Its command or URL.
    pub source: String,
    pub version: Option<String>,
    pub postgres_version: Option<String>,
    pub summaries: Vec<Summary>,
    /// Memory of the broker after each series.
    pub resident_mb: Option<Spread>,
    pub peak_mb: Option<Spread>,
    pub notes: Vec<String>,
    pub violations: Vec<String>,
    pub error_texts: Vec<String>,
}

impl Contender {
    /// `budget` is a separate series, of which only the late costs count.
    pub fn of(source: String, runs: Vec<Series>, budget: Option<Series>) -> Contender {
        let memory: Vec<Memory> = runs.iter().filter_map(|series| series.memory).collect();
        let mut contender = Contender {
            source,
            version: runs.iter().find_map(|series| series.broker_version.clone()),
            postgres_version: runs.iter().find_map(|series| series.postgres_version.clone()),
            summaries: Vec::new(),
            resident_mb: Spread::of(memory.iter().map(|memory| memory.resident_mb).collect()),
            peak_mb: Spread::of(memory.iter().map(|memory| memory.peak_mb).collect()),
            notes: Vec::new(),
            violations: Vec::new(),
            error_texts: Vec::new(),
        };
        let mut rows = Vec::new();
        for series in runs {
            rows.extend(contender.take(series));
        }
        let budget = budget.map(|series| contender.take(series)).unwrap_or_default();
        contender.summaries = Summary::of_all(rows, &budget);
        contender
    }

    /// The main figures of a scenario: those of its first operation.
    pub fn summary(&self, scenario: &str) -> Option<&Summary> {
        self.summaries.iter().find(|summary| summary.scenario == scenario)
    }

    /// Without violations and errors.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty() && self.summaries.iter().all(|summary| summary.errors == 0)
    }

    pub fn describe(&self) -> String {
        let unknown = "unknown".to_owned();
        format!(
            "{} (version {}, PostgreSQL {})",
            self.source,
            self.version.as_ref().unwrap_or(&unknown),
            self.postgres_version.as_ref().unwrap_or(&unknown)
        )
    }

    /// Everything except the rows.
    fn take(&mut self, series: Series) -> Vec<Row> {
        self.notes.extend(series.outcome.notes);
        self.violations.extend(series.outcome.violations);
        self.error_texts.extend(series.outcome.error_texts);
        series.outcome.rows
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::scenarios::Outcome;

    pub fn contender(rows: Vec<Row>, resident_mb: f64) -> Contender {
        let outcome = Outcome { rows, ..Outcome::default() };
        let memory = Some(Memory { resident_mb, peak_mb: resident_mb + 10.0 });
        let series = Series { outcome, memory, broker_version: None, postgres_version: None };
        Contender::of("queen serve".to_owned(), vec![series], None)
    }

    #[test]
    fn an_error_or_a_violation_is_not_clean() {
        use crate::harness::Operation;
        use crate::report::summary::tests::row;
        let quiet = || Row { errors: 0, ..row("push-1", Operation::Push, 2, 1) };
        assert!(contender(vec![quiet()], 1.0).is_clean());
        assert!(!contender(vec![Row { errors: 1, ..quiet() }], 1.0).is_clean());
        let lost = Contender { violations: vec!["lost".to_owned()], ..contender(vec![quiet()], 1.0) };
        assert!(!lost.is_clean());
    }
}
