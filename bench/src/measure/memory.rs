//! Memory of a process, read from `/proc`.

use std::fs;

use serde::Serialize;

use crate::environment::kilobytes;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Memory {
    pub resident_mb: f64,
    /// Peak.
    pub peak_mb: f64,
}

impl Memory {
    /// None if there is no such process.
    pub fn of(pid: u32) -> Option<Memory> {
        Memory::parse(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
    }

    fn parse(status: &str) -> Option<Memory> {
        let megabytes = |name| Some(kilobytes(status, name)? as f64 / 1024.0);
        Some(Memory { resident_mb: megabytes("VmRSS")?, peak_mb: megabytes("VmHWM")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_reported_in_megabytes() {
        let memory = Memory::parse("Name:\tqueen\nVmHWM:\t 4096 kB\nVmRSS:\t 1536 kB\n").unwrap();
        assert_eq!(memory, Memory { resident_mb: 1.5, peak_mb: 4.0 });
        assert!(Memory::of(std::process::id()).unwrap().resident_mb > 0.0);
    }
}
