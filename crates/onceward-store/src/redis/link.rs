//! One checked connection to one server: it is the primary, its settings are safe, and it has the scripts.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, Pipeline,
    ProtocolVersion, PushInfo, RedisConnectionInfo, TlsCertificates, Value,
};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::timeout_at;

use super::fault::{ConnectError, error_text};
use super::options::{Layout, RedisOptions, SentinelAuth, Transport};
use super::scripts::Script;
use super::settings::{self, Role, Settings};

/// Host and port of a server.
pub(super) type Address = (String, u16);

/// A connection that sends commands in order.
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
    ) -> Result<Self, ConnectError> {
        let hosts = &servers(options, hosts, until).await?;
        let mut why = ConnectError::Unavailable("the URL names no host".to_owned());
        for (index, address) in hosts.iter().enumerate() {
            // Each host gets its share of the time, so that a silent one does not hide the others.
            let left = until.saturating_duration_since(Instant::now());
            let share = left / u32::try_from(hosts.len() - index).unwrap_or(1);
            match Self::open_at(options, address, Instant::now() + share).await {
                Ok(link) => return Ok(link),
                Err(ConnectError::Unusable(what)) if hosts.len() > 1 => why = ConnectError::Unavailable(what),
                Err(closed) => why = closed,
            }
        }
        Err(why)
    }

    async fn open_at(
        options: &RedisOptions,
        address: &Address,
        until: Instant,
    ) -> Result<Self, ConnectError> {
        let name = format!("{}:{}", address.0, address.1);
        let work = async {
            let mut connection = connect(options, address, None).await?;
            let settings = settings::ask(&mut connection).await?;
            let alone = options.hosts.len() == 1
                && options.service.is_none()
                && matches!(options.layout, Layout::Standalone { .. });
            match settings.role {
                Role::Primary => {}
                Role::Replica if alone => {
                    return Err(ConnectError::Unusable(format!(
                        "{name} is a replica and accepts no writes; name its primary, or all hosts separated by commas"
                    )));
                }
                Role::Replica => return Err(ConnectError::Unavailable(format!("{name} is a replica"))),
            }
            settings.check(options, &name).map_err(ConnectError::Unusable)?;
            let hashes = load_scripts(&mut connection).await?;
            Ok(Self { connection, hashes, address: address.clone(), settings })
        };
        within(until, &name, work).await
    }

    /// Connects to any server of a cluster, even a replica, to ask it about the others.
    pub(super) async fn open_any(
        options: &RedisOptions,
        address: &Address,
        until: Instant,
    ) -> Result<Self, ConnectError> {
        let name = format!("{}:{}", address.0, address.1);
        let work = async {
            let mut connection = connect(options, address, None).await?;
            let settings = settings::ask(&mut connection).await?;
            settings.check_layout(options, &name).map_err(ConnectError::Unusable)?;
            Ok(Self { connection, hashes: Vec::new(), address: address.clone(), settings })
        };
        within(until, &name, work).await
    }

    /// The hash by which a script is called.
    pub(super) fn hash(&self, script: Script) -> &str {
        self.hashes.get(script.index()).map_or("", String::as_str)
    }

    /// Loads the scripts again, after the server has lost them.
    pub(super) async fn load_scripts(&mut self, until: Instant) -> Result<(), ConnectError> {
        match timeout_at(until.into(), load_scripts(&mut self.connection)).await {
            Ok(hashes) => {
                self.hashes = hashes?;
                Ok(())
            }
            Err(_) => Err(ConnectError::Unavailable("the scripts could not be loaded in time".to_owned())),
        }
    }

    /// Sends commands and returns their replies, in order.
    pub(super) async fn send(&mut self, commands: &Pipeline, until: Instant) -> Result<Vec<Value>, String> {
        let work = self.connection.send_packed_commands(commands, 0, commands.len());
        match timeout_at(until.into(), work).await {
            Ok(Ok(values)) if values.len() == commands.len() => Ok(values),
            Ok(Ok(values)) => Err(format!("{} answers to {} commands", values.len(), commands.len())),
            Ok(Err(error)) => Err(error_text(&error)),
            Err(_) => Err("no reply came in time".to_owned()),
        }
    }
}

/// The candidates for the primary: the named hosts, or the one that the sentinels report.
pub(super) async fn servers(
    options: &RedisOptions,
    hosts: &[Address],
    until: Instant,
) -> Result<Vec<Address>, ConnectError> {
    let Some(service) = &options.service else { return Ok(hosts.to_vec()) };
    let mut why = ConnectError::Unavailable("the URL names no sentinel".to_owned());
    for (index, sentinel) in hosts.iter().enumerate() {
        let left = until.saturating_duration_since(Instant::now()) / 2;
        let share = left / u32::try_from(hosts.len() - index).unwrap_or(1);
        let name = format!("the sentinel {}:{}", sentinel.0, sentinel.1);
        match timeout_at((Instant::now() + share).into(), primary_by(options, sentinel, service)).await {
            Ok(Ok(Some(primary))) => return Ok(vec![primary]),
            Ok(Ok(None)) => why = ConnectError::Unavailable(format!("{name} knows no service {service:?}")),
            Ok(Err(ConnectError::Unavailable(said))) => {
                why = ConnectError::Unavailable(format!("{name}: {said}"))
            }
            Ok(Err(closed @ ConnectError::Unusable(_))) => why = closed,
            Err(_) => why = ConnectError::Unavailable(format!("{name} did not answer in time")),
        }
    }
    Err(why)
}

/// The primary that a sentinel reports.
async fn primary_by(
    options: &RedisOptions,
    sentinel: &Address,
    service: &str,
) -> Result<Option<Address>, ConnectError> {
    let mut asking = RedisOptions { layout: Layout::Standalone { db: 0 }, ..options.clone() };
    if options.sentinel_auth == SentinelAuth::None {
        (asking.user, asking.password) = (None, None);
    }
    let mut connection = connect(&asking, sentinel, None).await?;
    let mut query = redis::cmd("SENTINEL");
    query.arg("GET-MASTER-ADDR-BY-NAME").arg(service);
    let answer: Option<(String, u16)> = query.query_async(&mut connection).await?;
    Ok(answer)
}

/// Limits the time to connect to a server, and names the server in the error.
async fn within(
    until: Instant,
    name: &str,
    work: impl Future<Output = Result<Link, ConnectError>>,
) -> Result<Link, ConnectError> {
    match timeout_at(until.into(), work).await {
        Ok(Err(ConnectError::Unavailable(why))) => Err(ConnectError::Unavailable(format!("{name}: {why}"))),
        Ok(result) => result,
        Err(_) => Err(ConnectError::Unavailable(format!("{name} did not answer in time"))),
    }
}

async fn load_scripts(connection: &mut MultiplexedConnection) -> Result<Vec<String>, ConnectError> {
    let mut commands = Pipeline::with_capacity(Script::ALL.len());
    for script in Script::ALL {
        commands.cmd("SCRIPT").arg("LOAD").arg(script.text());
    }
    Ok(commands.query_async(connection).await?)
}

/// Connects, with TLS if config_value. Push messages of the server go to `pushed`.
pub(super) async fn connect(
    options: &RedisOptions,
    address: &Address,
    pushed: Option<UnboundedSender<PushInfo>>,
) -> Result<MultiplexedConnection, ConnectError> {
    let client = client(
        options,
        address,
        if pushed.is_some() { ProtocolVersion::RESP3 } else { ProtocolVersion::RESP2 },
    )?;
    // Timeouts are set by the caller.
    let mut config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(options.timeout))
        .set_response_timeout(None::<Duration>);
    if let Some(pushed) = pushed {
        config = config.set_push_sender(pushed);
    }
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}

fn client(
    options: &RedisOptions,
    address: &Address,
    protocol: ProtocolVersion,
) -> Result<Client, ConnectError> {
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
                    ConnectError::Unusable(format!(
                        "cannot read the certificates in {}: {error}",
                        path.display()
                    ))
                })?),
            };
            let address = ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None };
            let certificates = TlsCertificates { client_tls: None, root_cert };
            Ok(Client::build_with_tls(info(address, identity)?, certificates)?)
        }
    }
}

fn info(address: ConnectionAddr, identity: RedisConnectionInfo) -> Result<ConnectionInfo, ConnectError> {
    let info = address.into_connection_info()?;
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    Ok(info.set_redis_settings(identity).set_tcp_settings(tcp))
}
