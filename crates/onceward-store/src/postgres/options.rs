//! What a `postgres:` URL can say.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use onceward::InvalidInput;
use tokio_postgres::Config;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};

use crate::Missing;

/// The words of ours that a URL may hold, beside PostgreSQL's own.
const WORDS: &str = "schema, partitions, connections, timeout, notify, standby, sslmode, sslrootcert";

/// What a standby that confirms nothing means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Standby {
    /// Refused: promoting it loses what was acknowledged, and then something runs twice.
    #[default]
    Synchronous,
    /// Allowed by name, with that risk.
    Asynchronous,
}

/// How those who wait hear of changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Notify {
    /// The server tells them, where that is seen to work; else they ask now and then.
    #[default]
    IfItWorks,
    /// They ask now and then.
    Never,
}

/// Whom to believe about the server's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trust {
    /// Anybody: the way is encrypted, and nobody is checked.
    Anybody,
    /// Whom the machine trusts.
    Machine,
    /// Whom this file names.
    File(PathBuf),
}

/// Where the ledger is, and how it is kept.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// One a host, in the order of the URL: each has its share of the time, so that one that is silent hides no other.
    pub(super) hosts: Vec<Config>,
    /// The host that answered last.
    pub(super) answered: Arc<AtomicUsize>,
    pub(super) trust: Trust,
    /// The schema that holds the ledger.
    pub schema: String,
    /// In how many partitions a new ledger is kept; `None` for a plain table, or for what there is.
    pub partitions: Option<u32>,
    /// How many connections may write at once.
    pub connections: usize,
    /// How long a call waits for the server.
    pub timeout: Duration,
    /// How those who wait hear of changes.
    pub notify: Notify,
    /// What a standby that confirms nothing means.
    pub standby: Standby,
    /// How much memory finished records may take.
    pub cache_bytes: u64,
    /// What to do where there is no ledger yet.
    pub missing: Missing,
}

impl PostgresOptions {
    /// Reads a URL: `postgres://user@host,host/database?schema=onceward`. Beside PostgreSQL's own words it may hold
    /// `schema=NAME`, `partitions=N` (when the ledger is made), `connections=N`, `timeout=5s`, `notify=no`,
    /// `standby=async`, `sslmode=disable|prefer|require|verify-full` and `sslrootcert=PATH`.
    ///
    /// # Errors
    /// Says which part is not understood.
    pub fn parse(url: &str) -> Result<Self, InvalidInput> {
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        let mut said = Said::default();
        let mut theirs = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            if !said.take(pair)? {
                theirs.push(pair);
            }
        }
        let rest = if theirs.is_empty() { String::new() } else { format!("?{}", theirs.join("&")) };
        let places = one_each(place);
        let timeout = said.timeout.unwrap_or(Duration::from_secs(5));
        let hosts = places.iter().map(|place| {
            let mut config = config_of(&format!("{place}{rest}"))?;
            if places.len() > 1 && config.get_target_session_attrs() == TargetSessionAttrs::Any {
                config.target_session_attrs(TargetSessionAttrs::ReadWrite);
            }
            config.ssl_mode(said.sslmode.unwrap_or(SslMode::Prefer));
            config
                .connect_timeout(timeout)
                .tcp_user_timeout(timeout)
                .keepalives_idle(Duration::from_secs(15));
            Ok(config)
        });
        Ok(Self {
            hosts: hosts.collect::<Result<_, InvalidInput>>()?,
            answered: Arc::default(),
            trust: match (said.root, said.verify) {
                (Some(path), _) => Trust::File(path),
                (None, Verify::Name) => Trust::Machine,
                (None, Verify::Nobody) => Trust::Anybody,
            },
            schema: said.schema.unwrap_or_else(|| "onceward".to_owned()),
            partitions: said.partitions,
            connections: said.connections.unwrap_or(4),
            timeout,
            notify: said.notify,
            standby: said.standby,
            cache_bytes: 64 * 1024 * 1024,
            missing: Missing::Make,
        })
    }

    /// The ledger's own place among all notifications of the database.
    pub(super) fn channel(&self) -> String {
        format!("onceward:{}", self.schema)
    }
}

/// The same place with each of its hosts alone.
fn one_each(place: &str) -> Vec<String> {
    let Some((scheme, rest)) = place.split_once("://") else { return vec![place.to_owned()] };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (format!("{user}@"), hosts),
        None => (String::new(), authority),
    };
    hosts.split(',').map(|host| format!("{scheme}://{user}{host}{path}")).collect()
}

fn config_of(url: &str) -> Result<Config, InvalidInput> {
    let mut config = Config::from_str(url).map_err(|error| {
        let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        InvalidInput::new(format!("{why}; beside PostgreSQL's own words it may hold {WORDS}"))
    })?;
    if config.get_hosts().is_empty() {
        return Err(InvalidInput::new("it names no host; write postgres://user@host/database"));
    }
    if config.get_application_name().is_none() {
        config.application_name("onceward");
    }
    Ok(config)
}

/// Whether the server's certificate is checked.
#[derive(Debug, Clone, Copy, Default)]
enum Verify {
    #[default]
    Nobody,
    Name,
}

/// Our own words of a URL.
#[derive(Default)]
struct Said {
    schema: Option<String>,
    partitions: Option<u32>,
    connections: Option<usize>,
    timeout: Option<Duration>,
    notify: Notify,
    standby: Standby,
    sslmode: Option<SslMode>,
    verify: Verify,
    root: Option<PathBuf>,
}

impl Said {
    /// Takes a word that is ours; tells whether it was.
    fn take(&mut self, pair: &str) -> Result<bool, InvalidInput> {
        let no = |what: &str| Err(InvalidInput::new(format!("{pair:?} is not understood; write {what}")));
        let Some((word, value)) = pair.split_once('=') else { return no("word=value") };
        match (word, value) {
            ("schema", name) if is_plain(name) => self.schema = Some(name.to_owned()),
            ("schema", _) => return no("schema= and up to 48 lowercase letters, digits and underscores"),
            ("partitions", number) => match number.parse() {
                Ok(partitions @ 1..=1024) => self.partitions = Some(partitions),
                Ok(_) | Err(_) => return no("partitions= and a number from 1 to 1024"),
            },
            ("connections", number) => match number.parse() {
                Ok(connections @ 1..=64) => self.connections = Some(connections),
                Ok(_) | Err(_) => return no("connections= and a number from 1 to 64"),
            },
            ("timeout", span) => match span_of(span) {
                Some(span) => self.timeout = Some(span),
                None => return no("timeout= and a time such as 5s or 500ms"),
            },
            ("notify", "no") => self.notify = Notify::Never,
            ("notify", _) => return no("notify=no"),
            ("standby", "async") => self.standby = Standby::Asynchronous,
            ("standby", _) => return no("standby=async"),
            ("sslmode", "disable") => self.sslmode = Some(SslMode::Disable),
            ("sslmode", "prefer") => self.sslmode = Some(SslMode::Prefer),
            ("sslmode", "require") => self.sslmode = Some(SslMode::Require),
            ("sslmode", "verify-full") => {
                (self.sslmode, self.verify) = (Some(SslMode::Require), Verify::Name);
            }
            ("sslmode", _) => return no("sslmode=disable, prefer, require or verify-full"),
            ("sslrootcert", path) => self.root = Some(path.into()),
            (_, _) => return Ok(false),
        }
        Ok(true)
    }
}

/// A name that needs no quotes and no second look.
fn is_plain(name: &str) -> bool {
    let mut bytes = name.bytes();
    name.len() <= 48
        && bytes.next().is_some_and(|first| matches!(first, b'a'..=b'z' | b'_'))
        && bytes.all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
}

fn span_of(text: &str) -> Option<Duration> {
    let (digits, unit_ms) = match text.strip_suffix("ms") {
        Some(digits) => (digits, 1),
        None => (text.strip_suffix('s')?, 1_000),
    };
    let number: u64 = digits.parse().ok()?;
    let ms = number.checked_mul(unit_ms).filter(|ms| (100..=3_600_000).contains(ms))?;
    Some(Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_and_how() -> Result<(), InvalidInput> {
        let url =
            "postgres://me@a:1,b:2/db?schema=once_2&partitions=8&connections=2&timeout=250ms&standby=async";
        let options = PostgresOptions::parse(url)?;
        assert_eq!(
            (options.schema.as_str(), options.partitions, options.connections),
            ("once_2", Some(8), 2)
        );
        assert_eq!((options.timeout, options.standby), (Duration::from_millis(250), Standby::Asynchronous));
        for (host, port) in options.hosts.iter().zip([1, 2]) {
            assert_eq!(host.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
            assert_eq!((host.get_ports(), host.get_user()), ([port].as_slice(), Some("me")));
        }
        Ok(())
    }

    #[test]
    fn what_is_not_understood_is_said() {
        for (query, said) in [
            ("schema=Drop", "schema="),
            ("schema=a%22b", "schema="),
            ("partitions=0", "partitions="),
            ("timeout=5", "timeout="),
            ("sslmode=verify", "verify-full"),
            ("shcema=x", "shcema"),
        ] {
            let refused = PostgresOptions::parse(&format!("postgres://me@a/db?{query}"));
            let refused = refused.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(refused.contains(said), "{query}: {refused:?}");
        }
    }

    #[test]
    fn certificates_are_checked_when_they_are_asked_for() -> Result<(), InvalidInput> {
        let trust = |query: &str| {
            PostgresOptions::parse(&format!("postgres://me@a/db?{query}")).map(|options| options.trust)
        };
        assert_eq!(trust("sslmode=require")?, Trust::Anybody);
        assert_eq!(trust("sslmode=verify-full")?, Trust::Machine);
        assert_eq!(trust("sslmode=require&sslrootcert=/ca.pem")?, Trust::File("/ca.pem".into()));
        Ok(())
    }
}
