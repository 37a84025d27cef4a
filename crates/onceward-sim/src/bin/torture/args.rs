//! Command-line arguments. The doc comments are the help texts.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Tortures the real `once`; a downstream that counts real effects is the judge
#[derive(Debug, Parser)]
#[command(name = "torture", max_term_width = 110)]
#[command(after_help = "Exit codes: 0 nothing was violated, 1 something was, 2 wrong input. \
Needs strace and faketime; disk-full, server-gone and power-cut also need root and mounts, power-cut also python3. \
The scenarios of fleets need PostgreSQL and Redis.")]
pub(crate) struct Args {
    /// What to run [default: everything but power-cut]
    #[arg(value_enum)]
    pub(crate) scenarios: Vec<Scenario>,
    /// The short form, to run on every change: fewer kills and wider steps
    #[arg(long)]
    pub(crate) short: bool,
    /// Repeat the choices of an earlier run
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Print one JSON document instead of the table
    #[arg(long)]
    pub(crate) json: bool,
    /// The `once` to torture [default: build it]
    #[arg(long, value_name = "PATH")]
    pub(crate) once: Option<PathBuf>,
    /// Where ledgers are created and removed again [default: the folder for temporary files]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) folder: Option<PathBuf>,
    /// How many random kills [default: 5000, 200 with --short; for `undo` 2000 and 24]
    #[arg(long, value_name = "N")]
    pub(crate) kills: Option<u64>,
    /// How many power cuts [default: 200, 5 with --short]
    #[arg(long, value_name = "N")]
    pub(crate) cuts: Option<u64>,
    /// How the ledger of the power cuts is synced; anything but full must lose something
    #[arg(long, value_name = "MODE", default_value = "full", value_parser = ["full", "normal", "off"])]
    pub(crate) sync: String,
    /// Only these back ends, in the scenarios about servers [default: all that the scenario covers]
    #[arg(long, value_name = "BACK END", value_enum, value_delimiter = ',')]
    pub(crate) on: Vec<BackEnd>,
    /// How many failovers per back end, or rounds of another scenario about servers [default: 20 failovers and rounds
    /// of `cluster`, 3 or 5 of others, 1 or 2 with --short]
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<u64>,
    /// Switch off the protection that the scenario tests, if possible: the scenario must then find violations
    #[arg(long = "unsafe")]
    pub(crate) not_safe: bool,
    /// How many keys the processes of a fleet share, or are held [default: 2000 and 1000, 100 and 40 with --short]
    #[arg(long, value_name = "N")]
    pub(crate) keys: Option<u64>,
    /// How many processes a fleet has
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(crate) processes: u64,
    /// How many seeds are simulated in each environment [default: 300000, 300 with --short]
    #[arg(long, value_name = "N")]
    pub(crate) runs: Option<u64>,
    /// How many messages the MCP proxy gets [default: 10000000, 20000 with --short]
    #[arg(long, value_name = "N")]
    pub(crate) messages: Option<u64>,
    /// How often each target of `inbox-fuzz` is executed [default: 10000000, 4000 with --short]
    #[arg(long, value_name = "N")]
    pub(crate) executions: Option<u64>,
    /// Only these targets of `inbox-fuzz`, such as stripe or certificates [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) targets: Vec<String>,
    /// How many threads `inbox-fuzz` uses
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) threads: u64,
    /// Keep the folders for inspection
    #[arg(long)]
    pub(crate) keep: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// Kill `once run` at every system call of begin, dispatch and finish, and of its recovery
    Sweep,
    /// Kill the wrapper, the command or both at random times; many callers at once on one ledger
    Random,
    /// Kill `once undo` of a booking flow at every system call, and at random times
    Undo,
    /// Fill the disk before the intent, and between intent and outcome
    DiskFull,
    /// Make every sync report an error
    SyncError,
    /// Make the clock jump by days and years
    Clock,
    /// Suspend processes for longer than their lease, then resume them
    Zombie,
    /// Many processes at once on one key, on a ledger that does not exist yet
    Storm,
    /// A mutating command twice with one key: noop, exit 0, one effect
    CliAgentSpec,
    /// Partition a primary from its standby, kill it, promote the standby
    Failover,
    /// Add a replica while callers have the ledger open, kill the primary, promote the replica
    LateReplica,
    /// Move slots of a cluster of six nodes and kill a primary, under load
    Cluster,
    /// Many processes on the same keys of one server, on every back end
    FleetStorm,
    /// Stop, kill, cut off and fill the ledger's server under its clients
    ServerGone,
    /// Empty, remove and replace the ledger while callers have it open
    Replaced,
    /// Restore a backup, declare it, and retry everything
    Restore,
    /// Set the clock of the ledger's server while owners are alive
    ServerClock,
    /// Kill `once run` while its command is running, on a ledger on a server
    WrapperKilled,
    /// Release and cancel held commands at the same time, and kill the releases
    Hold,
    /// Weaken the settings of the ledger's server under open handles
    Settings,
    /// Simulate callers, crashes and persons from many seeds
    Simulation,
    /// Stop a scope at a random moment while 32 callers on four processes work in it
    Stop,
    /// Send hostile messages through the MCP proxy, in both directions
    McpFuzz,
    /// Change signed webhooks of every vendor at random
    InboxFuzz,
    /// Cut the power of a mounted disk under writers
    PowerCut,
}

/// The back ends of a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackEnd {
    Sqlite,
    Postgres,
    Redis,
    RedisCluster,
    /// A ledger in a file, through `once serve`
    Http,
}

impl BackEnd {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::Redis => "redis",
            Self::RedisCluster => "redis-cluster",
            Self::Http => "http",
        }
    }
}

impl Scenario {
    pub(crate) const DEFAULT: [Self; 24] = [
        Self::Sweep,
        Self::Random,
        Self::Undo,
        Self::DiskFull,
        Self::SyncError,
        Self::Clock,
        Self::Zombie,
        Self::Storm,
        Self::CliAgentSpec,
        Self::Failover,
        Self::LateReplica,
        Self::Cluster,
        Self::FleetStorm,
        Self::ServerGone,
        Self::Replaced,
        Self::Restore,
        Self::ServerClock,
        Self::WrapperKilled,
        Self::Hold,
        Self::Settings,
        Self::Simulation,
        Self::Stop,
        Self::McpFuzz,
        Self::InboxFuzz,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sweep => "sweep",
            Self::Random => "random",
            Self::Undo => "undo",
            Self::DiskFull => "disk-full",
            Self::SyncError => "sync-error",
            Self::Clock => "clock",
            Self::Zombie => "zombie",
            Self::Storm => "storm",
            Self::CliAgentSpec => "cli-agent-spec",
            Self::Failover => "failover",
            Self::LateReplica => "late-replica",
            Self::Cluster => "cluster",
            Self::FleetStorm => "fleet-storm",
            Self::ServerGone => "server-gone",
            Self::Replaced => "replaced",
            Self::Restore => "restore",
            Self::ServerClock => "server-clock",
            Self::WrapperKilled => "wrapper-killed",
            Self::Hold => "hold",
            Self::Settings => "settings",
            Self::Simulation => "simulation",
            Self::Stop => "stop",
            Self::McpFuzz => "mcp-fuzz",
            Self::InboxFuzz => "inbox-fuzz",
            Self::PowerCut => "power-cut",
        }
    }
}

impl Args {
    pub(crate) fn read() -> Self {
        Self::parse()
    }

    /// The back ends of a scenario, restricted to those that the user chose.
    pub(crate) fn back_ends(&self, all: &[BackEnd]) -> Vec<BackEnd> {
        all.iter().copied().filter(|one| self.on.is_empty() || self.on.contains(one)).collect()
    }

    /// The scenarios to run, without duplicates.
    pub(crate) fn chosen(&self) -> Vec<Scenario> {
        let mut chosen =
            if self.scenarios.is_empty() { Scenario::DEFAULT.to_vec() } else { self.scenarios.clone() };
        chosen.dedup();
        chosen
    }
}
