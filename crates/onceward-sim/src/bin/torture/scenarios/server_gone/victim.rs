//! A server that goes away and comes back, in several ways.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use onceward_testkit::{LedgerServer, Postgres, Redis, RedisCluster, Relay};

use crate::Trouble;
use crate::args::BackEnd;
use crate::bench::Bench;
use crate::downstream;
use crate::mount::Mount;
use crate::report::Tally;

/// Enough for an empty server and some hundred records.
const DISK: &str = "128m";
const BLOCK: usize = 1024 * 1024;
/// How many replies are lost, one at a time.
const LOST_REPLIES: usize = 20;

/// How the server goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Stopped cleanly, and restarted.
    Stop,
    /// Killed, and restarted.
    Kill,
    /// Connections are reset, new ones refused.
    Reset,
    /// Connections stay open, and nothing passes.
    Silence,
    /// Requests arrive, their replies do not.
    LostReplies,
    /// Its disk is full.
    DiskFull,
}

impl Fault {
    /// The faults for this back end. The nodes of a cluster tell clients each other's addresses, so a relay cannot be
    /// put in between.
    pub(super) const fn of(back_end: BackEnd) -> &'static [Self] {
        match back_end {
            BackEnd::Sqlite => &[],
            BackEnd::Postgres | BackEnd::Redis | BackEnd::Http => {
                &[Self::Stop, Self::Kill, Self::Reset, Self::Silence, Self::LostReplies, Self::DiskFull]
            }
            BackEnd::RedisCluster => &[Self::Stop, Self::Kill],
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Stop => "stopped",
            Self::Kill => "killed",
            Self::Reset => "reset",
            Self::Silence => "silent",
            Self::LostReplies => "lost replies",
            Self::DiskFull => "disk full",
        }
    }
}

/// A server, and the relay between it and its clients. The disk is unmounted last.
pub(super) struct Victim {
    server: Server,
    relay: Option<Relay>,
    fault: Fault,
    disk: Option<Mount>,
}

enum Server {
    Postgres(Postgres),
    Redis(Redis),
    Cluster(RedisCluster),
    Http(LedgerServer),
}

impl Victim {
    pub(super) fn start(bench: &Bench, back_end: BackEnd, fault: Fault) -> Result<Self, Trouble> {
        let disk = match fault {
            Fault::DiskFull => {
                let point = bench.mount_point(&format!("disk-of-{}", back_end.name()))?;
                let small = Mount::tmpfs(&point, DISK);
                Some(small.map_err(|trouble| format!("a small disk is needed: {trouble}"))?)
            }
            Fault::Stop | Fault::Kill | Fault::Reset | Fault::Silence | Fault::LostReplies => None,
        };
        let folder = disk.as_ref().map(|disk| disk.point.join("server"));
        let server = match (back_end, folder) {
            (BackEnd::RedisCluster, _) => Server::Cluster(RedisCluster::start()),
            (BackEnd::Redis, None) => Server::Redis(Redis::start()),
            (BackEnd::Redis, Some(folder)) => Server::Redis(Redis::start_at(&folder, &[])),
            (BackEnd::Http, None) => Server::Http(LedgerServer::start(&bench.once)),
            (BackEnd::Http, Some(folder)) => Server::Http(LedgerServer::start_at(&bench.once, &folder)),
            (BackEnd::Postgres | BackEnd::Sqlite, None) => Server::Postgres(Postgres::start()),
            (BackEnd::Postgres | BackEnd::Sqlite, Some(folder)) => {
                // Small limits for the log, so that the disk is soon full.
                let little = [("min_wal_size", "32MB"), ("max_wal_size", "32MB")];
                Server::Postgres(Postgres::start_at(&folder, &little))
            }
        };
        let relay = match &server {
            Server::Postgres(server) => Some(Relay::to(server.port())),
            Server::Redis(server) => Some(Relay::to(server.port())),
            Server::Http(server) => Some(Relay::to(server.port())),
            Server::Cluster(_) => None,
        };
        Ok(Self { server, relay, fault, disk })
    }

    pub(super) fn url(&self) -> String {
        match (&self.server, &self.relay) {
            (Server::Postgres(_), Some(relay)) => {
                format!("postgres://postgres@127.0.0.1:{}/postgres?timeout=1s", relay.port())
            }
            (Server::Redis(_), Some(relay)) => format!("redis://127.0.0.1:{}?timeout=1s", relay.port()),
            (Server::Http(_), Some(relay)) => format!("http://127.0.0.1:{}?timeout=1s", relay.port()),
            (Server::Http(server), None) => server.url(),
            (Server::Cluster(cluster), _) => format!("{}?timeout=1s", cluster.url()),
            (Server::Postgres(server), None) => server.url(),
            (Server::Redis(server), None) => server.url(),
        }
    }

    /// Takes the server away: when this returns, writes fail or soon will.
    pub(super) fn take_away(&mut self) {
        match self.fault {
            Fault::Stop => self.each(Postgres::stop, Redis::stop, LedgerServer::stop),
            Fault::Kill => self.each(|it| it.kill(), |it| it.kill(), |it| it.kill()),
            Fault::Reset => self.relay.iter().for_each(Relay::cut),
            Fault::Silence => self.relay.iter().for_each(Relay::stall),
            Fault::DiskFull => fill(&self.filler()),
            Fault::LostReplies => {}
        }
    }

    /// Whether nothing at all can be written any more.
    pub(super) fn is_gone(&self) -> bool {
        match self.fault {
            Fault::Stop | Fault::Kill | Fault::Reset | Fault::Silence => true,
            Fault::DiskFull | Fault::LostReplies => false,
        }
    }

    /// Brings the server back, as its operator would. The clients are left alone.
    pub(super) fn bring_back(&mut self) {
        match self.fault {
            Fault::Stop | Fault::Kill => {
                self.each(Postgres::start_again, Redis::start_again, LedgerServer::start_again);
                if let Server::Cluster(cluster) = &self.server {
                    cluster.wait_until_ready();
                }
            }
            Fault::Reset | Fault::Silence => self.relay.iter().for_each(Relay::mend),
            Fault::DiskFull => {
                // It may not exist.
                drop(std::fs::remove_file(self.filler()));
                // Redis exits when it cannot write its log, and PostgreSQL may.
                self.each(
                    |server| {
                        if !server.is_running() {
                            server.start_again()
                        }
                    },
                    |server| {
                        if !server.is_running() {
                            server.start_again()
                        }
                    },
                    |server| {
                        if !server.is_running() {
                            server.start_again()
                        }
                    },
                );
            }
            Fault::LostReplies => {}
        }
    }

    /// Loses replies one at a time, if that is the fault.
    pub(super) fn lose_replies(&self, tally: &Tally) -> bool {
        let (Fault::LostReplies, Some(relay)) = (self.fault, &self.relay) else { return false };
        for _ in 0..LOST_REPLIES {
            relay.drop_replies_once();
            std::thread::sleep(Duration::from_millis(40));
        }
        tally.figure("replies lost", relay.replies_dropped() as u64);
        true
    }

    fn each(
        &mut self,
        postgres: impl Fn(&mut Postgres),
        redis: impl Fn(&mut Redis),
        http: impl Fn(&mut LedgerServer),
    ) {
        match &mut self.server {
            Server::Http(server) => http(server),
            Server::Postgres(server) => postgres(server),
            Server::Redis(server) => redis(server),
            Server::Cluster(cluster) => cluster.nodes_mut().iter_mut().for_each(redis),
        }
    }

    fn filler(&self) -> PathBuf {
        self.disk.as_ref().map(|disk| disk.point.join("filler")).unwrap_or_default()
    }
}

/// Fills a disk to the last byte.
fn fill(file: &std::path::Path) {
    if let Ok(mut open) = std::fs::File::create(file) {
        let block = vec![0_u8; BLOCK];
        // Bounded by more than the size of the disk.
        for _ in 0..1_024 {
            if open.write_all(&block).is_err() {
                break;
            }
        }
    }
    downstream::fill(file);
}
