//! A small disk of its own, so that it can be full: a tmpfs, if we may mount one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::Errno;

/// Room for the WAL of a long run, with every dead row of it.
const MEGABYTES: u32 = 1024;

pub struct Disk {
    folder: PathBuf,
    /// Why it is not a disk of its own.
    pub whole: Option<String>,
}

impl Disk {
    /// In this folder, or as part of the disk it is on.
    pub fn mount(folder: PathBuf) -> Result<Disk> {
        fs::create_dir(&folder)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={MEGABYTES}m"), "queen-chaos"]).arg(&folder);
        let whole = match mount.output() {
            Ok(output) if output.status.success() => None,
            Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Some(error.to_string()),
        };
        Ok(Disk { folder, whole })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Leaves less than a page, until [`Disk::free`].
    pub fn fill(&self) -> Result<()> {
        if self.whole.is_some() {
            bail!("not a disk of our own");
        }
        let file = File::create(self.ballast())?;
        let mut at = 0;
        loop {
            let free = statvfs(&self.folder)?;
            let bytes = free.f_bavail * free.f_frsize;
            if bytes == 0 {
                return Ok(());
            }
            match fallocate(&file, FallocateFlags::empty(), at, bytes) {
                Ok(()) => at += bytes,
                // Somebody else took some of it.
                Err(Errno::NOSPC) => {}
                Err(error) => return Err(error).context("cannot fill the disk"),
            }
        }
    }

    pub fn free(&self) -> Result<()> {
        fs::remove_file(self.ballast()).context("cannot free the disk")
    }

    fn ballast(&self) -> PathBuf {
        self.folder.join("ballast")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.whole.is_none() {
            // Lazily: somebody may still be on the way out.
            let _ = Command::new("umount").arg("-l").arg(&self.folder).output();
        }
    }
}
