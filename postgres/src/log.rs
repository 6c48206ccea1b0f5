//! The server's log file: rotated when large, read when a start fails. Does not interpret its contents.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Two files of this size are kept: weeks of a quiet server, or an evening of a noisy one.
const LOG_BYTES_MAX: u64 = 10 << 20;
const TAIL_LINES: usize = 20;
const TAIL_BYTES_MAX: u64 = 16 << 10;

/// The server's log. Reading starts at what was its end when it was opened.
#[derive(Debug)]
pub struct Log {
    pub path: PathBuf,
    from: u64,
}

impl Log {
    /// The file to pass to the server, and a reader of what is added to it.
    pub fn open(path: &Path) -> io::Result<(File, Self)> {
        if fs::metadata(path).is_ok_and(|found| found.len() > LOG_BYTES_MAX) {
            fs::rename(path, path.with_extension("log.1"))?;
        }
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        let from = file.metadata()?.len();
        Ok((file, Self { path: path.to_owned(), from }))
    }

    /// The last lines written since the log was opened.
    pub fn tail(&self) -> String {
        let text = self.read().unwrap_or_else(|error| format!("(cannot read the log: {error})"));
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }

    fn read(&self) -> io::Result<String> {
        let mut file = File::open(&self.path)?;
        let end = file.metadata()?.len();
        file.seek(SeekFrom::Start(self.from.max(end.saturating_sub(TAIL_BYTES_MAX))))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_tail_holds_only_what_came_after_and_only_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("postgres.log");
        fs::write(&path, "from an earlier start\n").unwrap();
        let (mut file, log) = Log::open(&path).unwrap();
        assert_eq!(log.tail(), "");
        for line in 1..=TAIL_LINES + 5 {
            writeln!(file, "line {line}").unwrap();
        }
        assert!(log.tail().starts_with("line 6\n"));
        assert!(log.tail().ends_with("line 25"));
    }

    #[test]
    fn a_large_log_makes_room_for_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("postgres.log");
        File::create(&path).unwrap().set_len(LOG_BYTES_MAX + 1).unwrap();
        Log::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        assert_eq!(fs::metadata(dir.path().join("postgres.log.1")).unwrap().len(), LOG_BYTES_MAX + 1);
    }
}
