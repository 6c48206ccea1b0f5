//! The server settings that Queen chooses, and why. Pure, except for reading the memory size.

use std::fs;

const MIB: u64 = 1 << 20;

/// Properties of the machine and of the installed server.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// `None` if unknown.
    pub memory_bytes: Option<u64>,
    pub lz4: bool,
    pub pg_stat_statements: bool,
}

/// Name and value of each setting, for `-c` on the command line: the cluster's own files stay as initdb wrote them, so that a
/// newer Queen applies its newer settings to an old folder.
pub fn settings(machine: Machine) -> Vec<(&'static str, String)> {
    let mut all: Vec<(&'static str, String)> = CHOSEN.map(|(name, value)| (name, value.to_owned())).into();
    all.push(("shared_buffers", format!("{}MB", shared_buffers_mb(machine.memory_bytes))));
    if machine.lz4 {
        all.push(("wal_compression", "lz4".to_owned()));
        all.push(("default_toast_compression", "lz4".to_owned()));
    }
    if machine.pg_stat_statements {
        all.push(("shared_preload_libraries", "pg_stat_statements".to_owned()));
    }
    all
}

/// The memory available to this process: the machine's, or its container's limit if that is lower.
pub fn memory_bytes() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_memory(&text));
    let container =
        fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
    [machine, container].into_iter().flatten().min()
}

const CHOSEN: [(&str, &str); 22] = [
    // Only through the private socket.
    ("listen_addresses", ""),
    ("unix_socket_permissions", "0700"),
    ("max_connections", "200"),
    // A message that was reported as stored is on disk.
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    // A queue writes far more than it reads: infrequent, spread-out checkpoints limit full-page writes.
    ("max_wal_size", "4GB"),
    ("min_wal_size", "512MB"),
    ("checkpoint_timeout", "15min"),
    ("checkpoint_completion_target", "0.9"),
    ("wal_buffers", "16MB"),
    // Small hot tables change completely within seconds, so vacuum runs often and without delay.
    ("autovacuum_naptime", "10s"),
    ("autovacuum_vacuum_cost_delay", "0"),
    // Short statements on an SSD.
    ("jit", "off"),
    ("random_page_cost", "1.1"),
    ("effective_io_concurrency", "16"),
    ("track_io_timing", "off"),
    // Everything to our log file, through stderr.
    ("logging_collector", "off"),
    ("log_destination", "stderr"),
    ("log_min_messages", "warning"),
    ("log_line_prefix", "%m [%p] "),
    ("log_lock_waits", "on"),
    ("log_autovacuum_min_duration", "10min"),
];

/// A quarter of memory, as PostgreSQL's manual recommends, but at most 1 GiB: the hot end of a queue is small, and the rest is
/// read through the kernel's cache anyway.
fn shared_buffers_mb(memory_bytes: Option<u64>) -> u64 {
    memory_bytes.map_or(128, |bytes| (bytes / 4 / MIB).clamp(64, 1024))
}

fn total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_buffers_are_a_quarter_of_memory_within_bounds() {
        let of = |mib: u64| shared_buffers_mb(Some(mib * MIB));
        assert_eq!((of(128), of(2048), of(65536)), (64, 512, 1024));
        assert_eq!(shared_buffers_mb(None), 128);
    }

    #[test]
    fn total_memory_is_read_in_bytes() {
        assert_eq!(total_memory("MemTotal:       24000000 kB\nMemFree: 1 kB\n"), Some(24_576_000_000));
        assert_eq!(total_memory("nothing of the kind"), None);
    }

    #[test]
    fn what_is_not_installed_is_not_asked_for() {
        let bare = settings(Machine { memory_bytes: None, lz4: false, pg_stat_statements: false });
        assert!(bare.iter().all(|(_, value)| value != "lz4" && value != "pg_stat_statements"));
    }
}
