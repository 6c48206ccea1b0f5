//! The user that PostgreSQL runs as: our own, or an unprivileged one because PostgreSQL refuses to run as root. Knows users,
//! owners and permission bits; knows nothing of PostgreSQL.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use crate::environment;
use crate::error::Error;

/// Candidates, in this order, when we are root.
const HUMBLE_USERS: [&str; 2] = ["postgres", "nobody"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    uid: u32,
    gid: u32,
    name: String,
    /// We are root and switch to this account.
    steps_down: bool,
}

impl Account {
    /// If a cluster exists, its owner is used, even if a user `postgres` was added to the machine later.
    pub fn choose(cluster: &Path) -> Result<Self, Error> {
        let me = rustix::process::geteuid();
        let owner = fs::metadata(cluster).ok().map(|found| (found.uid(), found.gid()));
        let passwd = || fs::read_to_string("/etc/passwd").unwrap_or_default();
        match owner {
            Some((uid, gid)) if me.is_root() && uid != 0 => {
                let name = name_of(&passwd(), uid).unwrap_or_else(|| uid.to_string());
                Ok(Self { uid, gid, name, steps_down: true })
            }
            _ if me.is_root() => humble(&passwd()).ok_or(Error::NoAccount),
            Some((owner, _)) if owner != me.as_raw() => {
                Err(Error::Foreign { dir: cluster.to_owned(), owner })
            }
            _ => {
                let name = name_of(&passwd(), me.as_raw()).unwrap_or_else(|| me.as_raw().to_string());
                let gid = rustix::process::getegid().as_raw();
                Ok(Self { uid: me.as_raw(), gid, name, steps_down: false })
            }
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// A command that runs as this account, in `folder`: our own working folder may not be accessible to it.
    pub fn command(&self, program: &Path, folder: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(folder).stdin(Stdio::null());
        // Neither our secrets, nor a PGDATA or PGPORT meant for another server.
        environment::limit(command.as_std_mut(), |_| false);
        // Messages in English, because some of them are parsed.
        command.env("LC_ALL", "C");
        if self.steps_down {
            command.gid(self.gid).uid(self.uid);
        }
        command
    }

    /// Makes this account the owner.
    pub fn own(&self, path: &Path) -> io::Result<()> {
        if self.steps_down { chown(path, Some(self.uid), Some(self.gid)) } else { Ok(()) }
    }

    /// The first folder on the way to `path` that this account may not enter, judged by mode bits alone.
    pub fn obstacle(&self, path: &Path) -> Option<PathBuf> {
        let mut way: Vec<&Path> = path.ancestors().collect();
        way.reverse();
        let closed =
            way.into_iter().find(|folder| fs::metadata(folder).is_ok_and(|found| !self.may_enter(&found)));
        closed.map(Path::to_owned)
    }

    fn may_enter(&self, folder: &Metadata) -> bool {
        let bit = match folder {
            _ if self.uid == 0 => return true,
            found if found.uid() == self.uid => 0o100,
            found if found.gid() == self.gid => 0o010,
            _ => 0o001,
        };
        folder.mode() & bit != 0
    }
}

fn humble(passwd: &str) -> Option<Account> {
    let find = |wanted: &str| users(passwd).find(|(name, uid, _)| *name == wanted && *uid != 0);
    let (name, uid, gid) = HUMBLE_USERS.iter().find_map(|name| find(name))?;
    Some(Account { uid, gid, name: name.to_owned(), steps_down: true })
}

fn name_of(passwd: &str, wanted: u32) -> Option<String> {
    users(passwd).find(|(_, uid, _)| *uid == wanted).map(|(name, ..)| name.to_owned())
}

fn users(passwd: &str) -> impl Iterator<Item = (&str, u32, u32)> {
    passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some((name, uid, gid))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65533::/:/bin/false\nbroken line\n";

    #[test]
    fn root_switches_to_postgres_or_else_to_the_user_nobody() {
        let chosen = humble(&format!("{PASSWD}postgres:x:101:104::/:/bin/sh\n")).unwrap();
        assert_eq!((chosen.name(), chosen.uid, chosen.gid), ("postgres", 101, 104));
        let chosen = humble(PASSWD).unwrap();
        assert_eq!((chosen.name(), chosen.uid, chosen.gid), ("nobody", 65534, 65533));
        assert_eq!(humble("root:x:0:0::/:/bin/sh\npostgres:x:0:0::/:/bin/sh\n"), None);
    }
}
