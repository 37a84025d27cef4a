//! What a server reports about itself, and whether that is safe for a ledger.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value};

use super::fault::ConnectError;
use super::options::{Durability, Layout, RedisOptions};
use crate::health::{Finding, Verdict};

/// The oldest supported version.
const OLDEST: (u32, u32) = (6, 2);

/// The replication role of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Accepts writes.
    Primary,
    /// Follows a primary.
    Replica,
}

/// What a server reports about itself.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    /// The product name and version.
    pub(super) version: String,
    /// The replication role.
    pub(super) role: Role,
    /// The currently connected replicas.
    pub(super) replicas: Replicas,
    /// Which start of the server, and which history of its data: others after a restart, a promotion or a full copy of
    /// another server's data.
    pub(super) run: String,
    number: Option<(u32, u32)>,
    cluster: bool,
    maxmemory: u64,
    eviction: String,
    last_write: String,
    /// `None` if it is not reported.
    appendonly: Option<String>,
    appendfsync: Option<String>,
    no_sync_on_rewrite: Option<String>,
}

/// The replicas of a server. A client that only fetches a copy, like `redis-cli --rdb`, does not count: it has no
/// port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Replicas {
    /// Replicas that are in sync.
    pub(super) online: u32,
    /// All replicas. One that is still loading its first copy lacks what is written meanwhile.
    pub(super) all: u32,
}

impl Replicas {
    /// Parses a reply to `INFO replication`.
    pub(super) fn read(info: &str) -> Self {
        let mut replicas = Self::default();
        for line in info.lines().filter(|line| line.starts_with("slave") && line.contains(":ip=")) {
            if !line.contains(",port=0,") {
                replicas.all += 1;
                replicas.online += u32::from(line.contains("state=online"));
            }
        }
        replicas
    }
}

/// The commands that query a server's settings.
pub(super) const QUERIES: [&[&str]; 4] = [
    &["INFO"],
    &["CONFIG", "GET", "appendonly"],
    &["CONFIG", "GET", "appendfsync"],
    &["CONFIG", "GET", "no-appendfsync-on-rewrite"],
];

/// Queries a server's settings.
pub(super) async fn ask(connection: &mut MultiplexedConnection) -> Result<Settings, ConnectError> {
    let mut commands = Pipeline::with_capacity(QUERIES.len());
    for words in QUERIES {
        commands.add_command(words.iter().fold(Cmd::new(), |mut command, word| {
            command.arg(*word);
            command
        }));
    }
    let answers = connection.send_packed_commands(&commands, 0, QUERIES.len()).await?;
    match answers.first() {
        Some(Value::ServerError(error)) => Err(ConnectError::Unavailable(format!(
            "{} {}",
            error.code(),
            error.details().unwrap_or_default()
        ))),
        Some(_) | None => Ok(Settings::of(&answers)),
    }
}

impl Settings {
    /// Parses the replies to [`QUERIES`].
    pub(super) fn of(answers: &[Value]) -> Self {
        let mut settings = Self::read(&answers.first().and_then(text).unwrap_or_default());
        settings.appendonly = answers.get(1).and_then(config_value);
        settings.appendfsync = answers.get(2).and_then(config_value);
        settings.no_sync_on_rewrite = answers.get(3).and_then(config_value);
        settings
    }

    /// Parses a reply to `INFO`.
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
        Self {
            version,
            number,
            role: match field("role").as_deref() {
                Some("master") => Role::Primary,
                Some(_) | None => Role::Replica,
            },
            replicas: Replicas::read(info),
            run: ["run_id", "master_replid"].map(|name| field(name).unwrap_or_default()).join(" "),
            cluster: field("cluster_enabled").is_some_and(|value| value == "1"),
            maxmemory: field("maxmemory").and_then(|value| value.parse().ok()).unwrap_or_default(),
            eviction: field("maxmemory_policy").unwrap_or_else(|| "noeviction".to_owned()),
            last_write: field("aof_last_write_status").unwrap_or_else(|| "ok".to_owned()),
            appendonly: None,
            appendfsync: None,
            no_sync_on_rewrite: None,
        }
    }

    /// Checks whether the server is safe for a ledger. The error says what to change.
    pub(super) fn check(&self, options: &RedisOptions, name: &str) -> Result<(), String> {
        if self.number.is_some_and(|number| number < OLDEST) {
            return Err(format!(
                "{name} is {}; the ledger needs Redis 6.2 or newer, or Valkey",
                self.version
            ));
        }
        self.check_layout(options, name)?;
        if self.evicts() {
            return Err(format!(
                "{name} evicts keys when its memory is full (maxmemory-policy {}), and an operation whose key \
                 was evicted runs twice; set maxmemory-policy noeviction",
                self.eviction
            ));
        }
        self.check_disk(options.durability, name)
    }

    /// Checks that the server is part of a cluster exactly if the URL says so.
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
                    "{name} does not report whether it syncs its writes (CONFIG is forbidden); if you know that \
                     it does, add durability=trusted to the URL"
                ));
            }
        };
        if appendonly != "yes" {
            return Err(format!(
                "{name} does not persist its writes (appendonly {appendonly}), and an operation that is lost \
                 runs twice; set appendonly yes and appendfsync always, or accept that with durability=none"
            ));
        }
        if self.no_sync_on_rewrite.as_deref() == Some("yes") {
            return Err(format!(
                "{name} syncs nothing while it rewrites its log (no-appendfsync-on-rewrite yes), and an \
                 operation that is lost runs \
                 twice; set no-appendfsync-on-rewrite no, or accept that with durability=none"
            ));
        }
        let synced =
            appendfsync == "always" || (durability == Durability::Everysec && appendfsync == "everysec");
        if synced {
            return Ok(());
        }
        Err(format!(
            "{name} answers before its writes are synced (appendfsync {appendfsync}), and an operation that is \
             lost runs twice; set appendfsync always, or accept that with durability={}",
            if appendfsync == "everysec" { "everysec" } else { "none" }
        ))
    }

    /// The findings of `once doctor` about this server.
    pub(super) fn findings(&self, options: &RedisOptions, address: &str, wait: u32) -> Vec<Finding> {
        let disk = match (&self.appendonly, &self.appendfsync) {
            (Some(appendonly), Some(appendfsync)) => {
                let rewrite = self.no_sync_on_rewrite.as_deref().unwrap_or("no");
                format!(
                    "{address}: appendonly {appendonly}, appendfsync {appendfsync}, no-appendfsync-on-rewrite {rewrite}"
                )
            }
            (_, _) => {
                format!("{address}: not reported; the operator vouches for it (durability=trusted)")
            }
        };
        let replicas =
            format!("{address}: {} connected, {wait} must confirm each write", self.replicas.online);
        let eviction = format!("{address}: maxmemory {}, {}", self.maxmemory, self.eviction);
        let written = self.last_write == "ok";
        vec![
            Finding::good("server", format!("{address}: {}", self.version)),
            Finding { what: "sync", verdict: self.disk_verdict(options), found: disk },
            Finding { what: "replicas", verdict: self.replica_verdict(wait), found: replicas },
            Finding::check("eviction", !self.evicts(), Verdict::Bad, eviction),
            Finding::check("last write", written, Verdict::Bad, format!("{address}: {}", self.last_write)),
        ]
    }

    fn disk_verdict(&self, options: &RedisOptions) -> Verdict {
        match (self.check_disk(Durability::Always, ""), options.durability) {
            (Ok(()), _) => Verdict::Good,
            // Explicitly allowed, but weaker than it could be.
            (Err(_), Durability::Trusted | Durability::Everysec) => Verdict::Look,
            (Err(_), Durability::Always | Durability::None) => Verdict::Bad,
        }
    }

    fn replica_verdict(&self, wait: u32) -> Verdict {
        if self.replicas.online < wait {
            Verdict::Bad
        } else if wait < self.replicas.all {
            Verdict::Look
        } else {
            Verdict::Good
        }
    }
}

/// The value in a reply to `CONFIG GET`; `None` if it is refused.
fn config_value(value: &Value) -> Option<String> {
    if let Value::Array(pair) = value { text(pair.get(1)?) } else { None }
}

/// A text in a reply.
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
                        slave1:ip=1,port=3,state=wait_bgsave,offset=0,lag=0\r\n\
                        slave2:ip=1,port=0,state=send_bulk,offset=0,lag=0\r\n";

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
    fn server_info_is_parsed() {
        let settings = server(|_| ());
        assert_eq!((settings.role, settings.number), (Role::Primary, Some((7, 0))));
        assert_eq!(settings.replicas, Replicas { online: 1, all: 2 });
        assert_eq!(settings.check(&options(""), "host"), Ok(()));
    }

    #[test]
    fn unsafe_settings_are_refused_unless_accepted() {
        let off = server(|server| server.appendonly = Some("no".to_owned()));
        let second = server(|server| server.appendfsync = Some("everysec".to_owned()));
        let never = server(|server| server.appendfsync = Some("no".to_owned()));
        let silent = server(|server| (server.appendonly, server.appendfsync) = (None, None));
        let rewriting = server(|server| server.no_sync_on_rewrite = Some("yes".to_owned()));
        let table = [
            // server, always, everysec, none, trusted
            (&off, [false, false, true, true]),
            (&second, [false, true, true, true]),
            (&never, [false, false, true, true]),
            (&silent, [false, false, true, true]),
            (&rewriting, [false, false, true, true]),
        ];
        for (settings, allowed) in table {
            for (word, allowed) in ["always", "everysec", "none", "trusted"].iter().zip(allowed) {
                let said = settings.check(&options(&format!("durability={word}")), "host");
                assert_eq!(said.is_ok(), allowed, "{word}: {said:?}");
            }
        }
    }

    #[test]
    fn a_server_that_evicts_keys_is_always_refused() {
        let evicting = server(|server| (server.maxmemory, server.eviction) = (1, "allkeys-lru".to_owned()));
        assert!(evicting.check(&options("durability=trusted"), "host").unwrap_err().contains("noeviction"));
        let roomy = server(|server| server.eviction = "allkeys-lru".to_owned());
        assert_eq!(roomy.check(&options(""), "host"), Ok(()));
        let old = server(|server| server.number = Some((6, 0)));
        assert!(old.check(&options(""), "host").is_err());
    }
}
