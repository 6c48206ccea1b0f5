//! The command line, once.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, ValueEnum};
use serde::Serialize;
use tokio::runtime::{Builder, Runtime};

/// One broker.
#[derive(Args, Clone, Debug)]
pub struct RunOptions {
    /// Broker to load.
    #[arg(long, default_value = "http://127.0.0.1:6632", conflicts_with = "queen")]
    pub url: String,
    /// Queen binary to start on a fresh PostgreSQL instead.
    #[arg(long)]
    pub queen: Option<PathBuf>,
    /// Process of a broker not started here, for its CPU time and memory.
    #[arg(long, conflicts_with = "queen")]
    pub broker_pid: Option<u32>,
    /// Postmaster of a broker not started here, for its CPU time.
    #[arg(long, conflicts_with = "queen")]
    pub postgres_pid: Option<u32>,
    #[command(flatten)]
    pub options: Options,
}

/// Two brokers in turn.
#[derive(Args, Clone, Debug)]
pub struct CompareOptions {
    /// Our binary.
    #[arg(long)]
    pub queen: PathBuf,
    /// The other broker: a command to start it, or `http://…` of one that runs.
    #[arg(long)]
    pub peer: String,
    /// Folder for a picture of each family of scenarios.
    #[arg(long)]
    pub plots: Option<PathBuf>,
    /// File for the tables as Markdown.
    #[arg(long)]
    pub markdown: Option<PathBuf>,
    #[command(flatten)]
    pub options: Options,
}

/// PostgreSQL alone and our broker on it, in turn.
#[derive(Args, Clone, Debug)]
pub struct CeilingOptions {
    /// Our binary.
    #[arg(long)]
    pub queen: PathBuf,
    /// Reads the messages back as well, which a broker does for what is no longer in its cache.
    #[arg(long)]
    pub fetch: bool,
    /// File for the table as Markdown.
    #[arg(long)]
    pub markdown: Option<PathBuf>,
    #[command(flatten)]
    pub options: Options,
}

/// One broker for each point of each axis.
#[derive(Args, Clone, Debug)]
pub struct GrowthOptions {
    /// Our binary.
    #[arg(long)]
    pub queen: PathBuf,
    /// What grows, separated by commas [default: all of them].
    #[arg(long, value_enum, value_delimiter = ',')]
    pub axis: Vec<Axis>,
    /// Sizes along it instead of the usual ones, separated by commas.
    #[arg(long, value_delimiter = ',', requires = "axis")]
    pub points: Vec<u32>,
    /// Measured time of each operation [default: 5, quick: 0.2].
    #[arg(long, value_parser = seconds)]
    pub seconds: Option<Duration>,
    /// Small points and short times, for a smoke test.
    #[arg(long)]
    pub quick: bool,
    /// File for the full results.
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// File for the table as Markdown.
    #[arg(long)]
    pub markdown: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Axis {
    /// That exist, of which 64 are in use.
    Partitions,
    /// Consumer groups that read everything.
    Groups,
    /// Messages stored and not read.
    Backlog,
    /// Long polls of another queue.
    Parked,
    /// Bytes of a message.
    Payload,
}

/// One broker without and one beside a transaction that stays open.
#[derive(Args, Clone, Debug)]
pub struct PinnedOptions {
    /// Our binary.
    #[arg(long)]
    pub queen: PathBuf,
    /// Measured time of each [default: 300, quick: 1].
    #[arg(long, value_parser = seconds)]
    pub seconds: Option<Duration>,
    /// A short time, for a smoke test.
    #[arg(long)]
    pub quick: bool,
    /// File for the full results.
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// File for the tables as Markdown.
    #[arg(long)]
    pub markdown: Option<PathBuf>,
}

/// One broker for a long time below its peak, then once more beside a transaction that stays open.
#[derive(Args, Clone, Debug)]
pub struct SoakOptions {
    /// Our binary.
    #[arg(long)]
    pub queen: PathBuf,
    /// How long, without the transaction and again with it [default: 1800, quick: 3].
    #[arg(long, value_parser = seconds)]
    pub seconds: Option<Duration>,
    /// How long with it, if that is to be another time.
    #[arg(long, value_parser = seconds)]
    pub pinned_seconds: Option<Duration>,
    /// Share of the peak, which is measured first.
    #[arg(long, default_value_t = 0.7)]
    pub load: f64,
    /// Seconds after which messages are removed [default: 60, quick: 1].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub keep: Option<u32>,
    /// A short time, for a smoke test that has no goals.
    #[arg(long)]
    pub quick: bool,
    /// File for the full results.
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// File for the tables as Markdown.
    #[arg(long)]
    pub markdown: Option<PathBuf>,
}

/// One broker and one client.
#[derive(Args, Clone, Debug)]
pub struct ClientOptions {
    /// Our binary.
    #[arg(long)]
    pub queen: PathBuf,
    /// Messages of each load; a tenth of them one a request [default: 400000, quick: 2000].
    #[arg(long, value_parser = clap::value_parser!(u64).range(2_000..))]
    pub messages: Option<u64>,
    /// Few messages, for a smoke test.
    #[arg(long)]
    pub quick: bool,
    /// File for the full results.
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// File for the table as Markdown.
    #[arg(long)]
    pub markdown: Option<PathBuf>,
}

/// One broker on one filled database.
#[derive(Args, Clone, Debug)]
pub struct AdminOptions {
    /// Our binary.
    #[arg(long)]
    pub queen: PathBuf,
    /// Partitions of the large queue [default: 100000, quick: 2000].
    #[arg(long, value_parser = clap::value_parser!(u32).range(100..))]
    pub partitions: Option<u32>,
    /// Messages in each of them.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub messages: u32,
    /// Small queues beside it [default: 500, quick: 50].
    #[arg(long)]
    pub queues: Option<u32>,
    /// Messages pushed a second, and delivered to each of two groups a second, while questions are asked.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(10..))]
    pub rate: u32,
    /// Time for each question [default: 5, quick: 0.3].
    #[arg(long, value_parser = seconds)]
    pub seconds: Option<Duration>,
    /// Pairs of runs, one with and one without statistics [default: 8, quick: 1].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub pairs: Option<u32>,
    /// A small queue and short times, for a smoke test that has no goals.
    #[arg(long)]
    pub quick: bool,
    /// File for the full results.
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// File for the tables as Markdown.
    #[arg(long)]
    pub markdown: Option<PathBuf>,
}

/// Two brokers, and everything that may happen to them.
#[derive(Args, Clone, Debug)]
pub struct ChaosOptions {
    /// Our binary.
    #[arg(long)]
    pub queen: PathBuf,
    /// Decides on the faults and on what the workers do [default: a new one].
    #[arg(long)]
    pub seed: Option<u64>,
    /// Runs, each with the seed after the last one's.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Time under load of each run [default: 60, quick: 14; with a failover or an upgrade: 20, quick: 6].
    #[arg(long, value_parser = seconds)]
    pub seconds: Option<Duration>,
    /// Keeps the logs of brokers and PostgreSQL, which a run without a violation removes.
    #[arg(long)]
    pub keep_logs: bool,
    /// Instead of the faults: the primary is killed, and its synchronous standby promoted.
    #[arg(long)]
    pub failover: bool,
    /// Instead of the faults: both brokers are this earlier release at first, and replaced one after the other.
    #[arg(long, value_name = "BINARY", conflicts_with = "failover")]
    pub upgrade_from: Option<PathBuf>,
    /// Short faults and a short run, for a smoke test.
    #[arg(long)]
    pub quick: bool,
    /// File for the full results.
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// File for the tables as Markdown.
    #[arg(long)]
    pub markdown: Option<PathBuf>,
}

/// The load, the same for every broker.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Scenarios or families of them (`push`, `pop-wildcard-10`), separated by commas, or `all`.
    #[arg(long, value_delimiter = ',', default_value = "all")]
    pub scenario: Vec<String>,
    /// Measured time of each timed scenario [default: 5, quick: 0.5].
    #[arg(long, value_parser = seconds)]
    pub seconds: Option<Duration>,
    /// Time before it that is not measured [default: 1, quick: 0.1].
    #[arg(long, value_parser = seconds)]
    pub warmup: Option<Duration>,
    /// Closed-loop workers, one connection each.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub connections: u32,
    /// Partitions of a queue, where the scenario does not say otherwise.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(10..))]
    pub partitions: u32,
    /// Bytes of a payload as JSON text; about 70 are its own bookkeeping.
    #[arg(long, default_value_t = 256)]
    pub payload: usize,
    /// Repetitions of everything, each on a fresh PostgreSQL; the tables show medians [default: 1, of a
    /// comparison: 3, quick: 1].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: Option<u32>,
    /// Once more for the costs that PostgreSQL tells late: waits 11 s before and after each scenario.
    #[arg(long)]
    pub budget: bool,
    /// Short times and small counts, for a smoke test.
    #[arg(long)]
    pub quick: bool,
    /// File for the full results.
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Connections of the burst scenario [default: 500, quick: 50].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub burst_connections: Option<u32>,
    /// Long polls of the parked scenario [default: 2000, quick: 200].
    #[arg(long)]
    pub parked: Option<u32>,
    /// Most messages loaded ahead of a pop scenario.
    #[arg(long, default_value_t = 500_000)]
    pub preload_max: u32,
    /// Give up on missing messages after this long without any.
    #[arg(long, default_value = "10", value_parser = seconds)]
    pub stall: Duration,
    /// Threads of the load generator: 1 or 2.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub threads: u8,
}

impl Options {
    /// All defaults, for commands that decide on the load themselves.
    pub fn standard() -> Options {
        #[derive(Parser)]
        struct Defaults {
            #[command(flatten)]
            options: Options,
        }
        Defaults::parse_from(["queen-bench"]).options
    }

    pub fn measured(&self) -> Duration {
        self.seconds.unwrap_or(self.scale(Duration::from_secs(5), Duration::from_millis(500)))
    }

    pub fn warmup(&self) -> Duration {
        self.warmup.unwrap_or(self.scale(Duration::from_secs(1), Duration::from_millis(100)))
    }

    pub fn burst_connections(&self) -> u32 {
        self.burst_connections.unwrap_or(self.scale(500, 50))
    }

    pub fn parked(&self) -> u32 {
        self.parked.unwrap_or(self.scale(2_000, 200))
    }

    pub fn runtime(&self) -> std::io::Result<Runtime> {
        let mut runtime = match self.threads {
            1 => Builder::new_current_thread(),
            _ => Builder::new_multi_thread(),
        };
        if self.threads > 1 {
            runtime.worker_threads(self.threads.into());
        }
        runtime.enable_all().build()
    }

    pub fn scale<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}
