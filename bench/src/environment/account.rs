//! The user that our PostgreSQL runs as: an unprivileged one if we are root, because PostgreSQL refuses root.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;

use anyhow::{Context, Result};
use tokio::process::Command;

/// Candidates, in this order, when we are root.
const HUMBLE_USERS: [&str; 2] = ["postgres", "nobody"];

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Account {
    Ourselves,
    Humble { uid: u32, gid: u32 },
}

impl Account {
    pub fn choose() -> Result<Account> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Account::Ourselves);
        }
        humble(&fs::read_to_string("/etc/passwd")?)
            .context("PostgreSQL refuses to run as root, and there is no user postgres or nobody")
    }

    pub fn own(self, folder: &Path) -> Result<()> {
        match self {
            Account::Ourselves => Ok(()),
            Account::Humble { uid, gid } => Ok(chown(folder, Some(uid), Some(gid))?),
        }
    }

    pub fn command(self, program: &Path, folder: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(folder).env("LC_ALL", "C");
        if let Account::Humble { uid, gid } = self {
            command.uid(uid).gid(gid);
        }
        command
    }
}

fn humble(passwd: &str) -> Option<Account> {
    let find = |wanted: &&str| {
        passwd.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, uid, gid, ..] = fields[..] else { return None };
            let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
            (name == *wanted && uid != 0).then_some(Account::Humble { uid, gid })
        })
    };
    HUMBLE_USERS.iter().find_map(find)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_switches_to_postgres_or_else_to_the_user_nobody() {
        let nobody = "root:x:0:0:root:/root:/bin/sh\nbroken\nnobody:x:65534:65533::/:/bin/false\n";
        assert_eq!(humble(nobody), Some(Account::Humble { uid: 65534, gid: 65533 }));
        let both = format!("{nobody}postgres:x:101:104::/:/bin/sh\n");
        assert_eq!(humble(&both), Some(Account::Humble { uid: 101, gid: 104 }));
        assert_eq!(humble("postgres:x:0:0::/:/bin/sh"), None);
    }
}
