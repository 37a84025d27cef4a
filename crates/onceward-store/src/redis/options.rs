//! What a Redis URL can say.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use onceward::InvalidInput;

use crate::Missing;

/// What the server must promise about its disk before anything is entrusted to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Every write is synced before it is answered (`appendonly yes`, `appendfsync always`).
    #[default]
    Always,
    /// Writes are synced once a second: a power cut can lose intents, and then something runs twice.
    Everysec,
    /// Whatever the server does: for tests and for ledgers that need not outlive it.
    None,
    /// The server does not say (managed services forbid `CONFIG`), and somebody else answers for it.
    Trusted,
}

impl Durability {
    /// The word for it.
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

/// How the servers divide the ledger among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One server has it all, in this database. Of several hosts, the one that is the primary.
    Standalone {
        /// The number of the database.
        db: i64,
    },
    /// A cluster. The hosts are those to ask first.
    Cluster,
}

/// How the connection is protected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// Not at all.
    Plain,
    /// By TLS.
    Tls {
        /// Whom to trust instead of whom the machine trusts.
        cacert: Option<PathBuf>,
    },
}

/// A text that no log may show.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Where the ledger is, and how it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisOptions {
    /// Host and port of each server that is named.
    pub hosts: Vec<(String, u16)>,
    /// One server or a cluster.
    pub layout: Layout,
    /// Whether by TLS.
    pub transport: Transport,
    /// Who connects.
    pub user: Option<String>,
    /// What proves it.
    pub password: Option<Secret>,
    /// What every key of the ledger begins with.
    pub prefix: String,
    /// Into how many shards a new ledger is divided. An existing one keeps its own number.
    pub shards: u16,
    /// How many replicas must have a write before it counts; `None` for as many as there were when the ledger saw most.
    pub wait: Option<u32>,
    /// How long to wait for them.
    pub wait_timeout: Duration,
    /// After what time a call gives up.
    pub timeout: Duration,
    /// What the server must promise about its disk.
    pub durability: Durability,
    /// How many connections a server gets: while one waits for its answers, others take what has come meanwhile.
    pub lanes: usize,
    /// How much memory finished records may take.
    pub cache_bytes: u64,
    /// What to do where there is no ledger yet.
    pub missing: Missing,
}

/// More shards than this do not fit into a place of a listing.
pub(super) const MAX_SHARDS: u16 = 1024;
const SHARDS: u16 = 64;
const LANES: usize = 4;
const MAX_LANES: usize = 64;
const PORT: u16 = 6379;
const UNDERSTOOD: &str = "prefix=TEXT, durability=always|everysec|none|trusted, wait=REPLICAS, wait_timeout=2s, \
                          timeout=5s, shards=NUMBER, lanes=NUMBER, cache_bytes=NUMBER and cacert=PATH are";

impl RedisOptions {
    /// The ledger on these hosts, kept as it should be.
    #[must_use]
    pub fn new(hosts: Vec<(String, u16)>) -> Self {
        Self {
            hosts,
            layout: Layout::Standalone { db: 0 },
            transport: Transport::Plain,
            user: None,
            password: None,
            prefix: "once".to_owned(),
            shards: SHARDS,
            wait: None,
            wait_timeout: Duration::from_secs(2),
            timeout: Duration::from_secs(5),
            durability: Durability::Always,
            lanes: LANES,
            cache_bytes: 64 * 1024 * 1024,
            missing: Missing::Make,
        }
    }

    /// Reads a URL: `redis://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…][/DB][?OPTIONS]`, with `rediss` for TLS and
    /// `redis+cluster` or `rediss+cluster` for a cluster.
    ///
    /// # Errors
    /// Says which part is not understood, and never shows the password.
    pub fn parse(url: &str) -> Result<Self, InvalidInput> {
        let (scheme, rest) =
            url.split_once("://").ok_or_else(|| InvalidInput::new("write redis://HOST:PORT"))?;
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (identity, place) = match address.rsplit_once('@') {
            Some((identity, place)) => (Some(identity), place),
            None => (None, address),
        };
        let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
        let mut options = Self::new(hosts.split(',').map(host).collect::<Result<_, _>>()?);
        if scheme.ends_with("+cluster") {
            options.layout = Layout::Cluster;
        }
        if scheme.starts_with("rediss") {
            options.transport = Transport::Tls { cacert: None };
        }
        options.database(path)?;
        if let Some(identity) = identity {
            let (user, password) = identity.split_once(':').unwrap_or((identity, ""));
            options.user = Some(decoded(user)?).filter(|user| !user.is_empty());
            options.password = Some(Secret(decoded(password)?)).filter(|password| !password.0.is_empty());
        }
        query.split('&').filter(|pair| !pair.is_empty()).try_for_each(|pair| options.option(pair))?;
        Ok(options)
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
            Layout::Cluster => return Err(InvalidInput::new("a cluster has no other database than 0")),
        }
        Ok(())
    }

    fn option(&mut self, pair: &str) -> Result<(), InvalidInput> {
        let not_understood = || InvalidInput::new(format!("{pair:?} is not understood; {UNDERSTOOD}"));
        let (name, value) = pair.split_once('=').ok_or_else(not_understood)?;
        match name {
            "prefix" => self.prefix = prefix(&decoded(value)?)?,
            "durability" => self.durability = durability(value).ok_or_else(not_understood)?,
            "wait" => self.wait = Some(value.parse().map_err(|_| not_understood())?),
            "wait_timeout" => self.wait_timeout = span(value).ok_or_else(not_understood)?,
            "timeout" => self.timeout = span(value).ok_or_else(not_understood)?,
            "cache_bytes" => self.cache_bytes = value.parse().map_err(|_| not_understood())?,
            "lanes" => match value.parse() {
                Ok(lanes @ 1..=MAX_LANES) => self.lanes = lanes,
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
                Transport::Tls { cacert } => *cacert = Some(decoded(value)?.into()),
                Transport::Plain => {
                    return Err(InvalidInput::new("cacert= is for rediss://, and this URL uses no TLS"));
                }
            },
            _ => return Err(not_understood()),
        }
        Ok(())
    }
}

fn host(text: &str) -> Result<(String, u16), InvalidInput> {
    let wrong = || InvalidInput::new(format!("{text:?} is not HOST or HOST:PORT"));
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port.parse().map_err(|_| wrong())?),
        Some(_) | None => (text, PORT),
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    if name.is_empty() { Err(wrong()) } else { Ok((name.to_owned(), port)) }
}

/// A prefix is part of a hash tag, so it must not end one.
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

/// `500ms` or `5s`.
fn span(text: &str) -> Option<Duration> {
    let span = match text.strip_suffix("ms") {
        Some(number) => Duration::from_millis(number.parse().ok()?),
        None => Duration::from_secs(text.strip_suffix('s')?.parse().ok()?),
    };
    (Duration::from_millis(10)..=Duration::from_secs(600)).contains(&span).then_some(span)
}

/// Turns `%40` back into `@`.
fn decoded(text: &str) -> Result<String, InvalidInput> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first == b'%' {
            let digits = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
            let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
            bytes.push(
                byte.ok_or_else(|| InvalidInput::new("a % is not followed by two hexadecimal digits"))?,
            );
            rest = &tail[2..];
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).map_err(|_| InvalidInput::new("what % stands for is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_and_how() {
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
    fn a_cluster_and_an_address_of_the_sixth_version() {
        let options = RedisOptions::parse("redis+cluster://[::1]:7001,[::2]").unwrap();
        assert_eq!(options.layout, Layout::Cluster);
        assert_eq!(options.hosts, [("::1".to_owned(), 7001), ("::2".to_owned(), 6379)]);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
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
        ] {
            assert!(RedisOptions::parse(url).is_err(), "{url}");
        }
    }
}
