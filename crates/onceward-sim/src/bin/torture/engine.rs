//! A ledger on one of the back ends, and older states of it that a disk or a backup can bring back.

use std::path::{Path, PathBuf};

use onceward::Fence;
use onceward_store::{IfMissing, Overwrite, StoreUrl};
use onceward_testkit::{Postgres, Redis, RedisCluster};

use crate::Trouble;
use crate::args::BackEnd;
use crate::bench::Case;

/// A ledger and its server.
pub(crate) struct Engine {
    pub(crate) url: String,
    pub(crate) server: Server,
    file: PathBuf,
}

/// The server of a ledger.
pub(crate) enum Server {
    /// None: the ledger is a file.
    File,
    Postgres(Postgres),
    Redis(Redis),
    /// Three nodes. Faults concern one of them, which has shards of the ledger but not the ledger's own key.
    Cluster {
        cluster: RedisCluster,
        victim: usize,
    },
}

/// How many shards a ledger in a cluster has.
pub(crate) const CLUSTER_SHARDS: u16 = 16;

impl Engine {
    /// A ledger that does not exist yet.
    pub(crate) fn start(back_end: BackEnd, case: &Case) -> Result<Self, Trouble> {
        let (url, server) = match back_end {
            BackEnd::Sqlite => (case.url(), Server::File),
            BackEnd::Postgres => {
                let server = Postgres::start();
                (server.fresh(), Server::Postgres(server))
            }
            BackEnd::Redis => {
                let server = Redis::start();
                (format!("{}&shards=4", server.fresh()), Server::Redis(server))
            }
            BackEnd::RedisCluster => {
                let cluster = RedisCluster::start();
                let url = format!("{}&shards={CLUSTER_SHARDS}", cluster.fresh());
                let victim = victim(&cluster, name_in(&url))?;
                (url, Server::Cluster { cluster, victim })
            }
            BackEnd::Http => {
                return Err("this scenario is not about `once serve`".into());
            }
        };
        Ok(Self { url, server, file: case.ledger.clone() })
    }

    /// The file of a ledger in a file, or one next to it.
    pub(crate) fn file(&self, ending: &str) -> PathBuf {
        let mut name = self.file.clone().into_os_string();
        name.push(ending);
        name.into()
    }

    /// The schema or the prefix of the ledger.
    pub(crate) fn name(&self) -> &str {
        name_in(&self.url)
    }

    /// A copy of its current state on disk. A server is stopped for it.
    pub(crate) fn copy(&mut self) -> Result<PathBuf, Trouble> {
        match &mut self.server {
            Server::File => {
                let copy = self.file("-backup");
                StoreUrl::parse(&self.url)?.open(IfMissing::Fail)?.backup(&copy, Overwrite::Yes)?;
                Ok(copy)
            }
            Server::Postgres(server) => {
                server.stop();
                let copy = server.copy_data();
                server.start_again();
                Ok(copy)
            }
            Server::Redis(server) => copy_log(server),
            Server::Cluster { cluster, victim } => {
                let copy = copy_log(&mut cluster.nodes_mut()[*victim])?;
                cluster.wait_until_ready();
                Ok(copy)
            }
        }
    }

    /// Replaces it by a copy, in the way that the documentation describes.
    pub(crate) fn put_back(&mut self, copy: &Path) -> Result<(), Trouble> {
        match &mut self.server {
            Server::File => {
                self.remove_beside();
                std::fs::copy(copy, &self.file)?;
            }
            Server::Postgres(server) => {
                server.stop();
                server.put_back(copy);
                server.start_again();
            }
            Server::Redis(server) => put_back_log(server, copy)?,
            Server::Cluster { cluster, victim } => {
                put_back_log(&mut cluster.nodes_mut()[*victim], copy)?;
                cluster.wait_until_ready();
            }
        }
        Ok(())
    }

    /// Removes the files next to a ledger in a file.
    pub(crate) fn remove_beside(&self) {
        for ending in ["-live", "-wal", "-shm"] {
            // It may not exist.
            drop(std::fs::remove_file(self.file(ending)));
        }
    }

    /// Declares a restore that lost nothing, which is wrong: this switches the protection off.
    pub(crate) fn declare_nothing_lost(&self) -> Result<(), Trouble> {
        let is_redis = matches!(self.server, Server::Redis(_) | Server::Cluster { .. });
        let accept = if is_redis { "&emptied=accept" } else { "" };
        let store = StoreUrl::parse(&format!("{}{accept}", self.url))?.open_restored()?;
        let now_ms = store.clock().now_ms();
        let fence = Fence { lost_from_ms: now_ms, restored_ms: now_ms, until_ms: now_ms };
        let next = store.identity().restored(fence, 0);
        Ok(onceward::Ledger::new(store.clone()).blocking().wait_for(store.set_identity(&next))?)
    }
}

/// The schema or the prefix in a URL.
fn name_in(url: &str) -> &str {
    let rest = url.split_once("schema=").or_else(|| url.split_once("prefix="));
    rest.map_or("", |(_, rest)| rest).split('&').next().unwrap_or_default()
}

/// A node that has shards of the ledger but not the first one, which has the ledger's own key.
fn victim(cluster: &RedisCluster, name: &str) -> Result<usize, Trouble> {
    let node_of = |shard: u16| cluster.node_of(&format!("{{{name}:{shard}}}"));
    let other = (1..CLUSTER_SHARDS).map(node_of).find(|node| *node != node_of(0));
    Ok(other.ok_or("one node has all shards")?)
}

/// Copies the append-only file of a server, which is stopped for it.
fn copy_log(server: &mut Redis) -> Result<PathBuf, Trouble> {
    server.stop();
    let copy = server.folder().join("copy");
    copy_files(&server.folder().join("appendonlydir"), &copy)?;
    server.start_again();
    Ok(copy)
}

/// Restarts a server with a copy of its append-only file.
fn put_back_log(server: &mut Redis, copy: &Path) -> Result<(), Trouble> {
    let data = server.folder().join("appendonlydir");
    server.stop();
    std::fs::remove_dir_all(&data)?;
    copy_files(copy, &data)?;
    server.start_again();
    Ok(())
}

/// Copies the files of a folder.
fn copy_files(from: &Path, to: &Path) -> Result<(), Trouble> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        std::fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}
