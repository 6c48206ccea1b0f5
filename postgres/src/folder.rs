//! The data folder: what is where in it, and the lock that makes it ours. Starts nothing.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::account::Account;
use crate::error::Error;

/// The cluster's folder inside the data folder.
pub const CLUSTER: &str = "postgres";
const LOCK: &str = "queen.lock";

/// An open and locked data folder. The lock ends with the process, so even `kill -9` leaves nothing to clean up.
#[derive(Debug)]
pub struct Folder {
    /// Absolute, without symbolic links.
    pub root: PathBuf,
    _lock: File,
}

impl Folder {
    pub fn open(path: &Path) -> Result<Self, Error> {
        let root_user = rustix::process::geteuid().is_root();
        // As root, the server runs as another user, who must be able to enter the folder but not list it.
        let mode = if root_user { 0o711 } else { 0o700 };
        let create = DirBuilder::new().recursive(true).mode(mode).create(path);
        create.map_err(Error::io("create", path))?;
        let root = fs::canonicalize(path).map_err(Error::io("resolve", path))?;
        if root_user && is_ours(&root).map_err(Error::io("read", &root))? {
            let_through(&root).map_err(Error::io("change the permissions of", &root))?;
        }
        Ok(Self { _lock: lock(&root)?, root })
    }

    pub fn cluster(&self) -> PathBuf {
        self.root.join(CLUSTER)
    }

    /// The release that created the cluster, `None` before there is one.
    pub fn cluster_version(&self) -> Result<Option<u32>, Error> {
        let cluster = self.cluster();
        match fs::read_to_string(cluster.join("PG_VERSION")) {
            Ok(text) => text.trim().parse().map(Some).map_err(|_| Error::NotACluster { dir: cluster }),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("read", &cluster)(error)),
            Err(_) if fs::read_dir(&cluster).is_ok_and(|mut entries| entries.next().is_some()) => {
                Err(Error::NotACluster { dir: cluster })
            }
            Err(_) => Ok(None),
        }
    }

    /// An empty folder that only `account` can enter, replacing whatever was there.
    pub fn fresh(&self, name: &str, account: &Account) -> Result<PathBuf, Error> {
        let dir = self.root.join(name);
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io("remove", &dir)(error));
            }
            _ => {}
        }
        DirBuilder::new().mode(0o700).create(&dir).map_err(Error::io("create", &dir))?;
        account.own(&dir).map_err(Error::io("change the owner of", &dir))?;
        Ok(dir)
    }
}

/// New, or used by us before. The permissions of other folders are left alone.
fn is_ours(root: &Path) -> io::Result<bool> {
    Ok(root.join(LOCK).exists() || fs::read_dir(root)?.next().is_none())
}

fn let_through(root: &Path) -> io::Result<()> {
    let mode = fs::metadata(root)?.permissions().mode();
    if mode & 0o011 == 0o011 {
        return Ok(());
    }
    fs::set_permissions(root, Permissions::from_mode(mode | 0o011))
}

fn lock(root: &Path) -> Result<File, Error> {
    let path = root.join(LOCK);
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o644).open(&path);
    let mut file = open.map_err(Error::io("open", &path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            // Empty if the other process has just started; the pid only helps the reader.
            let _ = file.read_to_string(&mut pid);
            return Err(Error::InUse { dir: root.to_owned(), pid: pid.trim().parse().ok() });
        }
        Err(TryLockError::Error(error)) => return Err(Error::io("lock", &path)(error)),
    }
    let write = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    write.map_err(Error::io("write", &path))?;
    Ok(file)
}
