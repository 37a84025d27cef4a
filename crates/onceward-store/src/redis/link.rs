//! One connection to one server, greeted: it is the primary, its settings allow the promise, and it has the scripts.

use std::time::{Duration, Instant};

use onceward::StoreError;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, Pipeline,
    ProtocolVersion, PushInfo, RedisConnectionInfo, RedisError, TlsCertificates, Value,
};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::timeout_at;

use super::options::{Layout, RedisOptions, Transport};
use super::scripts::Script;
use super::settings::{self, Role, Settings};

/// Host and port of a server.
pub(super) type Address = (String, u16);

/// Why a server cannot be used.
#[derive(Debug)]
pub(super) enum Closed {
    /// It cannot be reached now, or is not what it was: try again, here or elsewhere.
    Now(String),
    /// Its settings do not allow the promise.
    Unusable(String),
}

impl From<RedisError> for Closed {
    fn from(error: RedisError) -> Self {
        Self::Now(in_words(&error))
    }
}

impl Closed {
    pub(super) fn into_error(self, what: &str) -> StoreError {
        match self {
            Self::Now(why) => StoreError::unavailable(format!("{what}: {why}")),
            Self::Unusable(what) => StoreError::Unusable { what },
        }
    }
}

/// A connection that commands go over, in the order in which they are sent.
pub(super) struct Link {
    connection: MultiplexedConnection,
    hashes: Vec<String>,
    pub(super) address: Address,
    pub(super) settings: Settings,
}

impl Link {
    /// Connects to the primary among `hosts`.
    pub(super) async fn open(
        options: &RedisOptions,
        hosts: &[Address],
        until: Instant,
    ) -> Result<Self, Closed> {
        let mut why = Closed::Now("no host is named".to_owned());
        for (index, address) in hosts.iter().enumerate() {
            // Each host gets its share of the time, so that one that is silent does not hide the others.
            let left = until.saturating_duration_since(Instant::now());
            let share = left / u32::try_from(hosts.len() - index).unwrap_or(1);
            match Self::open_at(options, address, Instant::now() + share).await {
                Ok(link) => return Ok(link),
                Err(Closed::Unusable(what)) if hosts.len() > 1 => why = Closed::Now(what),
                Err(closed) => why = closed,
            }
        }
        Err(why)
    }

    async fn open_at(options: &RedisOptions, address: &Address, until: Instant) -> Result<Self, Closed> {
        let name = format!("{}:{}", address.0, address.1);
        let work = async {
            let mut connection = connect(options, address, None).await?;
            let settings = settings::ask(&mut connection).await?;
            let alone = options.hosts.len() == 1 && matches!(options.layout, Layout::Standalone { .. });
            match settings.role {
                Role::Primary => {}
                Role::Replica if alone => {
                    return Err(Closed::Unusable(format!(
                        "{name} is a replica and takes no writes; name its primary, or all hosts with commas between"
                    )));
                }
                Role::Replica => return Err(Closed::Now(format!("{name} is a replica"))),
            }
            settings.check(options, &name).map_err(Closed::Unusable)?;
            let hashes = load_scripts(&mut connection).await?;
            Ok(Self { connection, hashes, address: address.clone(), settings })
        };
        match timeout_at(until.into(), work).await {
            Ok(Err(Closed::Now(why))) => Err(Closed::Now(format!("{name}: {why}"))),
            Ok(result) => result,
            Err(_) => Err(Closed::Now(format!("{name} did not answer in time"))),
        }
    }

    /// Connects to any server of a cluster, a replica too: to ask it about the others.
    pub(super) async fn open_any(
        options: &RedisOptions,
        address: &Address,
        until: Instant,
    ) -> Result<Self, Closed> {
        let name = format!("{}:{}", address.0, address.1);
        let work = async {
            let mut connection = connect(options, address, None).await?;
            let settings = settings::ask(&mut connection).await?;
            settings.check_layout(options, &name).map_err(Closed::Unusable)?;
            Ok(Self { connection, hashes: Vec::new(), address: address.clone(), settings })
        };
        match timeout_at(until.into(), work).await {
            Ok(Err(Closed::Now(why))) => Err(Closed::Now(format!("{name}: {why}"))),
            Ok(result) => result,
            Err(_) => Err(Closed::Now(format!("{name} did not answer in time"))),
        }
    }

    /// What a script is called by.
    pub(super) fn hash(&self, script: Script) -> &str {
        self.hashes.get(script.index()).map_or("", String::as_str)
    }

    /// Loads the scripts again, where the server has forgotten them.
    pub(super) async fn load_scripts(&mut self, until: Instant) -> Result<(), Closed> {
        match timeout_at(until.into(), load_scripts(&mut self.connection)).await {
            Ok(hashes) => {
                self.hashes = hashes?;
                Ok(())
            }
            Err(_) => Err(Closed::Now("the scripts could not be loaded in time".to_owned())),
        }
    }

    /// Sends commands and brings their answers, in order.
    pub(super) async fn send(&mut self, commands: &Pipeline, until: Instant) -> Result<Vec<Value>, String> {
        let work = self.connection.send_packed_commands(commands, 0, commands.len());
        match timeout_at(until.into(), work).await {
            Ok(Ok(values)) if values.len() == commands.len() => Ok(values),
            Ok(Ok(values)) => Err(format!("{} answers to {} commands", values.len(), commands.len())),
            Ok(Err(error)) => Err(in_words(&error)),
            Err(_) => Err("no answer came in time".to_owned()),
        }
    }
}

async fn load_scripts(connection: &mut MultiplexedConnection) -> Result<Vec<String>, Closed> {
    let mut commands = Pipeline::with_capacity(Script::ALL.len());
    for script in Script::ALL {
        commands.cmd("SCRIPT").arg("LOAD").arg(script.text());
    }
    Ok(commands.query_async(connection).await?)
}

/// Connects, by TLS where it is asked for. With `pushed`, what the server says by itself goes there.
pub(super) async fn connect(
    options: &RedisOptions,
    address: &Address,
    pushed: Option<UnboundedSender<PushInfo>>,
) -> Result<MultiplexedConnection, Closed> {
    let client = client(
        options,
        address,
        if pushed.is_some() { ProtocolVersion::RESP3 } else { ProtocolVersion::RESP2 },
    )?;
    // The time that each thing may take is the caller's to say.
    let mut config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(options.timeout))
        .set_response_timeout(None::<Duration>);
    if let Some(pushed) = pushed {
        config = config.set_push_sender(pushed);
    }
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}

fn client(options: &RedisOptions, address: &Address, protocol: ProtocolVersion) -> Result<Client, Closed> {
    let mut identity = RedisConnectionInfo::default().set_protocol(protocol).set_skip_set_lib_name();
    if let Layout::Standalone { db } = options.layout {
        identity = identity.set_db(db);
    }
    if let Some(user) = &options.user {
        identity = identity.set_username(user);
    }
    if let Some(password) = &options.password {
        identity = identity.set_password(&password.0);
    }
    let (host, port) = (address.0.clone(), address.1);
    match &options.transport {
        Transport::Plain => Ok(Client::open(info(ConnectionAddr::Tcp(host, port), identity)?)?),
        Transport::Tls { cacert } => {
            let root_cert = match cacert {
                None => None,
                Some(path) => Some(std::fs::read(path).map_err(|error| {
                    Closed::Unusable(format!("cannot read the certificates in {}: {error}", path.display()))
                })?),
            };
            let address = ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None };
            let certificates = TlsCertificates { client_tls: None, root_cert };
            Ok(Client::build_with_tls(info(address, identity)?, certificates)?)
        }
    }
}

fn info(address: ConnectionAddr, identity: RedisConnectionInfo) -> Result<ConnectionInfo, Closed> {
    let info = address.into_connection_info()?;
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    Ok(info.set_redis_settings(identity).set_tcp_settings(tcp))
}

/// What the server or the network said, in one line.
pub(super) fn in_words(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(_), None) | (None, Some(_)) | (None, None) => error.to_string(),
    }
}
