//! The context of a measurement: code version and machine.

use std::fs;
use std::process::Command;

use serde::Serialize;

/// None if unknown.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub commit: Option<String>,
    pub cpu: Option<String>,
    pub cores: usize,
    pub memory_mb: Option<u64>,
    pub kernel: Option<String>,
}

impl Machine {
    pub fn here() -> Machine {
        let read = |path: &str| fs::read_to_string(path).ok();
        Machine {
            commit: commit(),
            cpu: read("/proc/cpuinfo").and_then(|text| field(&text, "model name").map(str::to_owned)),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_mb: read("/proc/meminfo")
                .and_then(|text| kilobytes(&text, "MemTotal"))
                .map(|kb| kb / 1024),
            kernel: read("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned()),
        }
    }

    /// One line for people.
    pub fn describe(&self) -> String {
        let unknown = "unknown".to_owned();
        format!(
            "commit {}, {} × {}, {} MB memory, Linux {}",
            self.commit.as_ref().unwrap_or(&unknown),
            self.cores,
            self.cpu.as_ref().unwrap_or(&unknown),
            self.memory_mb.map_or_else(|| unknown.clone(), |mb| mb.to_string()),
            self.kernel.as_ref().unwrap_or(&unknown),
        )
    }
}

/// Kilobytes of a line like `VmRSS:  1234 kB`.
pub fn kilobytes(text: &str, name: &str) -> Option<u64> {
    field(text, name)?.strip_suffix("kB")?.trim().parse().ok()
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// With a `+` if the working tree differs from it.
fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        output.status.success().then_some(text)
    };
    let commit = git(&["rev-parse", "--short", "HEAD"])?;
    let clean = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|text| text.is_empty());
    Some(if clean { commit } else { format!("{commit}+") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc_files_are_found_by_their_whole_name() {
        let text = "VmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\nmodel name\t: Some CPU\n";
        assert_eq!(kilobytes(text, "VmRSS"), Some(1024));
        assert_eq!(kilobytes(text, "Vm"), None);
        assert_eq!(field(text, "model name"), Some("Some CPU"));
    }
}
