//! What this process uses, as Linux tells it. Elsewhere nothing is known, and nothing is claimed.

use std::fs;
use std::time::Duration;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub resident_bytes: Option<u64>,
    pub threads: Option<u64>,
    /// Since the start.
    pub cpu_user: Option<Duration>,
    pub cpu_system: Option<Duration>,
}

pub fn usage() -> Usage {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let cpu = cpu(&stat, rustix::param::clock_ticks_per_second());
    Usage {
        resident_bytes: number(&status, "VmRSS:").map(|kib| kib * 1024),
        threads: number(&status, "Threads:"),
        cpu_user: cpu.map(|(user, _)| user),
        cpu_system: cpu.map(|(_, system)| system),
    }
}

/// The number after a name in `/proc/self/status`.
fn number(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Times in user and in system mode. The name of the program stands in brackets before them and may hold anything.
fn cpu(stat: &str, ticks_per_second: u64) -> Option<(Duration, Duration)> {
    let (_, after) = stat.rsplit_once(')')?;
    let mut fields = after.split_whitespace().skip(11);
    let mut time = || {
        let ticks: u64 = fields.next()?.parse().ok()?;
        Some(Duration::from_secs_f64(ticks as f64 / ticks_per_second.max(1) as f64))
    };
    Some((time()?, time()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_linux_are_understood() {
        let status = "Name:\tqueen\nVmRSS:\t   20480 kB\nThreads:\t9\n";
        assert_eq!((number(status, "VmRSS:"), number(status, "Threads:")), (Some(20_480), Some(9)));
        let stat = "42 (a ) b) S 1 42 42 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 4 0 1000 1 1";
        assert_eq!(cpu(stat, 100), Some((Duration::from_millis(2_500), Duration::from_millis(500))));
    }

    #[test]
    fn where_there_are_no_such_files_nothing_is_known() {
        assert_eq!((number("", "VmRSS:"), cpu("", 100), cpu("1 (x) S", 100)), (None, None, None));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_uses_something() {
        let usage = usage();
        assert!(usage.resident_bytes > Some(100_000) && usage.threads >= Some(1), "{usage:?}");
        assert!(usage.cpu_user.is_some() && usage.cpu_system.is_some(), "{usage:?}");
    }
}
