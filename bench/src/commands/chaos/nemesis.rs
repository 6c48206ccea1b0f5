//! Decides which faults come, and when, from the seed alone. Pure.

use std::time::Duration;

use queen_testkit::Random;

use super::stage::BROKERS;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    KillBroker,
    CrashPostgres,
    KillBackend,
    EndSessions,
    Cut,
    BlackHole,
    Slow,
    PauseBroker,
    PausePostgres,
    FillDisk,
    JumpClock,
    ExhaustPool,
    LockStorm,
    LateStatements,
    JumpDatabaseClock,
    LosePower,
}

impl Kind {
    pub const ALL: [Kind; 16] = [
        Kind::KillBroker,
        Kind::CrashPostgres,
        Kind::KillBackend,
        Kind::EndSessions,
        Kind::Cut,
        Kind::BlackHole,
        Kind::Slow,
        Kind::PauseBroker,
        Kind::PausePostgres,
        Kind::FillDisk,
        Kind::JumpClock,
        Kind::ExhaustPool,
        Kind::LockStorm,
        Kind::LateStatements,
        Kind::JumpDatabaseClock,
        Kind::LosePower,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::KillBroker => "kill-broker",
            Kind::CrashPostgres => "crash-postgres",
            Kind::KillBackend => "kill-backend",
            Kind::EndSessions => "end-sessions",
            Kind::Cut => "cut",
            Kind::BlackHole => "black-hole",
            Kind::Slow => "slow-network",
            Kind::PauseBroker => "pause-broker",
            Kind::PausePostgres => "pause-postgres",
            Kind::FillDisk => "fill-disk",
            Kind::JumpClock => "jump-clock",
            Kind::ExhaustPool => "exhaust-pool",
            Kind::LockStorm => "lock-storm",
            Kind::LateStatements => "late-statements",
            Kind::JumpDatabaseClock => "jump-database-clock",
            Kind::LosePower => "lose-power",
        }
    }

    /// Its duration in milliseconds: from, to. A short run uses the first. Pauses outlast a lease of 2 s.
    fn hold(self) -> (u32, u32) {
        match self {
            Kind::KillBroker => (100, 1_500),
            Kind::CrashPostgres => (100, 2_500),
            Kind::KillBackend | Kind::EndSessions => (300, 1_000),
            Kind::Cut => (500, 2_000),
            Kind::BlackHole => (2_500, 5_000),
            Kind::Slow => (1_000, 3_000),
            Kind::PauseBroker => (2_300, 4_000),
            Kind::PausePostgres => (2_300, 3_500),
            Kind::FillDisk => (500, 3_000),
            Kind::JumpClock => (500, 4_000),
            Kind::ExhaustPool => (700, 3_000),
            // Longer than the brokers wait for a lock.
            Kind::LockStorm => (1_700, 3_000),
            // Longer than the brokers wait for a response: the statement arrives after it was abandoned.
            Kind::LateStatements => (7_300, 7_600),
            Kind::JumpDatabaseClock => (500, 2_000),
            Kind::LosePower => (100, 1_000),
        }
    }
}

/// Which connections are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Postgres,
    Clients,
}

impl Side {
    pub fn other(self) -> Side {
        match self {
            Side::Postgres => Side::Clients,
            Side::Clients => Side::Postgres,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    pub kind: Kind,
    /// The broker it affects, if any.
    pub broker: usize,
    /// Both brokers instead, where that makes sense.
    pub both: bool,
    pub side: Side,
    pub hold: Duration,
    /// A free choice for the fault itself.
    pub choice: u32,
    /// Quiet time before it.
    pub gap: Duration,
    /// A network fault at the same time.
    pub beside: Option<Kind>,
}

/// Endless. Every kind comes once before any comes again.
pub struct Plan {
    random: Random,
    short: bool,
    left: Vec<Kind>,
}

impl Plan {
    pub fn new(seed: u64, short: bool) -> Plan {
        Plan { random: Random::seeded(seed), short, left: Vec::new() }
    }

    fn between(&mut self, from: u32, to: u32) -> Duration {
        let to = if self.short { from + (to - from) / 8 } else { to };
        Duration::from_millis((from + self.random.below(to - from + 1)).into())
    }
}

impl Iterator for Plan {
    type Item = Fault;

    fn next(&mut self) -> Option<Fault> {
        if self.left.is_empty() {
            self.left = Kind::ALL.to_vec();
        }
        let kind = self.left.swap_remove(self.random.below(self.left.len()));
        let (from, to) = kind.hold();
        Some(Fault {
            kind,
            broker: self.random.below(BROKERS),
            both: self.random.below(3) == 0,
            side: if self.random.below(2) == 0 { Side::Postgres } else { Side::Clients },
            hold: self.between(from, to),
            choice: self.random.below(1 << 16),
            gap: self.between(100, 700),
            beside: match self.random.below(9) {
                0 => Some(Kind::Cut),
                1 => Some(Kind::BlackHole),
                2 => Some(Kind::Slow),
                _ => None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_says_it_all_and_every_kind_has_its_turn() {
        let of = |seed| Plan::new(seed, false).take(40).collect::<Vec<_>>();
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
        for seed in 0..20 {
            let mut kinds: Vec<Kind> = of(seed)[..Kind::ALL.len()].iter().map(|fault| fault.kind).collect();
            kinds.sort();
            assert_eq!(kinds, Kind::ALL);
        }
    }

    #[test]
    fn a_run_of_a_minute_has_time_for_every_kind() {
        for seed in 0..100 {
            let faults = Plan::new(seed, false).take(Kind::ALL.len());
            let time: Duration = faults.map(|fault| fault.gap + fault.hold).sum();
            assert!(time < Duration::from_secs(57), "{seed}: {time:?}");
        }
    }

    #[test]
    fn one_fault_in_three_comes_with_a_second_one() {
        let second =
            (0..20).flat_map(|seed| Plan::new(seed, false).take(40)).filter(|fault| fault.beside.is_some());
        let share = second.count() as f64 / 800.0;
        assert!((0.25..0.42).contains(&share), "{share}");
    }
}
