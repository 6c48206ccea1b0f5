//! Finds PostgreSQL's programs on this machine and determines their version. Starts no server.

use std::cmp::Reverse;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf, absolute};

use crate::account::Account;
use crate::error::Error;

/// The oldest release whose SQL and settings Queen can use; also Debian 12's.
const OLDEST: u32 = 15;

/// The programs of one PostgreSQL installation.
#[derive(Debug)]
pub struct Binaries {
    dir: PathBuf,
    pub version: u32,
}

impl Binaries {
    /// The first installation that is new enough and, if a cluster exists, of the release that created it. Programs are tried as
    /// `account` in `folder`, so that missing permissions show here and not inside initdb.
    pub async fn find(
        configured: Option<&Path>,
        cluster: Option<u32>,
        account: &Account,
        folder: &Path,
    ) -> Result<Self, Error> {
        let places = match configured {
            Some(dir) => vec![absolute(dir).map_err(Error::io("resolve", dir))?],
            None => usual_places(std::env::var_os("PATH").as_deref()),
        };
        let mut refused = None;
        for dir in places {
            if !["postgres", "initdb"].iter().all(|program| dir.join(program).is_file()) {
                continue;
            }
            let refusal = match (version(&dir.join("postgres"), account, folder).await, cluster) {
                (Err(error), _) => error,
                (Ok(found), _) if found < OLDEST => Error::TooOld { dir, found, oldest: OLDEST },
                (Ok(found), Some(cluster)) if found != cluster => Error::OtherVersion { dir, found, cluster },
                (Ok(version), _) => return Ok(Self { dir, version }),
            };
            refused.get_or_insert(refusal);
        }
        let nothing =
            || configured.map_or(Error::NoBinaries, |dir| Error::NotBinaries { dir: dir.to_owned() });
        Err(refused.unwrap_or_else(nothing))
    }

    pub fn postgres(&self) -> PathBuf {
        self.dir.join("postgres")
    }

    pub fn initdb(&self) -> PathBuf {
        self.dir.join("initdb")
    }

    /// Whether an extension's library is installed, in the places that packagers use. `pg_config` would know for sure, but is often
    /// in a separate package.
    pub fn has_library(&self, name: &str) -> bool {
        let program = fs::canonicalize(self.postgres()).unwrap_or_else(|_| self.postgres());
        let Some(home) = program.parent().and_then(Path::parent) else { return false };
        let folders = ["lib", "lib/postgresql", "lib/pgsql", "lib64/pgsql"];
        let files = [format!("{name}.so"), format!("{name}.dylib")];
        folders.iter().any(|folder| files.iter().any(|file| home.join(folder).join(file).exists()))
    }
}

async fn version(postgres: &Path, account: &Account, folder: &Path) -> Result<u32, Error> {
    let broken = |reason: String| Error::Broken { program: postgres.to_owned(), reason };
    match account.command(postgres, folder).arg("--version").output().await {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout);
            let complaint = String::from_utf8_lossy(&output.stderr);
            parse_version(&said).ok_or_else(|| broken(format!("{said}{complaint}").trim().to_owned()))
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let closed = account.obstacle(folder).or_else(|| account.obstacle(postgres));
            Err(closed.map_or_else(
                || broken(error.to_string()),
                |folder| Error::NoWayIn { folder, user: account.name().to_owned() },
            ))
        }
        Err(error) => Err(broken(error.to_string())),
    }
}

/// `postgres (PostgreSQL) 15.12 (Debian 15.12-0+deb12u2)` is 15, `… 18beta1` is 18.
fn parse_version(text: &str) -> Option<u32> {
    let number = text.split_once("(PostgreSQL) ")?.1;
    let end = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    number[..end].parse().ok()
}

/// Best guess first: the PATH, then Debian, Fedora, Homebrew, and builds from source.
fn usual_places(path: Option<&OsStr>) -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> = path.map(|path| std::env::split_paths(path).collect()).unwrap_or_default();
    places.retain(|place| place.is_absolute());
    places.extend(by_version("/usr/lib/postgresql", ""));
    places.extend(by_version("/usr", "pgsql-"));
    places.extend(by_version("/opt/homebrew/opt", "postgresql@"));
    places.extend(by_version("/usr/local/opt", "postgresql@"));
    places.extend(["/opt/homebrew/bin", "/usr/local/bin", "/usr/local/pgsql/bin"].map(PathBuf::from));
    places
}

/// `<parent>/<prefix><number>/bin`, highest number first.
fn by_version(parent: &str, prefix: &str) -> Vec<PathBuf> {
    let mut found: Vec<(Reverse<u32>, PathBuf)> = Vec::new();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number =
            name.to_str().and_then(|name| name.strip_prefix(prefix)).and_then(|rest| rest.parse().ok());
        found.extend(number.map(|number| (Reverse(number), entry.path().join("bin"))));
    }
    found.sort();
    found.into_iter().map(|(_, bin)| bin).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_its_first_number() {
        assert_eq!(parse_version("postgres (PostgreSQL) 15.12 (Debian 15.12-0+deb12u2)\n"), Some(15));
        assert_eq!(parse_version("postgres (PostgreSQL) 18beta1\n"), Some(18));
        assert_eq!(parse_version("postgres (PostgreSQL) devel"), None);
        assert_eq!(parse_version("sh: not found"), None);
    }

    #[test]
    fn ten_is_higher_than_nine() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["pgsql-9", "pgsql-16", "pgsql-10", "pgsql-old", "other-17"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let found = by_version(dir.path().to_str().unwrap(), "pgsql-");
        assert_eq!(found, ["pgsql-16", "pgsql-10", "pgsql-9"].map(|name| dir.path().join(name).join("bin")));
    }
}
