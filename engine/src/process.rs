//! Resources that this process uses, as reported by the kernel. Zero where that reports nothing.

/// Clock ticks per second: the same on every Linux, whatever the kernel itself counts in.
const TICKS: u64 = 100;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time on a processor since the start.
    pub user_us: u64,
    pub system_us: u64,
    pub rss_bytes: u64,
    pub virtual_bytes: u64,
    pub threads: u64,
}

/// Two small files, some 20 microseconds.
pub fn usage() -> Usage {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    parse(&read("/proc/self/stat"), &read("/proc/self/status"))
}

fn parse(stat: &str, status: &str) -> Usage {
    // The name of the program may contain anything, so fields are counted from its closing bracket.
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    let ticks = |field: usize| {
        let ticks = after.split_ascii_whitespace().nth(field).and_then(|text| text.parse::<u64>().ok());
        ticks.unwrap_or(0) * (1_000_000 / TICKS)
    };
    let number = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_ascii_whitespace().next());
        number.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0)
    };
    Usage {
        user_us: ticks(11),
        system_us: ticks(12),
        rss_bytes: number("VmRSS:") * 1024,
        virtual_bytes: number("VmSize:") * 1024,
        threads: number("Threads:"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_linux_are_read_whatever_the_program_is_called() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 900 0 0 0 250 30 0 0 20 0 5 0 100 1 2";
        let status = "Name:\ta) b\nVmSize:\t  2048 kB\nVmRSS:\t   1024 kB\nThreads:\t9\n";
        let usage = parse(stat, status);
        assert_eq!((usage.user_us, usage.system_us), (2_500_000, 300_000));
        assert_eq!((usage.rss_bytes, usage.virtual_bytes, usage.threads), (1 << 20, 2 << 20, 9));
        assert_eq!(parse("", ""), Usage::default());
    }
}
