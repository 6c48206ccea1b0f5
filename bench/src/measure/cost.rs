//! Counters, their differences, and costs per message. Pure.

use serde::Serialize;

use super::cpu::CpuSeconds;

/// Counters of PostgreSQL that are exact at any moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AtOnce {
    pub statements: i64,
    pub writing_transactions: i64,
    pub wal_bytes: i64,
}

/// Counters of PostgreSQL that arrive late.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Settling {
    pub commits: i64,
    /// Row versions that became dead: updates and deletes.
    pub dead_tuples: i64,
}

/// The difference of two readings. None: not accessible.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub cpu: CpuSeconds,
    pub requests: u64,
    pub at_once: Option<AtOnce>,
    pub settling: Option<Settling>,
}

/// Per message: a number in one run, a spread over several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cost<T> {
    pub statements: Option<T>,
    pub writing_transactions: Option<T>,
    pub wal_bytes: Option<T>,
    pub commits: Option<T>,
    pub dead_tuples: Option<T>,
    pub broker_cpu_us: Option<T>,
    pub postgres_cpu_us: Option<T>,
    pub load_cpu_us: Option<T>,
    /// CPU time of the load generator itself. The only cost that is per request.
    pub load_cpu_us_per_request: Option<T>,
}

impl AtOnce {
    pub fn since(self, before: AtOnce) -> AtOnce {
        AtOnce {
            statements: self.statements - before.statements,
            writing_transactions: self.writing_transactions - before.writing_transactions,
            wal_bytes: self.wal_bytes - before.wal_bytes,
        }
    }
}

impl Settling {
    pub fn since(self, before: Settling) -> Settling {
        Settling {
            commits: self.commits - before.commits,
            dead_tuples: self.dead_tuples - before.dead_tuples,
        }
    }
}

impl Cost<f64> {
    /// Empty if there was no message to divide by.
    pub fn of(usage: &Usage, messages: u64) -> Cost<f64> {
        if messages == 0 {
            return Cost::default();
        }
        let each = |total: i64| total as f64 / messages as f64;
        let micros = |seconds: Option<f64>| seconds.map(|seconds| seconds * 1e6 / messages as f64);
        let per_request = |seconds: f64| seconds * 1e6 / usage.requests as f64;
        Cost {
            statements: usage.at_once.map(|counters| each(counters.statements)),
            writing_transactions: usage.at_once.map(|counters| each(counters.writing_transactions)),
            wal_bytes: usage.at_once.map(|counters| each(counters.wal_bytes)),
            commits: usage.settling.map(|counters| each(counters.commits)),
            dead_tuples: usage.settling.map(|counters| each(counters.dead_tuples)),
            broker_cpu_us: micros(usage.cpu.broker),
            postgres_cpu_us: micros(usage.cpu.postgres),
            load_cpu_us: micros(usage.cpu.bench),
            load_cpu_us_per_request: usage.cpu.bench.filter(|_| usage.requests > 0).map(per_request),
        }
    }
}

impl<T: Copy> Cost<T> {
    /// Headings and values, in the order of the table's columns.
    pub fn columns(&self) -> [(&'static str, Option<T>); 9] {
        [
            ("statements", self.statements),
            ("writing tx", self.writing_transactions),
            ("WAL bytes", self.wal_bytes),
            ("commits", self.commits),
            ("dead tuples", self.dead_tuples),
            ("broker µs", self.broker_cpu_us),
            ("postgres µs", self.postgres_cpu_us),
            ("load µs", self.load_cpu_us),
            ("load µs/req", self.load_cpu_us_per_request),
        ]
    }

    /// Combines several costs, value by value.
    pub fn combine<U>(all: &[Cost<T>], combine: impl Fn(Vec<T>) -> Option<U>) -> Cost<U> {
        let over = |value: fn(&Cost<T>) -> Option<T>| combine(all.iter().filter_map(value).collect());
        Cost {
            statements: over(|cost| cost.statements),
            writing_transactions: over(|cost| cost.writing_transactions),
            wal_bytes: over(|cost| cost.wal_bytes),
            commits: over(|cost| cost.commits),
            dead_tuples: over(|cost| cost.dead_tuples),
            broker_cpu_us: over(|cost| cost.broker_cpu_us),
            postgres_cpu_us: over(|cost| cost.postgres_cpu_us),
            load_cpu_us: over(|cost| cost.load_cpu_us),
            load_cpu_us_per_request: over(|cost| cost.load_cpu_us_per_request),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_the_difference_for_each_message() {
        let before = AtOnce { statements: 100, writing_transactions: 7, wal_bytes: 1_000 };
        let after = AtOnce { statements: 150, writing_transactions: 17, wal_bytes: 3_000 };
        let usage = Usage {
            cpu: CpuSeconds { broker: Some(0.001), postgres: None, bench: Some(0.0005) },
            requests: 10,
            at_once: Some(after.since(before)),
            settling: None,
        };
        let cost = Cost::of(&usage, 100);
        assert_eq!((cost.statements, cost.writing_transactions), (Some(0.5), Some(0.1)));
        assert_eq!((cost.wal_bytes, cost.commits), (Some(20.0), None));
        assert_eq!((cost.broker_cpu_us, cost.postgres_cpu_us), (Some(10.0), None));
        assert_eq!((cost.load_cpu_us, cost.load_cpu_us_per_request), (Some(5.0), Some(50.0)));
    }

    #[test]
    fn nothing_is_divided_by_no_messages() {
        let usage = Usage { at_once: Some(AtOnce::default()), ..Usage::default() };
        assert_eq!(Cost::of(&usage, 0), Cost::default());
        assert_eq!(Cost::of(&usage, 1).load_cpu_us_per_request, None);
    }

    #[test]
    fn runs_without_a_value_do_not_count() {
        let known = Cost { commits: Some(3.0), ..Cost::default() };
        let sum = Cost::combine(&[known, Cost::default()], |values| {
            (!values.is_empty()).then(|| values.iter().sum::<f64>())
        });
        assert_eq!((sum.commits, sum.statements), (Some(3.0), None));
    }
}
