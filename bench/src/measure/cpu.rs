//! CPU time of broker, PostgreSQL and this process, read from `/proc` of this machine.

use std::collections::HashSet;
use std::fs;

use serde::Serialize;

/// CPU seconds, user and system. None: unknown process.
#[derive(Clone, Copy, Debug, Default, Serialize, PartialEq)]
pub struct CpuSeconds {
    pub broker: Option<f64>,
    pub postgres: Option<f64>,
    pub bench: Option<f64>,
}

impl CpuSeconds {
    pub fn since(self, before: CpuSeconds) -> CpuSeconds {
        let minus = |after: Option<f64>, before: Option<f64>| Some((after? - before?).max(0.0));
        CpuSeconds {
            broker: minus(self.broker, before.broker),
            postgres: minus(self.postgres, before.postgres),
            bench: minus(self.bench, before.bench),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct CpuWatch {
    pub broker_pid: Option<u32>,
    pub postgres_pid: Option<u32>,
}

impl CpuWatch {
    /// Reads all of `/proc`: about a millisecond, so not on a thread that measures latency.
    pub fn sample(&self) -> CpuSeconds {
        let processes = processes();
        let seconds = |ticks: u64| ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
        let find = |pid: u32| processes.iter().find(|process| process.pid == pid);
        // The broker's waited-for children are PostgreSQL processes, and not its own time.
        let broker = self.broker_pid.and_then(find).map(|process| seconds(process.own_ticks));
        let bench = find(std::process::id()).map(|process| seconds(process.own_ticks));

        let mut tree: HashSet<u32> = self.postgres_pid.into_iter().collect();
        loop {
            let before = tree.len();
            for process in &processes {
                if Some(process.parent) == self.broker_pid || tree.contains(&process.parent) {
                    tree.insert(process.pid);
                }
            }
            if tree.len() == before {
                break;
            }
        }
        let alive: Vec<_> = processes.iter().filter(|process| tree.contains(&process.pid)).collect();
        // A backend that exited since the last sample is in its parent's waited-for time.
        let ticks = alive.iter().map(|process| process.own_ticks + process.waited_ticks).sum();
        let postgres = (!alive.is_empty()).then(|| seconds(ticks));
        CpuSeconds { broker, postgres, bench }
    }
}

#[derive(Debug, PartialEq)]
struct Process {
    pid: u32,
    parent: u32,
    own_ticks: u64,
    waited_ticks: u64,
}

fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let stat = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        parse_stat(pid, &fs::read_to_string(entry.path().join("stat")).ok()?)
    };
    entries.flatten().filter_map(stat).collect()
}

/// The command name may contain spaces and parentheses, so fields are counted from its last closing one.
fn parse_stat(pid: u32, stat: &str) -> Option<Process> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Process {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        own_ticks: ticks(11)? + ticks(12)?,
        waited_ticks: ticks(13)? + ticks(14)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_from_the_last_bracket() {
        let line = "42 (postgres: a) b) S 7 42 42 0 -1 4194560 1 2 3 4 11 12 13 14 20 0 1 0 5 6 7";
        let expected = Process { pid: 42, parent: 7, own_ticks: 23, waited_ticks: 27 };
        assert_eq!(parse_stat(42, line), Some(expected));
        assert_eq!(parse_stat(42, "42 (x) S 7"), None);
    }

    #[test]
    fn children_of_the_broker_count_as_postgres_and_a_stranger_as_nothing() {
        let mut child = std::process::Command::new("sleep").arg("5").spawn().unwrap();
        let here = CpuWatch { broker_pid: Some(std::process::id()), postgres_pid: None }.sample();
        assert!(here.broker.is_some() && here.bench.is_some() && here.postgres.is_some());
        let nobody = CpuWatch { broker_pid: Some(child.id()), postgres_pid: None }.sample();
        assert_eq!(nobody.postgres, None);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
