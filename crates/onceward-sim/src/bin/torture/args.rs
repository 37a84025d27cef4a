//! What can be typed. The doc comments are the help.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Tortures the real `once`, and lets a downstream that counts real effects be the judge.
#[derive(Debug, Parser)]
#[command(name = "torture", max_term_width = 110)]
#[command(after_help = "Exit codes: 0 nothing was violated, 1 something was, 2 wrong input. \
Needs strace and faketime; disk-full, server-gone and power-cut also need root and mounts, power-cut also python3. \
The scenarios of fleets need PostgreSQL and Redis.")]
pub(crate) struct Args {
    /// What to run [default: everything but power-cut]
    #[arg(value_enum)]
    pub(crate) scenarios: Vec<Scenario>,
    /// The short form, for every change: fewer kills and wider steps
    #[arg(long)]
    pub(crate) short: bool,
    /// Repeats a random run
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Print one JSON document instead of the table
    #[arg(long)]
    pub(crate) json: bool,
    /// The `once` to torture [default: it is built]
    #[arg(long, value_name = "PATH")]
    pub(crate) once: Option<PathBuf>,
    /// Where ledgers are made and removed again [default: the folder for temporary files]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) folder: Option<PathBuf>,
    /// How many random kills [default: 5000, 200 with --short]
    #[arg(long, value_name = "N")]
    pub(crate) kills: Option<u64>,
    /// How many power cuts [default: 200, 5 with --short]
    #[arg(long, value_name = "N")]
    pub(crate) cuts: Option<u64>,
    /// How the ledger of the power cuts is synced: anything but full must lose something
    #[arg(long, value_name = "MODE", default_value = "full", value_parser = ["full", "normal", "off"])]
    pub(crate) sync: String,
    /// Only these back ends, in the scenarios of fleets [default: all that the scenario is about]
    #[arg(long, value_name = "BACK END", value_enum, value_delimiter = ',')]
    pub(crate) on: Vec<BackEnd>,
    /// How many failovers of each back end [default: 20, 2 with --short]
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<u64>,
    /// Fail over to a standby that nobody waits for: this must lose something
    #[arg(long = "unsafe")]
    pub(crate) not_safe: bool,
    /// How many keys the processes of a fleet share [default: 2000, 100 with --short]
    #[arg(long, value_name = "N")]
    pub(crate) keys: Option<u64>,
    /// How many processes a fleet has
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(crate) processes: u64,
    /// How many messages the MCP proxy is fed [default: 10000000, 100000 with --short]
    #[arg(long, value_name = "N")]
    pub(crate) messages: Option<u64>,
    /// Keep the folders, to look into them
    #[arg(long)]
    pub(crate) keep: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// Kill `once run` at every system call of begin, dispatch and finish, and of its recovery
    Sweep,
    /// Kill at random times: the wrapper, the command, both; many at once on one ledger
    Random,
    /// Fill the disk before the intent, and between intent and outcome
    DiskFull,
    /// Let every sync report an error
    SyncError,
    /// Let the clock jump by days and years
    Clock,
    /// Stop processes for longer than their lease, then wake them
    Zombie,
    /// Many processes at once on one key, on a ledger that is not there yet
    Storm,
    /// A mutating command twice with one key: noop, exit 0, one effect
    CliAgentSpec,
    /// Partition a primary from its standby, kill it, promote the standby
    Failover,
    /// Many processes on the same keys of one server, on every back end
    FleetStorm,
    /// Stop, kill, cut off and fill the ledger's server under its clients
    ServerGone,
    /// Hostile messages through the MCP proxy, in both directions
    McpFuzz,
    /// Cut the power of a mounted disk under writers
    PowerCut,
}

/// What a ledger can be kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackEnd {
    Sqlite,
    Postgres,
    Redis,
    RedisCluster,
}

impl BackEnd {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::Redis => "redis",
            Self::RedisCluster => "redis-cluster",
        }
    }
}

impl Scenario {
    pub(crate) const DEFAULT: [Self; 12] = [
        Self::Sweep,
        Self::Random,
        Self::DiskFull,
        Self::SyncError,
        Self::Clock,
        Self::Zombie,
        Self::Storm,
        Self::CliAgentSpec,
        Self::Failover,
        Self::FleetStorm,
        Self::ServerGone,
        Self::McpFuzz,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sweep => "sweep",
            Self::Random => "random",
            Self::DiskFull => "disk-full",
            Self::SyncError => "sync-error",
            Self::Clock => "clock",
            Self::Zombie => "zombie",
            Self::Storm => "storm",
            Self::CliAgentSpec => "cli-agent-spec",
            Self::Failover => "failover",
            Self::FleetStorm => "fleet-storm",
            Self::ServerGone => "server-gone",
            Self::McpFuzz => "mcp-fuzz",
            Self::PowerCut => "power-cut",
        }
    }
}

impl Args {
    pub(crate) fn read() -> Self {
        Self::parse()
    }

    /// The back ends that a scenario is about, as far as they were chosen.
    pub(crate) fn back_ends(&self, all: &[BackEnd]) -> Vec<BackEnd> {
        all.iter().copied().filter(|one| self.on.is_empty() || self.on.contains(one)).collect()
    }

    /// What to run, each once.
    pub(crate) fn chosen(&self) -> Vec<Scenario> {
        let mut chosen =
            if self.scenarios.is_empty() { Scenario::DEFAULT.to_vec() } else { self.scenarios.clone() };
        chosen.dedup();
        chosen
    }
}
