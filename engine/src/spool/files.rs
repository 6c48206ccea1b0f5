//! The files of a spool, on one thread of their own: appended to and synced in groups, read back, and removed once
//! their records are in the database. It knows bytes and numbers, but not messages.

use std::fs::File;
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};

use tracing::{error, warn};

use super::record::{self, Record};

const READ_BYTES: usize = 1 << 20;

const EXTENSION: &str = "spool";
/// Files that could not be read completely are kept for people.
const DAMAGED: &str = "damaged";

/// # Invariants
/// - Records of a file are numbered upwards, and so are files: by their first record.
/// - A record is whole and on disk before `append` returns.
pub struct Files {
    dir: PathBuf,
    /// In order; the last one may be written to.
    files: Vec<Stored>,
    current: Option<Current>,
    next: u64,
    file_bytes: u64,
    file_records: u64,
}

struct Stored {
    path: PathBuf,
    first: u64,
    /// One past the last record.
    end: u64,
    bytes: u64,
    damaged: bool,
}

struct Current {
    file: File,
    length: u64,
}

/// A record that was read back.
pub struct Read {
    pub number: u64,
    pub body: Vec<u8>,
}

impl Files {
    /// Reads what is there, record by record. Torn ends are cut off; damage is logged and skipped.
    pub fn open(
        dir: &Path,
        file_bytes: u64,
        file_records: u64,
        mut found: impl FnMut(&Record<'_>),
    ) -> io::Result<Self> {
        let mut files =
            Self { dir: dir.to_owned(), files: Vec::new(), current: None, next: 0, file_bytes, file_records };
        for path in paths(dir)? {
            let bytes = std::fs::read(&path)?;
            let contents = record::read(&bytes);
            for range in &contents.damaged {
                let file = path.display();
                error!(%file, from = range.start, to = range.end, "the spool is damaged: messages are lost here");
            }
            if contents.end < bytes.len() {
                let file = path.display();
                warn!(%file, bytes = bytes.len() - contents.end, "the spool ends in the middle of a record: cut off");
            }
            // A name that is taken is not used again, whatever the file holds.
            files.next = files.next.max(number(&path).map_or(0, |number| number + 1));
            let numbers = || contents.records.iter().map(|record| record.number);
            let (Some(first), Some(last)) = (numbers().min(), numbers().max()) else {
                set_aside(&path, !bytes.is_empty());
                continue;
            };
            files.files.push(Stored {
                path: path.clone(),
                first,
                end: last + 1,
                bytes: bytes.len() as u64,
                damaged: !contents.damaged.is_empty(),
            });
            files.next = files.next.max(last + 1);
            contents.records.iter().for_each(&mut found);
        }
        Ok(files)
    }

    /// Appends all of them or none; returns the number of the first.
    pub fn append(&mut self, bodies: &[Vec<u8>]) -> io::Result<u64> {
        let first = self.next;
        let mut bytes = Vec::with_capacity(bodies.iter().map(|body| record::size(body)).sum());
        for (number, body) in (first..).zip(bodies) {
            record::write(&mut bytes, number, body);
        }
        let current = match &mut self.current {
            Some(current) => current,
            None => {
                let path = self.dir.join(name(first));
                let file = super::private().truncate(true).open(&path)?;
                // A file is only as durable as its name.
                File::open(&self.dir)?.sync_all()?;
                self.files.push(Stored { path, first, end: first, bytes: 0, damaged: false });
                self.current.insert(Current { file, length: 0 })
            }
        };
        let written = current.file.write_all(&bytes).and_then(|()| current.file.sync_data());
        // Numbers of a failed append are not used again: it is unknown what of it is on disk.
        self.next = first + bodies.len() as u64;
        if let Err(error) = written {
            // What was there before is kept: cut off the rest, and continue in a new file.
            let _ = current.file.set_len(current.length).and_then(|()| current.file.sync_data());
            self.close();
            return Err(error);
        }
        current.length += bytes.len() as u64;
        if let Some(stored) = self.files.last_mut() {
            stored.end = self.next;
            stored.bytes += bytes.len() as u64;
            if stored.bytes >= self.file_bytes || stored.end - stored.first >= self.file_records {
                self.current = None;
            }
        }
        Ok(first)
    }

    fn close(&mut self) {
        self.current = None;
        if let Some(stored) = self.files.pop_if(|stored| stored.first == stored.end) {
            set_aside(&stored.path, false);
        }
    }

    /// Records from a number on, all of one file, at most about `READ_BYTES` but at least one.
    pub fn read(&self, from: u64) -> io::Result<Vec<Read>> {
        let Some(stored) = self.files.iter().find(|stored| stored.end > from) else { return Ok(Vec::new()) };
        let mut bytes = Vec::with_capacity(stored.bytes as usize);
        File::open(&stored.path)?.take(stored.bytes).read_to_end(&mut bytes)?;
        let mut total = 0;
        let mut found = Vec::new();
        for record in record::read(&bytes).records.into_iter().filter(|record| record.number >= from) {
            total += record.body.len();
            if total > READ_BYTES && !found.is_empty() {
                break;
            }
            found.push(Read { number: record.number, body: record.body.to_vec() });
        }
        Ok(found)
    }

    /// Everything below this number is in the database.
    pub fn done(&mut self, below: u64) {
        while let Some(stored) = self.files.first() {
            if stored.end > below {
                return;
            }
            if self.files.len() == 1 {
                self.current = None;
            }
            let stored = self.files.remove(0);
            set_aside(&stored.path, stored.damaged);
        }
    }
}

/// Whether there are files at all.
pub fn any(dir: &Path) -> io::Result<bool> {
    Ok(!paths(dir)?.is_empty())
}

/// In order.
fn paths(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == EXTENSION) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// In the order of their first records.
fn name(first: u64) -> String {
    format!("{first:020}.{EXTENSION}")
}

fn number(path: &Path) -> Option<u64> {
    path.file_stem()?.to_str()?.parse().ok().filter(|&number: &u64| number < i64::MAX as u64)
}

/// Removes a file, or keeps it under another name.
fn set_aside(path: &Path, keep: bool) {
    let result = match keep {
        true => std::fs::rename(path, path.with_extension(DAMAGED)),
        false => std::fs::remove_file(path),
    };
    if let Err(error) = result {
        warn!(file = %path.display(), %error, "a spool file could not be put away");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn bodies(texts: &[&str]) -> Vec<Vec<u8>> {
        texts.iter().map(|text| text.as_bytes().to_vec()).collect()
    }

    fn open(dir: &Path, file_bytes: u64) -> (Files, Vec<(u64, String)>) {
        let mut found = Vec::new();
        let text = |body: &[u8]| String::from_utf8(body.to_vec()).unwrap();
        let files =
            Files::open(dir, file_bytes, 100, |record| found.push((record.number, text(record.body))));
        (files.unwrap(), found)
    }

    fn texts(found: &[Read]) -> Vec<(u64, String)> {
        found.iter().map(|found| (found.number, String::from_utf8(found.body.clone()).unwrap())).collect()
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_was_appended_is_found_by_the_next_process_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let (mut files, found) = open(dir.path(), 60);
        assert!(found.is_empty());
        assert_eq!(files.append(&bodies(&["a", "b"])).unwrap(), 0);
        assert_eq!(files.append(&bodies(&["c"])).unwrap(), 2);
        assert_eq!(files.append(&bodies(&["d"])).unwrap(), 3);
        drop(files);
        assert_eq!(names(dir.path()).len(), 2, "a full file is followed by another");
        let mode =
            |name: &String| std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o777;
        assert!(names(dir.path()).iter().map(mode).all(|mode| mode == 0o600), "and nobody else reads them");
        let (mut files, found) = open(dir.path(), 60);
        assert_eq!(found, [(0, "a".into()), (1, "b".into()), (2, "c".into()), (3, "d".into())]);
        assert_eq!(files.append(&bodies(&["e"])).unwrap(), 4);
        assert_eq!(texts(&files.read(1).unwrap()), [(1, "b".into()), (2, "c".into())]);
        assert_eq!(texts(&files.read(4).unwrap()), [(4, "e".into())]);
        files.done(3);
        assert_eq!(texts(&files.read(3).unwrap()), [(3, "d".into())]);
        files.done(5);
        assert!(names(dir.path()).is_empty() && files.read(0).unwrap().is_empty());
        assert_eq!(files.append(&bodies(&["f"])).unwrap(), 5);
    }

    #[test]
    fn a_torn_end_is_cut_off_and_a_damaged_file_is_kept_once_it_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let (mut files, _) = open(dir.path(), 1 << 20);
        files.append(&bodies(&["first", "second", "third"])).unwrap();
        drop(files);
        let path = dir.path().join(&names(dir.path())[0]);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[record::size(b"first") + 22] ^= 1;
        bytes.extend_from_slice(b"\x00QS\x01 and no more");
        std::fs::write(&path, bytes).unwrap();
        let (mut files, found) = open(dir.path(), 1 << 20);
        assert_eq!(found, [(0, "first".into()), (2, "third".into())]);
        files.done(3);
        assert_eq!(names(dir.path()), ["00000000000000000000.damaged"]);
    }

    #[test]
    fn what_cannot_be_written_leaves_what_was_and_its_number_unused() {
        let dir = tempfile::tempdir().unwrap();
        let (mut files, _) = open(dir.path(), 1 << 20);
        files.append(&bodies(&["kept"])).unwrap();
        // Reading only: every write fails, as on a full disk.
        let path = dir.path().join(&names(dir.path())[0]);
        files.current =
            Some(Current { file: File::open(&path).unwrap(), length: record::size(b"kept") as u64 });
        assert!(files.append(&bodies(&["lost"])).is_err());
        assert_eq!(files.append(&bodies(&["after"])).unwrap(), 2);
        drop(files);
        assert_eq!(open(dir.path(), 1 << 20).1, [(0, "kept".into()), (2, "after".into())]);
    }
}
