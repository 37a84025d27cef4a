//! What a server says of itself, and whether that allows the promise.

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Value};

use super::link::Closed;
use super::options::{Durability, Layout, RedisOptions};
use crate::health::{Finding, Verdict};

/// The oldest version whose scripts and `WAIT` are understood.
const OLDEST: (u32, u32) = (6, 2);

/// Whether it takes writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// It does.
    Primary,
    /// It follows another one.
    Replica,
}

/// What a server says of itself.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    /// Its name and version.
    pub(super) version: String,
    /// Whether it takes writes.
    pub(super) role: Role,
    /// How many replicas follow it now.
    pub(super) replicas: u32,
    number: Option<(u32, u32)>,
    cluster: bool,
    maxmemory: u64,
    eviction: String,
    last_write: String,
    /// `None` where it does not say.
    appendonly: Option<String>,
    appendfsync: Option<String>,
}

/// Asks a server for what it says of itself.
pub(super) async fn ask(connection: &mut MultiplexedConnection) -> Result<Settings, Closed> {
    let mut commands = Pipeline::with_capacity(3);
    commands.cmd("INFO");
    for name in ["appendonly", "appendfsync"] {
        commands.cmd("CONFIG").arg("GET").arg(name);
    }
    let answers = connection.send_packed_commands(&commands, 0, 3).await?;
    let info = match answers.first() {
        Some(Value::ServerError(error)) => {
            return Err(Closed::Now(format!("{} {}", error.code(), error.details().unwrap_or_default())));
        }
        Some(value) => text(value).unwrap_or_default(),
        None => String::new(),
    };
    let mut settings = Settings::read(&info);
    settings.appendonly = answers.get(1).and_then(configured);
    settings.appendfsync = answers.get(2).and_then(configured);
    Ok(settings)
}

impl Settings {
    /// Reads an answer to `INFO`.
    pub(super) fn read(info: &str) -> Self {
        let field = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.map(|value| value.trim().to_owned())
        };
        let redis = field("redis_version").unwrap_or_default();
        let version = match field("valkey_version") {
            Some(valkey) => format!("Valkey {valkey}"),
            None => format!("Redis {redis}"),
        };
        let mut numbers = redis.split('.').map(str::parse);
        let number = match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
            (_, _) => None,
        };
        let online = info.lines().filter(|line| line.starts_with("slave") && line.contains("state=online"));
        Self {
            version,
            number,
            role: match field("role").as_deref() {
                Some("master") => Role::Primary,
                Some(_) | None => Role::Replica,
            },
            replicas: u32::try_from(online.count()).unwrap_or(u32::MAX),
            cluster: field("cluster_enabled").is_some_and(|value| value == "1"),
            maxmemory: field("maxmemory").and_then(|value| value.parse().ok()).unwrap_or_default(),
            eviction: field("maxmemory_policy").unwrap_or_else(|| "noeviction".to_owned()),
            last_write: field("aof_last_write_status").unwrap_or_else(|| "ok".to_owned()),
            appendonly: None,
            appendfsync: None,
        }
    }

    /// Whether a ledger may be kept there; says what to do where it may not.
    pub(super) fn check(&self, options: &RedisOptions, name: &str) -> Result<(), String> {
        if self.number.is_some_and(|number| number < OLDEST) {
            return Err(format!("{name} is {}; Redis 6.2 or newer, or Valkey, is needed", self.version));
        }
        self.check_layout(options, name)?;
        if self.evicts() {
            return Err(format!(
                "{name} forgets keys when its memory is full (maxmemory-policy {}), and what is forgotten runs twice; \
                 set maxmemory-policy noeviction",
                self.eviction
            ));
        }
        self.check_disk(options.durability, name)
    }

    /// Whether it is a cluster where one is expected, and none where none is.
    pub(super) fn check_layout(&self, options: &RedisOptions, name: &str) -> Result<(), String> {
        match (self.cluster, options.layout) {
            (true, Layout::Standalone { .. }) => {
                Err(format!("{name} is part of a cluster; write redis+cluster:// (or rediss+cluster://)"))
            }
            (false, Layout::Cluster) => {
                Err(format!("{name} is not part of a cluster; write redis:// (or rediss://)"))
            }
            (true, Layout::Cluster) | (false, Layout::Standalone { .. }) => Ok(()),
        }
    }

    fn evicts(&self) -> bool {
        self.maxmemory > 0 && self.eviction != "noeviction"
    }

    fn check_disk(&self, durability: Durability, name: &str) -> Result<(), String> {
        let (appendonly, appendfsync) = match (durability, &self.appendonly, &self.appendfsync) {
            (Durability::None | Durability::Trusted, _, _) => return Ok(()),
            (Durability::Always | Durability::Everysec, Some(appendonly), Some(appendfsync)) => {
                (appendonly, appendfsync)
            }
            (Durability::Always | Durability::Everysec, _, _) => {
                return Err(format!(
                    "{name} does not say whether it syncs its writes (CONFIG is forbidden); if you know that it does, \
                     add durability=trusted to the URL"
                ));
            }
        };
        if appendonly != "yes" {
            return Err(format!(
                "{name} does not keep its writes (appendonly {appendonly}), and what is lost runs twice; set \
                 appendonly yes and appendfsync always, or allow it by name with durability=none"
            ));
        }
        let synced =
            appendfsync == "always" || (durability == Durability::Everysec && appendfsync == "everysec");
        if synced {
            return Ok(());
        }
        Err(format!(
            "{name} answers before its writes are synced (appendfsync {appendfsync}), and what is lost runs twice; set \
             appendfsync always, or allow it by name with durability={}",
            if appendfsync == "everysec" { "everysec" } else { "none" }
        ))
    }

    /// What `once doctor` says of this server.
    pub(super) fn findings(&self, options: &RedisOptions, address: &str, wait: u32) -> Vec<Finding> {
        let disk = match (&self.appendonly, &self.appendfsync) {
            (Some(appendonly), Some(appendfsync)) => {
                format!("{address}: appendonly {appendonly}, appendfsync {appendfsync}")
            }
            (_, _) => {
                format!("{address}: it does not say; somebody else answers for it (durability=trusted)")
            }
        };
        let replicas = format!("{address}: {} follow, {wait} must have each write", self.replicas);
        let eviction = format!("{address}: maxmemory {}, {}", self.maxmemory, self.eviction);
        let written = self.last_write == "ok";
        vec![
            Finding::good("server", format!("{address}: {}", self.version)),
            Finding { what: "sync", verdict: self.disk_verdict(options), found: disk },
            Finding { what: "replicas", verdict: self.replica_verdict(wait), found: replicas },
            Finding::judged("eviction", !self.evicts(), Verdict::Bad, eviction),
            Finding::judged("last write", written, Verdict::Bad, format!("{address}: {}", self.last_write)),
        ]
    }

    fn disk_verdict(&self, options: &RedisOptions) -> Verdict {
        match (self.check_disk(Durability::Always, ""), options.durability) {
            (Ok(()), _) => Verdict::Good,
            // Allowed by name, and weaker than it could be.
            (Err(_), Durability::Trusted | Durability::Everysec) => Verdict::Look,
            (Err(_), Durability::Always | Durability::None) => Verdict::Bad,
        }
    }

    fn replica_verdict(&self, wait: u32) -> Verdict {
        if self.replicas < wait {
            Verdict::Bad
        } else if wait < self.replicas {
            Verdict::Look
        } else {
            Verdict::Good
        }
    }
}

/// The value in an answer to `CONFIG GET`, or nothing where it is refused.
fn configured(value: &Value) -> Option<String> {
    if let Value::Array(pair) = value { text(pair.get(1)?) } else { None }
}

/// A text that the server sent.
pub(super) fn text(value: &Value) -> Option<String> {
    if let Value::BulkString(bytes) = value {
        String::from_utf8(bytes.clone()).ok()
    } else if let Value::SimpleString(text) | Value::VerbatimString { text, .. } = value {
        Some(text.clone())
    } else if let Value::Int(number) = value {
        Some(number.to_string())
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "redis_version:7.0.15\r\nrole:master\r\ncluster_enabled:0\r\nmaxmemory:0\r\n\
                        maxmemory_policy:noeviction\r\nslave0:ip=1,port=2,state=online,offset=1,lag=0\r\n\
                        slave1:ip=1,port=3,state=wait_bgsave,offset=0,lag=0\r\n";

    fn server(change: impl FnOnce(&mut Settings)) -> Settings {
        let mut settings = Settings::read(GOOD);
        settings.appendonly = Some("yes".to_owned());
        settings.appendfsync = Some("always".to_owned());
        change(&mut settings);
        settings
    }

    fn options(query: &str) -> RedisOptions {
        RedisOptions::parse(&format!("redis://host?{query}")).unwrap()
    }

    #[test]
    fn what_a_server_says_is_understood() {
        let settings = server(|_| ());
        assert_eq!((settings.role, settings.replicas, settings.number), (Role::Primary, 1, Some((7, 0))));
        assert_eq!(settings.check(&options(""), "host"), Ok(()));
    }

    #[test]
    fn each_setting_that_does_not_allow_the_promise_is_refused_unless_named() {
        let off = server(|server| server.appendonly = Some("no".to_owned()));
        let second = server(|server| server.appendfsync = Some("everysec".to_owned()));
        let never = server(|server| server.appendfsync = Some("no".to_owned()));
        let silent = server(|server| (server.appendonly, server.appendfsync) = (None, None));
        let table = [
            // server, always, everysec, none, trusted
            (&off, [false, false, true, true]),
            (&second, [false, true, true, true]),
            (&never, [false, false, true, true]),
            (&silent, [false, false, true, true]),
        ];
        for (settings, allowed) in table {
            for (word, allowed) in ["always", "everysec", "none", "trusted"].iter().zip(allowed) {
                let said = settings.check(&options(&format!("durability={word}")), "host");
                assert_eq!(said.is_ok(), allowed, "{word}: {said:?}");
            }
        }
    }

    #[test]
    fn a_server_that_forgets_is_refused_whatever_is_allowed() {
        let evicting = server(|server| (server.maxmemory, server.eviction) = (1, "allkeys-lru".to_owned()));
        assert!(evicting.check(&options("durability=trusted"), "host").unwrap_err().contains("noeviction"));
        let roomy = server(|server| server.eviction = "allkeys-lru".to_owned());
        assert_eq!(roomy.check(&options(""), "host"), Ok(()));
        let old = server(|server| server.number = Some((6, 0)));
        assert!(old.check(&options(""), "host").is_err());
    }
}
