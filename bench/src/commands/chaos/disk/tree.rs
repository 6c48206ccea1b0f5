//! Files in memory that track what has reached the disk. Pure: no kernel, no clock.
//!
//! It loses data as a journaling file system may: the bytes of a file are safe once that file was synced, and changes of folders, in
//! order, once anything was synced after them. Everything else is undone by [`Tree::lose_power`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};

pub type Number = u64;
pub const ROOT: Number = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Missing,
    Exists,
    NotAFolder,
    IsAFolder,
    NotEmpty,
    NoSpace,
}

type Done<T> = Result<T, Refusal>;
type Entries = BTreeMap<OsString, Number>;

#[derive(Debug)]
pub struct Node {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub content: Content,
    /// Open handles: a removed file exists as long as it has any.
    handles: u32,
}

#[derive(Debug)]
pub enum Content {
    File { bytes: Vec<u8>, undo: Vec<Undo> },
    Folder { entries: Entries, safe: Entries },
}

/// Undo log back to the state on disk, last one first.
#[derive(Debug)]
pub enum Undo {
    Bytes { at: usize, old: Vec<u8> },
    Length(usize),
}

#[derive(Debug)]
pub struct Tree {
    nodes: HashMap<Number, Node>,
    next: Number,
    /// Folders changed since the last sync, and files removed from one.
    changed: BTreeSet<Number>,
    removed: BTreeSet<Number>,
    capacity: usize,
    used: usize,
}

impl Tree {
    pub fn new(capacity: usize) -> Tree {
        let root = Node {
            mode: 0o777,
            uid: 0,
            gid: 0,
            content: Content::Folder { entries: Entries::new(), safe: Entries::new() },
            handles: 0,
        };
        Tree {
            nodes: HashMap::from([(ROOT, root)]),
            next: ROOT + 1,
            changed: BTreeSet::new(),
            removed: BTreeSet::new(),
            capacity,
            used: 0,
        }
    }

    pub fn node(&self, number: Number) -> Done<&Node> {
        self.nodes.get(&number).ok_or(Refusal::Missing)
    }

    pub fn node_mut(&mut self, number: Number) -> Done<&mut Node> {
        self.nodes.get_mut(&number).ok_or(Refusal::Missing)
    }

    pub fn free_bytes(&self) -> usize {
        self.capacity.saturating_sub(self.used)
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Applies to new data; what is stored stays.
    pub fn set_capacity(&mut self, bytes: usize) {
        self.capacity = bytes;
    }

    pub fn lookup(&self, folder: Number, name: &OsStr) -> Done<Number> {
        self.entries(folder)?.get(name).copied().ok_or(Refusal::Missing)
    }

    pub fn entries(&self, folder: Number) -> Done<&Entries> {
        match &self.node(folder)?.content {
            Content::Folder { entries, .. } => Ok(entries),
            Content::File { .. } => Err(Refusal::NotAFolder),
        }
    }

    fn change(&mut self, folder: Number) -> Done<&mut Entries> {
        self.changed.insert(folder);
        match &mut self.node_mut(folder)?.content {
            Content::Folder { entries, .. } => Ok(entries),
            Content::File { .. } => Err(Refusal::NotAFolder),
        }
    }

    pub fn add(
        &mut self,
        folder: Number,
        name: &OsStr,
        is_folder: bool,
        owner: (u32, u32),
        mode: u32,
    ) -> Done<Number> {
        if self.entries(folder)?.contains_key(name) {
            return Err(Refusal::Exists);
        }
        let content = match is_folder {
            true => Content::Folder { entries: Entries::new(), safe: Entries::new() },
            false => Content::File { bytes: Vec::new(), undo: Vec::new() },
        };
        let number = self.next;
        self.next += 1;
        let (uid, gid) = owner;
        self.nodes.insert(number, Node { mode, uid, gid, content, handles: 0 });
        self.change(folder)?.insert(name.to_owned(), number);
        Ok(number)
    }

    pub fn remove(&mut self, folder: Number, name: &OsStr, is_folder: bool) -> Done<()> {
        let number = self.lookup(folder, name)?;
        match (&self.node(number)?.content, is_folder) {
            (Content::Folder { .. }, false) => return Err(Refusal::IsAFolder),
            (Content::File { .. }, true) => return Err(Refusal::NotAFolder),
            (Content::Folder { entries, .. }, true) if !entries.is_empty() => return Err(Refusal::NotEmpty),
            _ => {}
        }
        self.change(folder)?.remove(name);
        self.removed.insert(number);
        Ok(())
    }

    pub fn rename(&mut self, from: (Number, &OsStr), to: (Number, &OsStr)) -> Done<()> {
        let number = self.lookup(from.0, from.1)?;
        if let Ok(replaced) = self.lookup(to.0, to.1) {
            if replaced == number {
                return Ok(());
            }
            let is_folder = matches!(self.node(replaced)?.content, Content::Folder { .. });
            self.remove(to.0, to.1, is_folder)?;
        }
        self.change(from.0)?.remove(from.1);
        self.change(to.0)?.insert(to.1.to_owned(), number);
        Ok(())
    }

    pub fn read(&self, file: Number, at: u64, size: usize) -> Done<&[u8]> {
        let Content::File { bytes, .. } = &self.node(file)?.content else { return Err(Refusal::IsAFolder) };
        let from = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
        Ok(&bytes[from..bytes.len().min(from.saturating_add(size))])
    }

    pub fn write(&mut self, file: Number, at: u64, data: &[u8]) -> Done<()> {
        let at = usize::try_from(at).map_err(|_| Refusal::NoSpace)?;
        let end = at + data.len();
        if end > self.length(file)? {
            self.resize(file, end)?;
        }
        let Content::File { bytes, undo } = &mut self.node_mut(file)?.content else {
            return Err(Refusal::IsAFolder);
        };
        undo.push(Undo::Bytes { at, old: bytes[at..end].to_vec() });
        bytes[at..end].copy_from_slice(data);
        Ok(())
    }

    pub fn length(&self, file: Number) -> Done<usize> {
        match &self.node(file)?.content {
            Content::File { bytes, .. } => Ok(bytes.len()),
            Content::Folder { .. } => Err(Refusal::IsAFolder),
        }
    }

    pub fn resize(&mut self, file: Number, length: usize) -> Done<()> {
        let before = self.length(file)?;
        if length.saturating_sub(before) > self.free_bytes() {
            return Err(Refusal::NoSpace);
        }
        self.used = self.used + length - before;
        let Content::File { bytes, undo } = &mut self.node_mut(file)?.content else {
            return Err(Refusal::IsAFolder);
        };
        match length < before {
            true => undo.push(Undo::Bytes { at: length, old: bytes[length..].to_vec() }),
            false => undo.push(Undo::Length(before)),
        }
        bytes.resize(length, 0);
        Ok(())
    }

    pub fn opened(&mut self, number: Number) -> Done<()> {
        self.node_mut(number)?.handles += 1;
        Ok(())
    }

    pub fn closed(&mut self, number: Number) {
        if let Ok(node) = self.node_mut(number) {
            node.handles = node.handles.saturating_sub(1);
        }
    }

    /// Syncs the bytes of this file, or the entries of this folder, and all earlier changes of folders.
    pub fn sync(&mut self, number: Number) -> Done<()> {
        if let Content::File { undo, .. } = &mut self.node_mut(number)?.content {
            undo.clear();
        }
        for folder in std::mem::take(&mut self.changed) {
            if let Some(Node { content: Content::Folder { entries, safe }, .. }) = self.nodes.get_mut(&folder)
            {
                safe.clone_from(entries);
            }
        }
        for number in std::mem::take(&mut self.removed) {
            self.forget(number);
        }
        Ok(())
    }

    pub fn sync_all(&mut self) {
        let all: Vec<Number> = self.nodes.keys().copied().collect();
        for number in all {
            let _ = self.sync(number);
        }
    }

    /// Frees a file without a folder entry. An open file is freed when it is closed.
    fn forget(&mut self, number: Number) {
        let Some(node) = self.nodes.get(&number) else { return };
        if node.handles > 0 {
            self.removed.insert(number);
            return;
        }
        if let Some(Node { content: Content::File { bytes, .. }, .. }) = self.nodes.remove(&number) {
            self.used -= bytes.len();
        }
    }

    /// Undoes unsynced changes. Returns how many files and folders that changed.
    pub fn lose_power(&mut self) -> usize {
        let mut changed = 0;
        for node in self.nodes.values_mut() {
            node.handles = 0;
            match &mut node.content {
                Content::Folder { entries, safe } => {
                    changed += usize::from(entries != safe);
                    entries.clone_from(safe);
                }
                Content::File { bytes, undo } => {
                    changed += usize::from(!undo.is_empty());
                    for step in std::mem::take(undo).into_iter().rev() {
                        match step {
                            Undo::Length(length) => bytes.resize(length, 0),
                            Undo::Bytes { at, old } => {
                                bytes.resize(bytes.len().max(at + old.len()), 0);
                                bytes[at..at + old.len()].copy_from_slice(&old);
                            }
                        }
                    }
                }
            }
        }
        self.changed.clear();
        self.removed.clear();
        self.forget_unreachable();
        changed
    }

    fn forget_unreachable(&mut self) {
        let mut reached = BTreeSet::from([ROOT]);
        let mut open = vec![ROOT];
        while let Some(folder) = open.pop() {
            for &number in self.entries(folder).map(Entries::values).into_iter().flatten() {
                if reached.insert(number) && self.entries(number).is_ok() {
                    open.push(number);
                }
            }
        }
        self.nodes.retain(|number, _| reached.contains(number));
        let bytes = |node: &Node| match &node.content {
            Content::File { bytes, .. } => bytes.len(),
            Content::Folder { .. } => 0,
        };
        self.used = self.nodes.values().map(bytes).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> &OsStr {
        OsStr::new(text)
    }

    fn with(file: &str, bytes: &[u8]) -> (Tree, Number) {
        let mut tree = Tree::new(1 << 20);
        let number = tree.add(ROOT, name(file), false, (0, 0), 0o600).unwrap();
        tree.write(number, 0, bytes).unwrap();
        tree.sync(number).unwrap();
        (tree, number)
    }

    #[test]
    fn bytes_are_lost_unless_their_file_was_synced() {
        let (mut tree, file) = with("a", b"first");
        tree.write(file, 3, b"ever and longer").unwrap();
        tree.resize(file, 6).unwrap();
        tree.write(file, 20, b"!").unwrap();
        assert_eq!(tree.lose_power(), 1);
        assert_eq!(tree.read(file, 0, 99), Ok(&b"first"[..]));
        tree.write(file, 0, b"F").unwrap();
        tree.sync(file).unwrap();
        assert_eq!(tree.lose_power(), 0);
        assert_eq!(tree.read(file, 0, 99), Ok(&b"First"[..]));
    }

    #[test]
    fn the_sync_of_one_file_does_not_save_the_bytes_of_another() {
        let (mut tree, first) = with("a", b"1");
        let second = tree.add(ROOT, name("b"), false, (0, 0), 0o600).unwrap();
        tree.write(second, 0, b"2").unwrap();
        tree.sync(first).unwrap();
        tree.lose_power();
        // Its entry exists, as after a sync of the journal; its bytes do not.
        assert_eq!(tree.lookup(ROOT, name("b")), Ok(second));
        assert_eq!(tree.length(second), Ok(0));
    }

    #[test]
    fn what_happened_to_folders_is_lost_until_anything_is_synced() {
        let (mut tree, file) = with("a", b"old");
        let other = tree.add(ROOT, name("b"), false, (0, 0), 0o600).unwrap();
        tree.rename((ROOT, name("a")), (ROOT, name("c"))).unwrap();
        tree.remove(ROOT, name("c"), false).unwrap();
        tree.lose_power();
        assert_eq!(
            (tree.lookup(ROOT, name("a")), tree.lookup(ROOT, name("c"))),
            (Ok(file), Err(Refusal::Missing))
        );
        assert_eq!(tree.lookup(ROOT, name("b")), Err(Refusal::Missing));
        assert!(tree.node(other).is_err());
        tree.rename((ROOT, name("a")), (ROOT, name("c"))).unwrap();
        tree.sync(ROOT).unwrap();
        tree.lose_power();
        assert_eq!(
            (tree.lookup(ROOT, name("a")), tree.lookup(ROOT, name("c"))),
            (Err(Refusal::Missing), Ok(file))
        );
    }

    #[test]
    fn a_full_disk_takes_nothing_more_and_what_is_removed_makes_room() {
        let (mut tree, file) = with("a", &[7; 100]);
        tree.set_capacity(150);
        assert_eq!(tree.write(file, 100, &[7; 51]), Err(Refusal::NoSpace));
        assert_eq!(tree.write(file, 50, &[7; 100]), Ok(()));
        tree.opened(file).unwrap();
        tree.remove(ROOT, name("a"), false).unwrap();
        tree.sync(ROOT).unwrap();
        assert_eq!(tree.free_bytes(), 0);
        tree.closed(file);
        tree.sync(ROOT).unwrap();
        assert_eq!(tree.free_bytes(), 150);
    }
}
