//! The options of a `postgres:` URL.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use onceward::text::masked_in;
use onceward::{InvalidInput, StoreError};
use tokio_postgres::Config;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};

use crate::password::{self, Login, Source};
use crate::remote::CHECK_INTERVAL;
use crate::{IfMissing, create_option, query_options};

/// The options of a URL that are ours, besides PostgreSQL's own.
const OPTIONS: &str = "schema, create, owner, partitions, connections, timeout, notify, standby, sslmode, sslrootcert, \
                     password_file, password_env";

/// Whether an asynchronous standby is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Standby {
    /// It is refused. Promoting it loses acknowledged writes, and then an effect can happen twice.
    #[default]
    Synchronous,
    /// It is allowed, with that risk (`standby=async`).
    Asynchronous,
}

/// How waiting callers learn about changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Notify {
    /// The server notifies them if notifications are delivered; otherwise they poll.
    #[default]
    IfItWorks,
    /// They poll.
    Never,
}

/// How the server's certificate is checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trust {
    /// Not at all: the connection is encrypted but not authenticated.
    Any,
    /// Against the root certificates of the machine.
    Machine,
    /// Against the root certificates in this file.
    File(PathBuf),
}

/// Where the ledger is and how the store uses it. See [`PostgresOptions::parse`] for the URL.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// One configuration per host, in the order of the URL. Each gets its share of the timeout, so that a silent host
    /// does not hide the others.
    pub(super) hosts: Vec<Config>,
    /// The host that answered last.
    pub(super) answered: Arc<AtomicUsize>,
    pub(super) trust: Trust,
    /// The schema that holds the ledger.
    pub schema: String,
    /// The number of partitions of a new ledger; `None` for a plain table, or to accept what exists.
    pub partitions: Option<u32>,
    /// The maximum number of connections, not counting the one for notifications.
    pub connections: usize,
    /// How long a call waits for the server.
    pub timeout: Duration,
    /// How waiting callers learn about changes.
    pub notify: Notify,
    /// Whether an asynchronous standby is allowed.
    pub standby: Standby,
    /// The maximum memory for cached records.
    pub cache_bytes: u64,
    /// How often an open store checks the server's clock, its settings, and whether the ledger is still the same one.
    pub check_interval: Duration,
    /// What to do if there is no ledger yet.
    pub missing: IfMissing,
    /// The same, as set in the URL. The ledger is created only if both allow it.
    pub create: IfMissing,
    /// An additional role whose tables and functions are trusted.
    pub owner: Option<String>,
}

impl PostgresOptions {
    /// Parses a URL: `postgres://user@host,host/database?schema=onceward`.
    ///
    /// Besides PostgreSQL's own options it accepts:
    /// - `schema=NAME`: the schema of the ledger
    /// - `partitions=N`: for a new ledger, hash partitions
    /// - `connections=N`, `timeout=5s`, `notify=no`, `standby=async`
    /// - `create=no`: fail if there is no ledger
    /// - `owner=ROLE`: trust the tables and functions of that role
    /// - `sslmode=disable|prefer|require|verify-full` and `sslrootcert=PATH`, which implies `sslmode=verify-full`
    /// - `password_file=PATH` or `password_env=NAME`, to keep the password out of the URL
    ///
    /// Without a password, `PGPASSWORD`, `PGPASSFILE` and `~/.pgpass` are used as PostgreSQL's own tools do.
    ///
    /// ```
    /// use onceward_store::postgres::PostgresOptions;
    ///
    /// let options = PostgresOptions::parse("postgres://agent@db.example/app?schema=jobs&timeout=2s")?;
    /// assert_eq!(options.schema, "jobs");
    /// # Ok::<(), onceward::InvalidInput>(())
    /// ```
    ///
    /// # Errors
    /// Names the part that is not understood, and never shows a password.
    pub fn parse(url: &str) -> Result<Self, InvalidInput> {
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        let mut url_options = UrlOptions::default();
        let mut theirs = Vec::new();
        for pair in query_options(query)? {
            if !url_options.take(pair)? {
                theirs.push(pair);
            }
        }
        let sslmode = url_options.tls()?;
        let rest = if theirs.is_empty() { String::new() } else { format!("?{}", theirs.join("&")) };
        let places = split_hosts(place)?;
        let timeout = url_options.timeout.unwrap_or(Duration::from_secs(5));
        let hosts = places.iter().map(|place| {
            let mut config = config_of(&format!("{place}{rest}"))?;
            add_password(&mut config, url_options.password.as_ref())?;
            if places.len() > 1 && config.get_target_session_attrs() == TargetSessionAttrs::Any {
                config.target_session_attrs(TargetSessionAttrs::ReadWrite);
            }
            config.ssl_mode(sslmode);
            config
                .connect_timeout(timeout)
                .tcp_user_timeout(timeout)
                .keepalives_idle(Duration::from_secs(15));
            Ok(config)
        });
        Ok(Self {
            hosts: hosts.collect::<Result<_, InvalidInput>>()?,
            answered: Arc::default(),
            trust: match (url_options.root, url_options.verify) {
                (Some(path), _) => Trust::File(path),
                (None, Verify::Name) => Trust::Machine,
                (None, Verify::None) => Trust::Any,
            },
            schema: url_options.schema.unwrap_or_else(|| "onceward".to_owned()),
            partitions: url_options.partitions,
            connections: url_options.connections.unwrap_or(4),
            timeout,
            notify: url_options.notify,
            standby: url_options.standby,
            cache_bytes: 64 * 1024 * 1024,
            check_interval: CHECK_INTERVAL,
            missing: IfMissing::Create,
            create: url_options.create,
            owner: url_options.owner,
        })
    }

    /// Fails if there is no ledger and none may be created.
    pub(super) fn refuse_missing(&self) -> Result<(), StoreError> {
        crate::refuse_missing(self.create, self.missing, || format!("in the schema {:?}", self.schema))
    }

    /// The ledger's notification channel in the database.
    pub(super) fn channel(&self) -> String {
        format!("onceward:{}", self.schema)
    }
}

/// Splits a URL with several hosts into one URL per host.
fn split_hosts(place: &str) -> Result<Vec<String>, InvalidInput> {
    let Some((scheme, rest)) = place.split_once("://") else { return Ok(vec![place.to_owned()]) };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    // The rest of a password would be sent as the name of the database, and the server repeats that in its error.
    if path.contains('@') {
        return Err(InvalidInput::new(
            "there is an @ behind the host; in a password or a name, write / ? # and @ as %2F %3F %23 and %40",
        ));
    }
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (format!("{user}@"), hosts),
        None => (String::new(), authority),
    };
    Ok(hosts.split(',').map(|host| format!("{scheme}://{user}{host}{path}")).collect())
}

fn config_of(url: &str) -> Result<Config, InvalidInput> {
    let mut config = Config::from_str(url).map_err(|error| {
        let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        let why = if may_be_shown(&why) { why } else { "a part of it is not understood".to_owned() };
        InvalidInput::new(format!("{why}; besides PostgreSQL's own options it may hold {OPTIONS}"))
    })?;
    if config.get_hosts().is_empty() {
        return Err(InvalidInput::new("it names no host; write postgres://user@host/database"));
    }
    if config.get_application_name().is_none() {
        config.application_name("onceward");
    }
    Ok(config)
}

/// Whether a parser error may be shown: the word that it quotes can be a misplaced password.
fn may_be_shown(why: &str) -> bool {
    let quoted = why.split('`').nth(1).unwrap_or_default();
    quoted.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

/// Adds the password if the URL does not contain it.
fn add_password(config: &mut Config, source: Option<&Source>) -> Result<(), InvalidInput> {
    let password = match (config.get_password(), source) {
        (Some(_), Some(_)) => {
            return Err(InvalidInput::new(
                "it contains a password and names a source for another one; remove one of them",
            ));
        }
        (Some(_), None) => return Ok(()),
        (None, Some(source)) => Some(source.read()?),
        (None, None) => {
            let user = config.get_user().unwrap_or_default();
            password::for_postgres(Login {
                host: match config.get_hosts().first() {
                    Some(tokio_postgres::config::Host::Tcp(name)) => name,
                    Some(tokio_postgres::config::Host::Unix(_)) | None => "localhost",
                },
                port: config.get_ports().first().copied().unwrap_or(5432),
                database: config.get_dbname().unwrap_or(user),
                user,
            })
        }
    };
    if let Some(password) = password {
        config.password(password);
    }
    Ok(())
}

/// Whether the server's certificate is checked.
#[derive(Debug, Clone, Copy, Default)]
enum Verify {
    #[default]
    None,
    Name,
}

/// The options that are ours.
#[derive(Default)]
struct UrlOptions {
    schema: Option<String>,
    partitions: Option<u32>,
    connections: Option<usize>,
    timeout: Option<Duration>,
    notify: Notify,
    standby: Standby,
    sslmode: Option<SslMode>,
    verify: Verify,
    root: Option<PathBuf>,
    password: Option<Source>,
    create: IfMissing,
    owner: Option<String>,
}

impl UrlOptions {
    /// The TLS mode. A root certificate file is for checking the server, so it requires encryption.
    fn tls(&self) -> Result<SslMode, InvalidInput> {
        match (self.sslmode, &self.root) {
            (None, Some(_)) => Ok(SslMode::Require),
            (None, None) => Ok(SslMode::Prefer),
            (Some(SslMode::Disable | SslMode::Prefer), Some(_)) => Err(InvalidInput::new(
                "sslrootcert checks the server's certificate; set sslmode=verify-full, or remove sslmode",
            )),
            (Some(mode), _) => Ok(mode),
        }
    }

    /// Takes an option if it is ours, and returns whether it was.
    fn take(&mut self, pair: &str) -> Result<bool, InvalidInput> {
        // A word without a value can be a misplaced password.
        let Some((word, value)) = pair.split_once('=') else {
            return Err(InvalidInput::new("an option has no value; write name=value"));
        };
        let no = |what: &str| {
            let problem = format!("\"{word}={value}\" is not understood; write {what}");
            Err(InvalidInput::new(masked_in(&problem)))
        };
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
            ("timeout", span) => match parse_duration(span) {
                Some(span) => self.timeout = Some(span),
                None => return no("timeout= and a time such as 5s or 500ms"),
            },
            ("notify", "no") => self.notify = Notify::Never,
            ("notify", _) => return no("notify=no"),
            ("standby", "async") => self.standby = Standby::Asynchronous,
            ("standby", _) => return no("standby=async"),
            ("create", value) => self.create = create_option(value)?,
            ("owner", role) if !role.is_empty() => self.owner = Some(role.to_owned()),
            ("owner", _) => return no("owner= and the name of a role"),
            ("sslmode", "disable") => self.sslmode = Some(SslMode::Disable),
            ("sslmode", "prefer") => self.sslmode = Some(SslMode::Prefer),
            ("sslmode", "require") => self.sslmode = Some(SslMode::Require),
            ("sslmode", "verify-full") => {
                (self.sslmode, self.verify) = (Some(SslMode::Require), Verify::Name);
            }
            ("sslmode", _) => return no("sslmode=disable, prefer, require or verify-full"),
            ("sslrootcert", path) => self.root = Some(path.into()),
            ("password_file", path) => self.password = Some(Source::File(path.into())),
            ("password_env", name) => self.password = Some(Source::Variable(name.to_owned())),
            (_, _) => return Ok(false),
        }
        Ok(true)
    }
}

/// Whether a name needs no quoting.
fn is_plain(name: &str) -> bool {
    let mut bytes = name.bytes();
    name.len() <= 48
        && bytes.next().is_some_and(|first| matches!(first, b'a'..=b'z' | b'_'))
        && bytes.all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
}

fn parse_duration(text: &str) -> Option<Duration> {
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
    fn a_url_sets_the_options() -> Result<(), InvalidInput> {
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
    fn an_invalid_option_is_named() {
        for (query, expected) in [
            ("schema=Drop", "schema="),
            ("schema=a%22b", "schema="),
            ("partitions=0", "partitions="),
            ("timeout=5", "timeout="),
            ("sslmode=verify", "verify-full"),
            ("shcema=x", "shcema"),
            ("schema=x;password=S3CRET", "schema="),
            ("S3CRET", "name=value"),
            ("passwordS3CRET=1", "a part of it is not understood"),
            ("password_file=/no/such/file", "/no/such/file cannot be read"),
            ("password=S3CRET&password_env=X", "for another one"),
            ("create=never", "create=no"),
            ("owner=", "owner="),
            ("sslmode=verify-full&sslmode=disable", "\"sslmode\" is given twice"),
            ("create=no&schema=x&cr%65ate=yes", "\"create\" is given twice"),
            ("=S3CRET&=S3CRET", "given twice"),
        ] {
            let refused = PostgresOptions::parse(&format!("postgres://me@a/db?{query}"));
            let refused = refused.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(refused.contains(expected) && !refused.contains("S3CRET"), "{query}: {refused:?}");
        }
    }

    #[test]
    fn certificates_are_checked_when_requested() -> Result<(), InvalidInput> {
        let trust = |query: &str| {
            PostgresOptions::parse(&format!("postgres://me@a/db?{query}")).map(|options| options.trust)
        };
        assert_eq!(trust("sslmode=require")?, Trust::Any);
        assert_eq!(trust("sslmode=verify-full")?, Trust::Machine);
        assert_eq!(trust("sslmode=require&sslrootcert=/ca.pem")?, Trust::File("/ca.pem".into()));
        assert!(trust("sslmode=prefer&sslrootcert=/ca.pem").is_err(), "it may be plain");
        let alone = PostgresOptions::parse("postgres://me@a/db?sslrootcert=/ca.pem")?;
        assert_eq!(alone.trust, Trust::File("/ca.pem".into()));
        assert!(alone.hosts.iter().all(|host| host.get_ssl_mode() == SslMode::Require));
        Ok(())
    }
}
