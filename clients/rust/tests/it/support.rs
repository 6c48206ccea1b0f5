//! A broker for a test.

use std::path::PathBuf;
use std::time::Duration;

use queen_client::Queen;
use queen_testkit::{Broker, Database};

/// Long enough for a busy machine; a test that needs all of it has failed.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Next to the folder of this test, or at `QUEEN_BIN`.
pub fn binary() -> PathBuf {
    let binary = match std::env::var_os("QUEEN_BIN") {
        Some(path) => PathBuf::from(path),
        None => built("queen"),
    };
    assert!(binary.exists(), "{} is missing: cargo build -p queen-server", binary.display());
    binary
}

/// A program built by cargo: `queen`, or `examples/worker`.
pub fn built(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("a program");
    own.ancestors().nth(2).expect("a test is in target/debug/deps").join(name)
}

pub struct Site {
    pub queen: Queen,
    pub broker: Broker,
    _database: Database,
}

impl Site {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts a broker with these flags.
    pub async fn start_with(flags: &[&str]) -> Self {
        let database = queen_testkit::database().await;
        let mut flags = flags.to_vec();
        flags.extend(["--database-url", database.url()]);
        let broker = Broker::start(&binary(), &flags, &[]).await.expect("a broker");
        let queen = Queen::connect(broker.url()).expect("an URL");
        Self { queen, broker, _database: database }
    }

    /// Returns once this many pops wait at the broker.
    pub async fn parked(&self, pops: usize) {
        let parked = |text: &str| {
            let line = text.lines().find(|line| line.starts_with("queen_parked_pops"))?;
            line.rsplit_once(' ')?.1.parse::<f64>().ok()
        };
        let reached = async {
            while parked(&self.queen.admin().prometheus().await.expect("metrics")) != Some(pops as f64) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.expect("they wait");
    }

    /// A group's unread messages in a queue.
    pub async fn depth(&self, queue: &str, group: &str) -> u64 {
        self.queen.admin().depth(queue, group).await.expect("a depth").pending
    }
}
