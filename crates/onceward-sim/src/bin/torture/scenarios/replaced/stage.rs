//! The eight ways to replace a ledger under its callers, and what each is on each back end.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use onceward_testkit::{Dump, Postgres, Redis, Relay};

use crate::Trouble;
use crate::args::BackEnd;
use crate::bench::Case;
use crate::engine::{CLUSTER_SHARDS, Engine, Server};
use crate::process::PATIENCE;

/// Copies every key of a ledger to a second name in the same slot.
const KEEP_KEYS: &str = "for _, key in ipairs(redis.call('KEYS', ARGV[1])) do \
     redis.call('COPY', key, 'kept' .. key, 'REPLACE') end";
/// Deletes every key of a ledger and brings the copies back, at one moment.
const PUT_BACK_KEYS: &str = "for _, key in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', key) end \
     for _, key in ipairs(redis.call('KEYS', 'kept' .. ARGV[1])) do \
     redis.call('RENAME', key, string.sub(key, 5)) end";
const DELETE_KEYS: &str = "for _, key in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', key) end";

/// What is done to the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Removed,
    Emptied,
    IdentityRemoved,
    PartRemoved,
    OtherLedger,
    /// An older state, while the server runs and connections stay open.
    OlderInPlace,
    /// An older state of the disk. A server is restarted with it.
    OlderDisk,
    /// A server or file that belongs elsewhere: a former primary, an emptied node, another ledger's `-live` file.
    Stray,
}

/// What a process that opens the ledger afterwards can know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Later {
    /// It is refused with `LEDGER_REPLACED`.
    Replaced,
    /// SQLite cannot read the file while other processes have it open.
    Unreadable,
    /// It finds no ledger. It is refused if the URL says `create=no`.
    Missing,
    /// Nothing: `once restored` must be run, or the other server fenced.
    Nothing,
}

impl Way {
    pub(super) const ALL: [Self; 8] = [
        Self::Removed,
        Self::Emptied,
        Self::IdentityRemoved,
        Self::PartRemoved,
        Self::OtherLedger,
        Self::OlderInPlace,
        Self::OlderDisk,
        Self::Stray,
    ];

    pub(super) const fn name(self, back_end: BackEnd) -> &'static str {
        match (back_end, self) {
            (BackEnd::Sqlite, Self::Removed) => "file removed",
            (BackEnd::Sqlite, Self::Emptied) => "file emptied",
            (BackEnd::Sqlite, Self::IdentityRemoved) => "-live removed",
            (BackEnd::Sqlite, Self::PartRemoved) => "log removed",
            (BackEnd::Sqlite, Self::OtherLedger) => "another ledger's file",
            (BackEnd::Sqlite, Self::OlderInPlace) => "older backup copied over it",
            (BackEnd::Sqlite, Self::OlderDisk) => "older backup renamed over it",
            (BackEnd::Sqlite, Self::Stray) => "another ledger's -live",
            (BackEnd::Postgres, Self::Removed) => "DROP SCHEMA",
            (BackEnd::Postgres, Self::Emptied) => "TRUNCATE",
            (BackEnd::Postgres, Self::IdentityRemoved) => "rows of meta deleted",
            (BackEnd::Postgres, Self::PartRemoved) => "rows of an older dump",
            (BackEnd::Postgres, Self::OtherLedger) => "another server",
            (BackEnd::Postgres, Self::OlderInPlace) => "DROP SCHEMA, older dump",
            (BackEnd::Postgres, Self::OlderDisk) => "older data directory",
            (BackEnd::Redis, Self::Removed) => "all keys deleted",
            (BackEnd::Redis, Self::Emptied) => "FLUSHALL",
            (BackEnd::Redis | BackEnd::RedisCluster, Self::IdentityRemoved) => "ledger's own key deleted",
            (BackEnd::Redis | BackEnd::RedisCluster, Self::PartRemoved) => "one shard deleted",
            (BackEnd::Redis, Self::OtherLedger) => "SWAPDB, another ledger",
            (BackEnd::Redis, Self::OlderInPlace) => "older keys, no restart",
            (BackEnd::Redis, Self::OlderDisk) => "older append-only file",
            (BackEnd::Postgres | BackEnd::Redis, Self::Stray) => "former primary",
            (BackEnd::RedisCluster, Self::Removed) => "all keys deleted",
            (BackEnd::RedisCluster, Self::Emptied) => "FLUSHALL on a node",
            (BackEnd::RedisCluster, Self::OtherLedger) => "another ledger",
            (BackEnd::RedisCluster, Self::OlderInPlace) => "older keys on a node",
            (BackEnd::RedisCluster, Self::OlderDisk) => "older file of a node",
            (BackEnd::RedisCluster, Self::Stray) => "a node comes back empty",
            (BackEnd::Http, _) => "not tried",
        }
    }

    pub(super) const fn later(self, back_end: BackEnd) -> Later {
        match (back_end, self) {
            (BackEnd::Sqlite, Self::PartRemoved) => Later::Unreadable,
            (BackEnd::Sqlite, _)
            | (
                BackEnd::Postgres,
                Self::Emptied | Self::IdentityRemoved | Self::PartRemoved | Self::OlderInPlace,
            )
            | (BackEnd::Redis | BackEnd::RedisCluster, Self::IdentityRemoved | Self::PartRemoved)
            | (BackEnd::RedisCluster, Self::Emptied | Self::Stray) => Later::Replaced,
            (BackEnd::Http, _) => Later::Nothing,
            (_, Self::Removed) | (BackEnd::Redis, Self::Emptied) => Later::Missing,
            (BackEnd::Postgres | BackEnd::Redis, Self::OtherLedger | Self::OlderDisk | Self::Stray)
            | (BackEnd::Redis, Self::OlderInPlace)
            | (BackEnd::RedisCluster, Self::OtherLedger | Self::OlderInPlace | Self::OlderDisk) => {
                Later::Nothing
            }
        }
    }

    /// Whether records are missing from the ledger, so that a second effect is possible.
    pub(super) const fn loses(self, back_end: BackEnd) -> bool {
        !matches!((back_end, self), (_, Self::IdentityRemoved) | (BackEnd::Sqlite, Self::Stray))
    }

    /// Whether calls about other parts of the ledger may still run.
    pub(super) const fn is_partial(self, back_end: BackEnd) -> bool {
        match back_end {
            BackEnd::Sqlite | BackEnd::Postgres | BackEnd::Http => false,
            BackEnd::Redis => matches!(self, Self::IdentityRemoved | Self::PartRemoved),
            BackEnd::RedisCluster => !matches!(self, Self::Removed | Self::OtherLedger),
        }
    }
}

/// A ledger, and what is needed to replace it.
pub(super) struct Stage {
    pub(super) engine: Engine,
    back_end: BackEnd,
    way: Way,
    /// In front of the server, if another server takes its address.
    relay: Option<Relay>,
    second: Second,
    older: Older,
}

/// Another server.
enum Second {
    None,
    Postgres(Postgres),
    Redis(Redis),
}

/// What a ledger is replaced by.
enum Older {
    Nothing,
    Dump(String),
    Copy(PathBuf),
}

impl Stage {
    pub(super) fn set(back_end: BackEnd, way: Way, case: &Case) -> Result<Self, Trouble> {
        let mut engine = Engine::start(back_end, case)?;
        if back_end == BackEnd::Sqlite && matches!(way, Way::Emptied | Way::OlderInPlace) {
            // Checkpoint the log often, so that an older copy of the file really lacks something.
            engine.url.push_str("?checkpoint=16");
        }
        let (port, second) = match (way, &engine.server) {
            (Way::OtherLedger, Server::Postgres(server)) => {
                (server.port(), Second::Postgres(Postgres::start()))
            }
            (Way::Stray, Server::Postgres(server)) => {
                let standby = server.standby("second");
                server.synchronous("second");
                (server.port(), Second::Postgres(standby))
            }
            (Way::Stray, Server::Redis(server)) => {
                // No other replica follows the promoted one, so none can confirm its writes.
                engine.url.push_str("&wait=0");
                (server.port(), Second::Redis(server.replica()))
            }
            _ => (0, Second::None),
        };
        let relay = (port != 0).then(|| Relay::to(port));
        if let Some(relay) = &relay {
            engine.url = engine.url.replacen(&format!(":{port}"), &format!(":{}", relay.port()), 1);
        }
        Ok(Self { engine, back_end, way, relay, second, older: Older::Nothing })
    }

    /// Saves the current state, creates another ledger, or lets the standby take over.
    pub(super) fn keep(&mut self, case: &Case) -> Result<(), Trouble> {
        let (url, name) = (self.engine.url.clone(), self.engine.name().to_owned());
        let other = case.folder.join("other.db");
        let other_url = format!("sqlite:{}", other.display());
        self.older = match (self.way, &mut self.engine.server) {
            (Way::OtherLedger, Server::File) => {
                drop(onceward_store::open(&other_url)?);
                Older::Copy(other)
            }
            (Way::Stray, Server::File) => {
                // The file exists only while the ledger is open.
                let (store, copy) = (onceward_store::open(&other_url)?, case.folder.join("stray"));
                std::fs::copy(case.folder.join("other.db-live"), &copy)?;
                drop(store);
                Older::Copy(copy)
            }
            (Way::OlderInPlace | Way::OlderDisk, Server::File)
            | (Way::OlderDisk, Server::Postgres(_) | Server::Redis(_) | Server::Cluster { .. }) => {
                Older::Copy(self.engine.copy()?)
            }
            (Way::OlderInPlace, Server::Postgres(server)) => Older::Dump(server.dump(&name, Dump::All)),
            (Way::PartRemoved, Server::Postgres(server)) => Older::Dump(server.dump(&name, Dump::Rows)),
            (Way::OlderInPlace, Server::Redis(server)) => run_script(server, KEEP_KEYS, &name),
            (Way::OlderInPlace, Server::Cluster { cluster, victim }) => {
                run_script(&cluster.nodes()[*victim], KEEP_KEYS, &name)
            }
            (Way::OtherLedger, Server::Redis(_)) => {
                drop(onceward_store::open(&url.replacen("?prefix=", "/1?prefix=", 1))?);
                Older::Nothing
            }
            (Way::OtherLedger, Server::Postgres(_)) => {
                let (Second::Postgres(second), Some(relay)) = (&self.second, &self.relay) else {
                    return Err("there is no second server".into());
                };
                let port = |port: u16| format!(":{port}/");
                drop(onceward_store::open(&url.replacen(&port(relay.port()), &port(second.port()), 1))?);
                Older::Nothing
            }
            (Way::Stray, Server::Postgres(_) | Server::Redis(_)) => {
                self.fail_over()?;
                Older::Nothing
            }
            _ => Older::Nothing,
        };
        Ok(())
    }

    /// Promotes the second server, which has all writes, and gives it the address of the first.
    fn fail_over(&mut self) -> Result<(), Trouble> {
        let relay = self.relay.as_ref().ok_or("there is no relay")?;
        relay.cut();
        let port = match (&mut self.second, &self.engine.server) {
            (Second::Postgres(standby), _) => {
                standby.promote();
                standby.port()
            }
            (Second::Redis(replica), Server::Redis(primary)) => {
                wait_until_followed(primary, replica)?;
                replica.promote();
                replica.port()
            }
            _ => return Err("there is no second server".into()),
        };
        relay.aim_at(port);
        relay.mend();
        Ok(())
    }

    /// Replaces the ledger while processes have it open.
    pub(super) fn replace(&mut self) -> Result<(), Trouble> {
        match (self.way, &self.engine.server, &self.older) {
            (_, Server::File, _) => self.replace_files(),
            (Way::OtherLedger | Way::Stray, Server::Postgres(_), _) | (Way::Stray, Server::Redis(_), _) => {
                self.aim_elsewhere()
            }
            (Way::OlderDisk, _, Older::Copy(copy)) => {
                let copy = copy.clone();
                self.engine.put_back(&copy)
            }
            (_, Server::Postgres(server), _) => self.replace_rows(server),
            (_, Server::Redis(server), _) => self.replace_keys(server),
            (_, Server::Cluster { .. }, _) => self.replace_nodes(),
        }
    }

    fn replace_files(&self) -> Result<(), Trouble> {
        let (file, live) = (self.engine.file(""), self.engine.file("-live"));
        match (self.way, &self.older) {
            (Way::Removed, _) => std::fs::remove_file(file)?,
            (Way::Emptied, _) => std::fs::write(file, "")?,
            (Way::IdentityRemoved, _) => std::fs::remove_file(live)?,
            (Way::PartRemoved, _) => std::fs::remove_file(self.engine.file("-wal"))?,
            (Way::OlderInPlace, Older::Copy(copy)) => drop(std::fs::copy(copy, file)?),
            (Way::OtherLedger | Way::OlderDisk, Older::Copy(copy)) => std::fs::rename(copy, file)?,
            (Way::Stray, Older::Copy(copy)) => std::fs::rename(copy, live)?,
            (_, _) => return Err("there is no copy".into()),
        }
        Ok(())
    }

    fn replace_rows(&self, server: &Postgres) -> Result<(), Trouble> {
        let name = self.engine.name();
        let statement = match self.way {
            Way::Removed | Way::OlderInPlace => format!("drop schema {name} cascade"),
            Way::Emptied => format!("truncate {name}.operation"),
            Way::IdentityRemoved => format!("delete from {name}.meta"),
            // Without TRUNCATE: each row is deleted, and written again by the dump.
            Way::PartRemoved => format!("delete from {name}.operation; delete from {name}.meta"),
            Way::OtherLedger | Way::OlderDisk | Way::Stray => {
                return Err("this is done by another server".into());
            }
        };
        drop(server.sql(&statement));
        if let Older::Dump(dump) = &self.older {
            server.restore(dump);
        }
        Ok(())
    }

    fn replace_keys(&self, server: &Redis) -> Result<(), Trouble> {
        let name = self.engine.name();
        match self.way {
            Way::Removed => drop(run_script(server, DELETE_KEYS, name)),
            Way::Emptied => drop(server.cli(&["FLUSHALL"])),
            Way::IdentityRemoved => delete_own_key(server, name)?,
            Way::PartRemoved => delete_shard(server, name, 2),
            Way::OtherLedger => drop(server.cli(&["SWAPDB", "0", "1"])),
            Way::OlderInPlace => drop(run_script(server, PUT_BACK_KEYS, name)),
            Way::OlderDisk | Way::Stray => return Err("this is done by another server".into()),
        }
        Ok(())
    }

    fn replace_nodes(&mut self) -> Result<(), Trouble> {
        let (name, url) = (self.engine.name().to_owned(), self.engine.url.clone());
        let Server::Cluster { cluster, victim } = &mut self.engine.server else {
            return Err("there is no cluster".into());
        };
        let node_of = |shard: u16| cluster.node_of(&format!("{{{name}:{shard}}}"));
        let node = &cluster.nodes()[*victim];
        match self.way {
            Way::Removed | Way::OtherLedger => {
                cluster.nodes().iter().for_each(|node| drop(run_script(node, DELETE_KEYS, &name)));
                if self.way == Way::OtherLedger {
                    drop(onceward_store::open(&url)?);
                }
            }
            Way::Emptied => drop(node.cli(&["FLUSHALL"])),
            Way::IdentityRemoved => delete_own_key(&cluster.nodes()[node_of(0)], &name)?,
            Way::PartRemoved => {
                let shard = (1..CLUSTER_SHARDS).find(|shard| node_of(*shard) == *victim);
                delete_shard(node, &name, shard.ok_or("the node has no shard")?);
            }
            Way::OlderInPlace => drop(run_script(node, PUT_BACK_KEYS, &name)),
            Way::OlderDisk => return Err("there is no copy".into()),
            Way::Stray => {
                let node = &mut cluster.nodes_mut()[*victim];
                node.kill();
                std::fs::remove_dir_all(node.folder().join("appendonlydir"))?;
                node.start_again();
                cluster.wait_until_ready();
            }
        }
        Ok(())
    }

    /// Another server takes the address: the second one, or the former primary.
    fn aim_elsewhere(&self) -> Result<(), Trouble> {
        let relay = self.relay.as_ref().ok_or("there is no relay")?;
        let port = match (self.way, &self.engine.server, &self.second) {
            (Way::OtherLedger, _, Second::Postgres(second)) => second.port(),
            (_, Server::Postgres(former), _) => {
                // It answers although its standby is gone.
                drop(former.sql("alter system reset synchronous_standby_names"));
                drop(former.sql("select pg_reload_conf()"));
                former.port()
            }
            (_, Server::Redis(former), _) => former.port(),
            _ => return Err("there is no other server".into()),
        };
        relay.cut();
        relay.aim_at(port);
        relay.mend();
        Ok(())
    }

    /// Switches the protection off, if possible: this must lead to second effects.
    pub(super) fn open_anyway(&self) -> Result<(), Trouble> {
        if self.back_end == BackEnd::Sqlite {
            self.engine.remove_beside();
            return Ok(());
        }
        match self.way.later(self.back_end) {
            Later::Replaced => self.engine.declare_nothing_lost(),
            // A new process cannot notice.
            Later::Unreadable | Later::Missing | Later::Nothing => Ok(()),
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Older::Copy(copy) = &self.older {
            // A copy of a server's data is outside the case. It may have been moved into place.
            drop(if copy.is_dir() { std::fs::remove_dir_all(copy) } else { std::fs::remove_file(copy) });
        }
    }
}

/// Runs a script with the keys of the ledger.
fn run_script(server: &Redis, script: &str, name: &str) -> Older {
    drop(server.cli(&["EVAL", script, "0", &format!("{{{name}:*")]));
    Older::Nothing
}

fn delete_shard(server: &Redis, name: &str, shard: u16) {
    drop(server.cli(&["EVAL", DELETE_KEYS, "0", &format!("{{{name}:{shard}}}*")]));
}

fn delete_own_key(server: &Redis, name: &str) -> Result<(), Trouble> {
    let deleted = server.cli(&["DEL", &format!("{{{name}:0}}:ledger")]);
    if deleted == "1" {
        Ok(())
    } else {
        Err(format!("the ledger's own key was not deleted: {deleted}").into())
    }
}

/// Waits until the replica has everything. No client can reach the primary meanwhile.
fn wait_until_followed(primary: &Redis, replica: &Redis) -> Result<(), Trouble> {
    let offset = |server: &Redis, field: &str| {
        let said = server.cli(&["INFO", "replication"]);
        said.lines().find_map(|line| line.strip_prefix(field).map(|value| value.trim().to_owned()))
    };
    let begun = Instant::now();
    while offset(primary, "master_repl_offset:") != offset(replica, "slave_repl_offset:") {
        if begun.elapsed() > PATIENCE {
            return Err("the replica does not follow".into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
