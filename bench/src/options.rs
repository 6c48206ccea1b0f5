//! The command line options of all subcommands.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, ValueEnum};
use serde::Serialize;
use tokio::runtime::{Builder, Runtime};

/// One broker.
#[derive(Args, Clone, Debug)]
pub struct RunOptions {
    /// URL of the broker to load.
    #[arg(long, default_value = "http://127.0.0.1:6632", conflicts_with = "queen")]
    pub url: String,
    /// Queen binary to start on a fresh PostgreSQL instead.
    #[arg(long)]
    pub queen: Option<PathBuf>,
    /// Process id of a broker that was not started here, for its CPU time and memory.
    #[arg(long, conflicts_with = "queen")]
    pub broker_pid: Option<u32>,
    /// Postmaster of a broker that was not started here, for its CPU time.
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
    /// The other broker: a command to start it, or the `http://…` URL of a running one.
    #[arg(long)]
    pub peer: String,
    /// Folder for a chart of each scenario family.
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
    /// Also read the messages back, which a broker does for those that are not in its cache.
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
    /// What grows, separated by commas [default: all].
    #[arg(long, value_enum, value_delimiter = ',')]
    pub axis: Vec<Axis>,
    /// Sizes to use instead of the usual ones, separated by commas.
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
    /// Existing partitions, of which 64 are in use.
    Partitions,
    /// Consumer groups that read everything.
    Groups,
    /// Messages stored and not read.
    Backlog,
    /// Long polls of another queue.
    Parked,
    /// Payload size in bytes.
    Payload,
}

/// One broker without and one with a transaction that stays open.
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

/// One broker for a long time below its peak, then again with a transaction that stays open.
#[derive(Args, Clone, Debug)]
pub struct SoakOptions {
    /// Our binary.
    #[arg(long)]
    pub queen: PathBuf,
    /// Duration, without the transaction and again with it [default: 1800, quick: 3].
    #[arg(long, value_parser = seconds)]
    pub seconds: Option<Duration>,
    /// Duration with the transaction, if different.
    #[arg(long, value_parser = seconds)]
    pub pinned_seconds: Option<Duration>,
    /// Share of the peak, which is measured first.
    #[arg(long, default_value_t = 0.7)]
    pub load: f64,
    /// Retention of messages in seconds [default: 60, quick: 1].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub keep: Option<u32>,
    /// A short time, for a smoke test without goals.
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
    /// Messages of each load; a tenth of them for loads with one per request [default: 400000, quick: 2000].
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
    /// Number of small queues [default: 500, quick: 50].
    #[arg(long)]
    pub queues: Option<u32>,
    /// Messages pushed per second, and delivered to each of two groups per second, during the queries.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(10..))]
    pub rate: u32,
    /// Duration of each query [default: 5, quick: 0.3].
    #[arg(long, value_parser = seconds)]
    pub seconds: Option<Duration>,
    /// Pairs of runs, one with and one without statistics [default: 8, quick: 1].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub pairs: Option<u32>,
    /// A small queue and short times, for a smoke test without goals.
    #[arg(long)]
    pub quick: bool,
    /// File for the full results.
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// File for the tables as Markdown.
    #[arg(long)]
    pub markdown: Option<PathBuf>,
}

/// Two brokers under injected faults.
#[derive(Args, Clone, Debug)]
pub struct ChaosOptions {
    /// Our binary.
    #[arg(long)]
    pub queen: PathBuf,
    /// Determines the faults and the workers' actions [default: random].
    #[arg(long)]
    pub seed: Option<u64>,
    /// Number of runs, each with the next seed.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Time under load of each run [default: 60, quick: 14; with a failover or an upgrade: 20, quick: 6].
    #[arg(long, value_parser = seconds)]
    pub seconds: Option<Duration>,
    /// Keep the logs of brokers and PostgreSQL; by default they are removed after a run without violations.
    #[arg(long)]
    pub keep_logs: bool,
    /// Instead of other faults: kill the primary and promote its synchronous standby.
    #[arg(long)]
    pub failover: bool,
    /// Instead of other faults: start both brokers from this earlier release, and replace them one after the other.
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
    /// Warm-up before it [default: 1, quick: 0.1].
    #[arg(long, value_parser = seconds)]
    pub warmup: Option<Duration>,
    /// Closed-loop workers, one connection each.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub connections: u32,
    /// Partitions of a queue, unless the scenario determines them.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(10..))]
    pub partitions: u32,
    /// Payload size as JSON text in bytes; about 70 of them are bookkeeping.
    #[arg(long, default_value_t = 256)]
    pub payload: usize,
    /// Number of runs, each on a fresh PostgreSQL; the tables show medians [default: 1, for a comparison: 3,
    /// quick: 1].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: Option<u32>,
    /// Add a pass for costs that PostgreSQL reports late: waits 11 s before and after each scenario.
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
    /// Maximum messages loaded ahead of a pop scenario.
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
    /// All defaults, for commands that determine the load themselves.
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
