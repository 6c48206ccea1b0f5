//! Mounts the tree as a file system for PostgreSQL and brokers, through FUSE.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, SessionACL,
    TimeOrNow, WriteFlags,
};

use super::tree::{Content, Number, Refusal, Tree};

/// The kernel must not cache: after a power failure everything may be different.
const NO_CACHE: Duration = Duration::ZERO;
const BLOCK: u32 = 4096;
const FIRST: Generation = Generation(0);

pub type Shared = Arc<Mutex<Tree>>;

pub fn lock(tree: &Shared) -> MutexGuard<'_, Tree> {
    tree.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Mounted until the result is dropped.
pub fn mount(tree: &Shared, folder: &Path) -> io::Result<BackgroundSession> {
    let mut config = Config::default();
    config.mount_options =
        vec![MountOption::FSName("queen-chaos".to_owned()), MountOption::DefaultPermissions];
    // PostgreSQL runs as another user.
    config.acl = SessionACL::All;
    fuser::spawn_mount(Mounted(Arc::clone(tree)), folder, &config)
}

struct Mounted(Shared);

impl From<Refusal> for Errno {
    fn from(refusal: Refusal) -> Errno {
        match refusal {
            Refusal::Missing => Errno::ENOENT,
            Refusal::Exists => Errno::EEXIST,
            Refusal::NotAFolder => Errno::ENOTDIR,
            Refusal::IsAFolder => Errno::EISDIR,
            Refusal::NotEmpty => Errno::ENOTEMPTY,
            Refusal::NoSpace => Errno::ENOSPC,
        }
    }
}

impl Mounted {
    fn tree(&self) -> MutexGuard<'_, Tree> {
        lock(&self.0)
    }
}

fn attributes(tree: &Tree, number: Number) -> Result<FileAttr, Refusal> {
    let node = tree.node(number)?;
    let (kind, size) = match &node.content {
        Content::File { bytes, .. } => (FileType::RegularFile, bytes.len() as u64),
        Content::Folder { .. } => (FileType::Directory, 0),
    };
    // Users of this disk do not need file times.
    let time = SystemTime::UNIX_EPOCH;
    Ok(FileAttr {
        ino: INodeNo(number),
        size,
        blocks: size.div_ceil(512),
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind,
        perm: (node.mode & 0o7777) as u16,
        nlink: if kind == FileType::Directory { 2 } else { 1 },
        uid: node.uid,
        gid: node.gid,
        rdev: 0,
        blksize: BLOCK,
        flags: 0,
    })
}

fn done(result: Result<(), Refusal>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(refusal) => reply.error(refusal.into()),
    }
}

fn entry(tree: &Tree, found: Result<Number, Refusal>, reply: ReplyEntry) {
    match found.and_then(|number| attributes(tree, number)) {
        Ok(attributes) => reply.entry(&NO_CACHE, &attributes, FIRST),
        Err(refusal) => reply.error(refusal.into()),
    }
}

impl Filesystem for Mounted {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let tree = self.tree();
        entry(&tree, tree.lookup(parent.0, name), reply);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match attributes(&self.tree(), ino.0) {
            Ok(attributes) => reply.attr(&NO_CACHE, &attributes),
            Err(refusal) => reply.error(refusal.into()),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut tree = self.tree();
        let change = |tree: &mut Tree| {
            if let Some(size) = size {
                tree.resize(ino.0, usize::try_from(size).map_err(|_| Refusal::NoSpace)?)?;
            }
            let node = tree.node_mut(ino.0)?;
            node.mode = mode.unwrap_or(node.mode);
            node.uid = uid.unwrap_or(node.uid);
            node.gid = gid.unwrap_or(node.gid);
            attributes(tree, ino.0)
        };
        match change(&mut tree) {
            Ok(attributes) => reply.attr(&NO_CACHE, &attributes),
            Err(refusal) => reply.error(refusal.into()),
        }
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let mut tree = self.tree();
        let made = tree.add(parent.0, name, true, (request.uid(), request.gid()), mode & !umask);
        entry(&tree, made, reply);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let mut tree = self.tree();
        let owner = (request.uid(), request.gid());
        let made = tree.add(parent.0, name, false, owner, mode & !umask).and_then(|number| {
            tree.opened(number)?;
            attributes(&tree, number)
        });
        match made {
            Ok(attributes) => {
                reply.created(&NO_CACHE, &attributes, FIRST, FileHandle(0), FopenFlags::empty())
            }
            Err(refusal) => reply.error(refusal.into()),
        }
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.tree().remove(parent.0, name, false), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.tree().remove(parent.0, name, true), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        done(self.tree().rename((parent.0, name), (newparent.0, newname)), reply);
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.tree().opened(ino.0) {
            Ok(()) => reply.opened(FileHandle(0), FopenFlags::empty()),
            Err(refusal) => reply.error(refusal.into()),
        }
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.tree().closed(ino.0);
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.tree().read(ino.0, offset, size as usize) {
            Ok(bytes) => reply.data(bytes),
            Err(refusal) => reply.error(refusal.into()),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.tree().write(ino.0, offset, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(refusal) => reply.error(refusal.into()),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        done(self.tree().sync(ino.0), reply);
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        done(self.tree().sync(ino.0), reply);
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let tree = self.tree();
        let entries = match tree.entries(ino.0) {
            Ok(entries) => entries,
            Err(refusal) => return reply.error(refusal.into()),
        };
        let dots = [".", ".."].map(|name| (OsStr::new(name), ino.0));
        let all = dots.into_iter().chain(entries.iter().map(|(name, &number)| (name.as_os_str(), number)));
        for (place, (name, number)) in (1..).zip(all).skip(offset as usize) {
            let kind = match attributes(&tree, number) {
                Ok(attributes) => attributes.kind,
                Err(_) => continue,
            };
            if reply.add(INodeNo(number), place, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        _: i32,
        reply: ReplyEmpty,
    ) {
        let mut tree = self.tree();
        let end = usize::try_from(offset + length).map_err(|_| Refusal::NoSpace);
        let grow = |end| if end > tree.length(ino.0)? { tree.resize(ino.0, end) } else { Ok(()) };
        done(end.and_then(grow), reply);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let tree = self.tree();
        let block = u64::from(BLOCK);
        let (all, free) = (tree.capacity() as u64 / block, tree.free_bytes() as u64 / block);
        reply.statfs(all, free, free, 1 << 20, 1 << 20, BLOCK, 255, BLOCK);
    }
}
