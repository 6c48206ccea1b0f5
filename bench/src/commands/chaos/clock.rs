//! Makes the wall clock of a process jump.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use tokio::process::Command;

/// In a folder per architecture below `/usr/lib`.
const FAKETIME: &str = "faketime/libfaketimeMT.so.1";

/// The file that libfaketime reads whenever a process asks for the time of day. The monotonic clock is not affected, as in a real jump.
pub struct Clock {
    file: PathBuf,
    /// None if it is not installed.
    library: Option<PathBuf>,
}

impl Clock {
    pub fn new(file: PathBuf) -> Result<Clock> {
        let folders = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
        let library = folders.map(|folder| folder.path().join(FAKETIME)).find(|library| library.exists());
        let clock = Clock { file, library };
        clock.set(0)?;
        Ok(clock)
    }

    pub fn is_available(&self) -> bool {
        self.library.is_some()
    }

    pub fn preload(&self, command: &mut Command) {
        if let Some(library) = &self.library {
            command
                .env("LD_PRELOAD", library)
                .env("FAKETIME_TIMESTAMP_FILE", &self.file)
                .envs([("FAKETIME_NO_CACHE", "1"), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")])
                .env("DONT_FAKE_MONOTONIC", "1");
        }
    }

    /// Replaced by renaming, so that it is never read half-written.
    pub fn set(&self, seconds: i32) -> Result<()> {
        let next = self.file.with_extension("next");
        fs::write(&next, format!("{seconds:+}\n"))?;
        Ok(fs::rename(next, &self.file)?)
    }
}
