//! A simulated disk that can be full, and can lose unsynced data like in a power failure.

mod mounted;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use anyhow::Result;
use fuser::BackgroundSession;

use self::mounted::{Shared, lock};
use self::tree::Tree;

/// Room for the WAL of a long run, including all dead rows.
const BYTES: usize = 1 << 30;

pub struct Disk {
    folder: PathBuf,
    mounted: Result<(Shared, BackgroundSession), String>,
}

impl Disk {
    /// In this folder, or part of the disk that it is on.
    pub fn mount(folder: PathBuf) -> Result<Disk> {
        fs::create_dir(&folder)?;
        let tree: Shared = Arc::new(Mutex::new(Tree::new(BYTES)));
        let session = mounted::mount(&tree, &folder);
        Ok(Disk {
            folder,
            mounted: session.map(|session| (tree, session)).map_err(|error| error.to_string()),
        })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Why it is not a disk of its own.
    pub fn whole(&self) -> Option<&str> {
        self.mounted.as_ref().err().map(String::as_str)
    }

    /// Accepts nothing more until [`Disk::free`].
    pub fn fill(&self) {
        self.with(|tree| tree.set_capacity(0));
    }

    pub fn free(&self) {
        self.with(|tree| tree.set_capacity(BYTES));
    }

    /// Syncs everything to the disk.
    pub fn sync(&self) {
        self.with(Tree::sync_all);
    }

    /// Drops unsynced data. All users of the disk must have exited. Returns how many files that changed.
    pub fn lose_power(&self) -> usize {
        self.with(Tree::lose_power).unwrap_or(0)
    }

    fn with<T>(&self, change: impl FnOnce(&mut Tree) -> T) -> Option<T> {
        self.mounted.as_ref().ok().map(|(tree, _)| change(&mut lock(tree)))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.mounted.is_ok() {
            // Lazily, because a process may still be exiting.
            let _ = Command::new("umount").arg("-l").arg(&self.folder).output();
        }
    }
}
