//! The options of a Redis URL.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use onceward::InvalidInput;

use crate::password::Source;
use crate::remote::CHECK_INTERVAL;
use crate::remote::url::{Secret, parse_duration, percent_decode, plain};
use crate::{IfMissing, query_options};

/// Which durability the server must guarantee before it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Every write is synced before it is answered (`appendonly yes`, `appendfsync always`).
    #[default]
    Always,
    /// Writes are synced once a second. A power failure can lose intents, and then an effect can happen twice.
    Everysec,
    /// Whatever the server does. For tests, and for ledgers that need not survive the server.
    None,
    /// The server does not report its settings (managed services forbid `CONFIG`), and the operator vouches for it.
    Trusted,
}

impl Durability {
    /// The value of the `durability` option.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Everysec => "everysec",
            Self::None => "none",
            Self::Trusted => "trusted",
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How the ledger is distributed over servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One server has all of it, in this database. If several hosts are named, the primary among them.
    Standalone {
        /// The database number.
        db: i64,
    },
    /// A cluster. The hosts are the ones to contact first.
    Cluster,
}

/// How the connection is protected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// Not at all.
    Plain,
    /// With TLS.
    Tls {
        /// Root certificates to use instead of those of the machine.
        cacert: Option<PathBuf>,
    },
}

/// What to do if some shards are empty while others are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Emptied {
    /// The ledger is not opened, because operations recorded in them would run again.
    #[default]
    Refuse,
    /// The ledger is opened, but the empty shards are not written until the epoch is raised. For `once restored`.
    Accept,
}

/// How to authenticate with sentinels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SentinelAuth {
    /// Without credentials.
    #[default]
    None,
    /// With the same user and password as the servers.
    Same,
}

/// Where the ledger is and how the store uses it. See [`RedisOptions::parse`] for the URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisOptions {
    /// Host and port of each server in the URL.
    pub hosts: Vec<(String, u16)>,
    /// One server or a cluster.
    pub layout: Layout,
    /// Whether to use TLS.
    pub transport: Transport,
    /// The name under which the sentinels know the primary. If set, the hosts are sentinels.
    pub service: Option<String>,
    /// How to authenticate with sentinels.
    pub sentinel_auth: SentinelAuth,
    /// The user name.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Secret>,
    /// The prefix of all keys of the ledger.
    pub prefix: String,
    /// The number of shards of a new ledger. An existing one keeps its number.
    pub shards: u16,
    /// How many replicas must confirm a write; `None` for the largest number that the ledger has seen.
    pub wait: Option<u32>,
    /// How long to wait for the replicas.
    pub wait_timeout: Duration,
    /// The timeout of a call.
    pub timeout: Duration,
    /// Which durability the server must guarantee.
    pub durability: Durability,
    /// The number of connections per server (`lanes` in the URL). While one waits for replies, the others send what
    /// has arrived meanwhile.
    pub connections_per_node: usize,
    /// The maximum memory for cached records.
    pub cache_bytes: u64,
    /// How often an open store checks the server's clock, its settings, and whether the ledger is still the same one.
    pub check_interval: Duration,
    /// What to do if there is no ledger yet.
    pub missing: IfMissing,
    /// Whether the URL allows creating a ledger.
    pub create: IfMissing,
    /// What to do if some shards are empty while others are not.
    pub emptied: Emptied,
}

/// The shard number must fit into the cursor of a listing.
pub(super) const MAX_SHARDS: u16 = 1024;
const SHARDS: u16 = 64;
const CONNECTIONS: usize = 4;
const MAX_CONNECTIONS: usize = 64;
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26_379;
const UNDERSTOOD: &str = "prefix=TEXT, durability=always|everysec|none|trusted, wait=REPLICAS, wait_timeout=2s, \
                          timeout=5s, shards=NUMBER, lanes=NUMBER, cache_bytes=NUMBER, create=yes|no, \
                          emptied=refuse|accept, service=NAME, sentinel_auth=none|same, cacert=PATH, \
                          password_file=PATH, password_env=NAME";

impl RedisOptions {
    /// The ledger on these hosts, with the default options.
    #[must_use]
    pub fn new(hosts: Vec<(String, u16)>) -> Self {
        Self {
            hosts,
            layout: Layout::Standalone { db: 0 },
            transport: Transport::Plain,
            service: None,
            sentinel_auth: SentinelAuth::None,
            user: None,
            password: None,
            prefix: "once".to_owned(),
            shards: SHARDS,
            wait: None,
            wait_timeout: Duration::from_secs(2),
            timeout: Duration::from_secs(5),
            durability: Durability::Always,
            connections_per_node: CONNECTIONS,
            cache_bytes: 64 * 1024 * 1024,
            check_interval: CHECK_INTERVAL,
            missing: IfMissing::Create,
            create: IfMissing::Create,
            emptied: Emptied::Refuse,
        }
    }

    /// Parses a URL: `redis://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…][/DB][?OPTIONS]`. `rediss` means TLS.
    /// `redis+cluster` and `rediss+cluster` mean a cluster. With `redis+sentinel` and `rediss+sentinel` the hosts are
    /// sentinels.
    ///
    /// The options are those in the fields of this type. The number of connections per server is called `lanes`.
    ///
    /// ```
    /// use onceward_store::redis::RedisOptions;
    ///
    /// let options = RedisOptions::parse("redis://cache.example/0?prefix=jobs&lanes=8")?;
    /// assert_eq!((options.prefix.as_str(), options.connections_per_node), ("jobs", 8));
    /// # Ok::<(), onceward::InvalidInput>(())
    /// ```
    ///
    /// # Errors
    /// Names the part that is not understood, and never shows the password.
    pub fn parse(url: &str) -> Result<Self, InvalidInput> {
        let (scheme, rest) =
            url.split_once("://").ok_or_else(|| InvalidInput::new("write redis://HOST:PORT"))?;
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (identity, place) = match address.rsplit_once('@') {
            Some((identity, place)) => (Some(identity), place),
            None => (None, address),
        };
        let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
        let sentinels = scheme.ends_with("+sentinel");
        let port = if sentinels { SENTINEL_PORT } else { PORT };
        let mut options = Self::new(hosts.split(',').map(|text| host(text, port)).collect::<Result<_, _>>()?);
        if scheme.ends_with("+cluster") {
            options.layout = Layout::Cluster;
        }
        if scheme.starts_with("rediss") {
            options.transport = Transport::Tls { cacert: None };
        }
        options.database(path)?;
        if let Some(identity) = identity {
            let (user, password) = identity.split_once(':').unwrap_or((identity, ""));
            options.user = Some(percent_decode(user)?).filter(|user| !user.is_empty());
            options.password =
                Some(Secret(percent_decode(password)?)).filter(|password| !password.0.is_empty());
        }
        query_options(query)?.into_iter().try_for_each(|pair| options.option(pair))?;
        match (sentinels, &options.service) {
            (true, None) => Err(InvalidInput::new(
                "add service=NAME, the name under which the sentinels know the primary",
            )),
            (false, Some(_)) => Err(InvalidInput::new("service= is for redis+sentinel://")),
            (true, Some(_)) | (false, None) => Ok(options),
        }
    }

    fn database(&mut self, path: &str) -> Result<(), InvalidInput> {
        if path.is_empty() {
            return Ok(());
        }
        let number: i64 = path
            .parse()
            .map_err(|_| InvalidInput::new(format!("/{path} is not the number of a database, such as /0")))?;
        match &mut self.layout {
            Layout::Standalone { db } => *db = number,
            Layout::Cluster if number == 0 => {}
            Layout::Cluster => return Err(InvalidInput::new("a cluster has only database 0")),
        }
        Ok(())
    }

    fn option(&mut self, pair: &str) -> Result<(), InvalidInput> {
        // An unknown word, or one without a value, can be a misplaced password.
        let (name, value) = pair.split_once('=').unwrap_or(("", pair));
        let known = UNDERSTOOD
            .split([' ', ','])
            .any(|word| word.split_once('=').is_some_and(|(known, _)| known == name));
        let shown = if known { format!("{name}={value}") } else { format!("{}…", plain(name)) };
        let not_understood =
            || InvalidInput::new(format!("{shown:?} is not understood; the options are {UNDERSTOOD}"));
        match name {
            "prefix" => self.prefix = prefix(&percent_decode(value)?)?,
            "durability" => self.durability = durability(value).ok_or_else(not_understood)?,
            "wait" => self.wait = Some(value.parse().map_err(|_| not_understood())?),
            "wait_timeout" => self.wait_timeout = parse_duration(value).ok_or_else(not_understood)?,
            "timeout" => self.timeout = parse_duration(value).ok_or_else(not_understood)?,
            "cache_bytes" => self.cache_bytes = value.parse().map_err(|_| not_understood())?,
            "service" => self.service = Some(percent_decode(value)?).filter(|name| !name.is_empty()),
            "sentinel_auth" => match value {
                "none" => self.sentinel_auth = SentinelAuth::None,
                "same" => self.sentinel_auth = SentinelAuth::Same,
                _ => return Err(not_understood()),
            },
            "create" => match value {
                "yes" => self.create = IfMissing::Create,
                "no" => self.create = IfMissing::Fail,
                _ => return Err(not_understood()),
            },
            "emptied" => match value {
                "refuse" => self.emptied = Emptied::Refuse,
                "accept" => self.emptied = Emptied::Accept,
                _ => return Err(not_understood()),
            },
            "lanes" => match value.parse() {
                Ok(number @ 1..=MAX_CONNECTIONS) => self.connections_per_node = number,
                Ok(_) | Err(_) => return Err(not_understood()),
            },
            "shards" => {
                let shards: u16 = value.parse().map_err(|_| not_understood())?;
                if !(1..=MAX_SHARDS).contains(&shards) {
                    return Err(InvalidInput::new(format!(
                        "shards={shards} is not within 1 to {MAX_SHARDS}"
                    )));
                }
                self.shards = shards;
            }
            "cacert" => match &mut self.transport {
                Transport::Tls { cacert } => *cacert = Some(percent_decode(value)?.into()),
                Transport::Plain => {
                    return Err(InvalidInput::new("cacert= is for rediss://, but this URL does not use TLS"));
                }
            },
            "password_file" => self.take_password(&Source::File(percent_decode(value)?.into()))?,
            "password_env" => self.take_password(&Source::Variable(percent_decode(value)?))?,
            _ => return Err(not_understood()),
        }
        Ok(())
    }

    /// Reads the password from the source that the URL names.
    fn take_password(&mut self, source: &Source) -> Result<(), InvalidInput> {
        if self.password.is_some() {
            return Err(InvalidInput::new(
                "it contains a password and names a source for another one; remove one of them",
            ));
        }
        self.password = Some(Secret(source.read()?));
        Ok(())
    }
}

fn host(text: &str, default_port: u16) -> Result<(String, u16), InvalidInput> {
    // The text at the position of the host can be part of a password.
    let wrong = || {
        InvalidInput::new(
            "the host is not of the form HOST or HOST:PORT; in a password, write / ? # and @ as %2F \
             %3F %23 and %40",
        )
    };
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port.parse().map_err(|_| wrong())?),
        Some(_) | None => (text, default_port),
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    if name.is_empty() { Err(wrong()) } else { Ok((name.to_owned(), port)) }
}

/// The prefix is part of a hash tag, so it must not contain braces.
fn prefix(text: &str) -> Result<String, InvalidInput> {
    let fits = (1..=64).contains(&text.len())
        && text.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '{' | '}' | '*' | '?' | '[' | ']'));
    if fits {
        Ok(text.to_owned())
    } else {
        Err(InvalidInput::new(format!("prefix={text:?} is not 1 to 64 visible characters without {{}}*?[]")))
    }
}

fn durability(word: &str) -> Option<Durability> {
    use Durability::{Always, Everysec, None as Nothing, Trusted};
    [Always, Everysec, Nothing, Trusted].into_iter().find(|durability| durability.as_str() == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_sets_the_options() {
        let options = RedisOptions::parse(
            "rediss://once:p%40ss:w0rd@one,two:7000/3?prefix=pay&wait=1&timeout=250ms&cacert=/etc/ca.pem",
        )
        .unwrap();
        assert_eq!(options.hosts, [("one".to_owned(), 6379), ("two".to_owned(), 7000)]);
        assert_eq!(options.layout, Layout::Standalone { db: 3 });
        assert_eq!(options.transport, Transport::Tls { cacert: Some("/etc/ca.pem".into()) });
        assert_eq!(options.user.as_deref(), Some("once"));
        assert_eq!(options.password, Some(Secret("p@ss:w0rd".to_owned())));
        assert_eq!((options.prefix.as_str(), options.wait), ("pay", Some(1)));
        assert_eq!(options.timeout, Duration::from_millis(250));
        assert!(!format!("{options:?}").contains("w0rd"), "the password is not shown");
    }

    #[test]
    fn a_cluster_url_may_have_ipv6_addresses() {
        let options = RedisOptions::parse("redis+cluster://[::1]:7001,[::2]").unwrap();
        assert_eq!(options.layout, Layout::Cluster);
        assert_eq!(options.hosts, [("::1".to_owned(), 7001), ("::2".to_owned(), 6379)]);
    }

    #[test]
    fn a_sentinel_url_names_a_service() {
        let options = RedisOptions::parse("rediss+sentinel://one,two:7000/2?service=main").unwrap();
        assert_eq!(options.hosts, [("one".to_owned(), 26_379), ("two".to_owned(), 7000)]);
        assert_eq!(
            (options.service.as_deref(), options.layout),
            (Some("main"), Layout::Standalone { db: 2 })
        );
    }

    #[test]
    fn invalid_urls_are_refused_without_showing_secrets() {
        for url in [
            "redis://",
            "redis://host:port",
            "redis://host/db",
            "redis+cluster://host/1",
            "redis://host?prefix={a}",
            "redis://host?durability=some",
            "redis://host?timeout=5",
            "redis://host?shards=0",
            "redis://host?cacert=/etc/ca.pem",
            "redis://host?colour=red",
            "redis+sentinel://host",
            "redis://host?service=main",
            "redis://host?create=maybe",
            "redis://host?create=no&create=yes",
            "redis://host?password=S3CRET",
            "redis://host?S3CRET",
            "redis://u:S3CRET?pw@host",
            "redis://u:x@host?password_env=S3CRET",
            "redis://host?password_file=/no/such/file",
        ] {
            let refused = RedisOptions::parse(url).map(|_| ()).unwrap_err().to_string();
            assert!(!refused.contains("S3CRET"), "{url}: {refused}");
        }
    }
}
