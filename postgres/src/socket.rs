//! Chooses the private folder of the server's socket. Opens no connection.

use std::fs::{self, DirBuilder, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use crate::account::Account;
use crate::connection::{PORT, socket_name};
use crate::error::Error;

/// The size of `sun_path` less its final zero: 107 on Linux, 103 on macOS; this is the smaller.
const SOCKET_PATH_BYTES_MAX: usize = 103;

/// Inside the data folder if possible, otherwise a temporary folder whose name depends only on the data folder, so that
/// restarts do not leave more and more of them.
pub fn choose(root: &Path, account: &Account) -> Result<PathBuf, Error> {
    let mut hasher = DefaultHasher::new();
    root.hash(&mut hasher);
    let short = format!("queen-{:016x}", hasher.finish());
    let tried = vec![root.join("socket"), std::env::temp_dir().join(&short), Path::new("/tmp").join(&short)];
    for dir in &tried {
        if is_addressable(dir) && account.obstacle(dir.parent().unwrap_or(dir)).is_none() {
            match make_private(dir, account).and_then(|()| probe(dir)) {
                Ok(()) => return Ok(dir.clone()),
                Err(error) => tracing::debug!(dir = %dir.display(), %error, "unusable socket folder"),
            }
        }
    }
    Err(Error::NoSocketDir { tried })
}

/// Removes what a killed server left. Only call this when no server is running: the lock file beside the socket names a pid,
/// and PostgreSQL trusts it even if another process has that pid now.
pub fn clear(dir: &Path) {
    let socket = socket_name(PORT);
    for name in [format!("{socket}.lock"), socket] {
        let _ = fs::remove_file(dir.join(name));
    }
}

/// The value of `unix_socket_directories`, which is a list, so each name in it is quoted.
pub fn setting(dir: &Path) -> String {
    format!("\"{}\"", dir.to_string_lossy().replace('"', "\"\""))
}

/// Short enough, and usable in a connection string, where a comma separates hosts.
fn is_addressable(dir: &Path) -> bool {
    let socket = dir.join(socket_name(PORT));
    socket.to_str().is_some_and(|path| path.len() <= SOCKET_PATH_BYTES_MAX && !path.contains(','))
}

fn make_private(dir: &Path, account: &Account) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // In a shared temporary folder, another user may have created a link or a folder of this name; a server in it would not be
    // private.
    let found = fs::symlink_metadata(dir)?;
    let owners = [rustix::process::geteuid().as_raw(), account.uid()];
    if !found.is_dir() || !owners.contains(&found.uid()) {
        return Err(io::Error::other("belongs to another user"));
    }
    account.own(dir)?;
    fs::set_permissions(dir, Permissions::from_mode(0o700))
}

/// Some mounted folders (shared from another system into a container, for example) support files but no sockets.
fn probe(dir: &Path) -> io::Result<()> {
    let path = dir.join(".probe");
    let _ = fs::remove_file(&path);
    UnixListener::bind(&path)?;
    fs::remove_file(&path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_addressable_up_to_the_last_byte() {
        let taken = "/".len() + socket_name(PORT).len();
        let fits = format!("/{}", "x".repeat(SOCKET_PATH_BYTES_MAX - taken - 1));
        assert!(is_addressable(Path::new(&fits)));
        assert!(!is_addressable(Path::new(&format!("{fits}x"))));
        assert!(!is_addressable(Path::new("/a,b")));
    }

    #[test]
    fn another_users_folder_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let account = Account::choose(&dir.path().join("none")).unwrap();
        std::os::unix::fs::symlink("/tmp", dir.path().join("link")).unwrap();
        assert!(make_private(&dir.path().join("link"), &account).is_err());
        assert!(make_private(&dir.path().join("new"), &account).is_ok());
    }
}
