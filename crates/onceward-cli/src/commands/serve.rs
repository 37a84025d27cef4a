//! `once serve`: the ledger over HTTP, with a gateway for REST APIs.
//!
//! - `handler`: handlers of webhooks that are commands.
//! - `systemd`: sockets that it hands over, and messages to it.

mod handler;
mod systemd;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand, ValueHint};
use onceward_http::config::{ServeConfig, TlsConfig};
use onceward_http::inbox::config::HookConfig;
use onceward_http::server::{self, Listener, Tls, UnixSocket};
use onceward_http::{App, Reach, tenants};
use serde::Serialize;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Runtime;

use super::mcp::http::signal;
use crate::answer;
use crate::context::{Context, IfMissing};
use crate::exit::{CommandError, Ended};
use crate::observe;
use handler::OnceRun;
use systemd::Inherited;

/// Where the server listens if neither the command line nor the policy says.
const DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 6270);
/// Time limit for the rest of the shutdown, after all requests have ended.
const LAST_WRITES: Duration = Duration::from_millis(300);

/// Serve the ledger over HTTP, with a gateway for REST APIs
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ServeArgs {
    #[command(subcommand)]
    command: Option<ServeCommand>,
    /// Address to listen on; port 0 takes a free port; may be repeated [default: 127.0.0.1:6270]
    #[arg(long, value_name = "ADDR")]
    listen: Vec<SocketAddr>,
    /// Unix socket to listen on, which only this user can connect to
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    socket: Option<PathBuf>,
    /// Certificate chain for TLS, as PEM
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, as PEM
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Shut down when standard input ends, for a program that starts the server as its child
    #[arg(long)]
    with_stdin: bool,
    #[command(flatten)]
    log: observe::LogArgs,
}

#[derive(Debug, Subcommand)]
enum ServeCommand {
    /// Make a token for a tenant; prints it once, with the line for the policy
    Token {
        /// The tenant, as in `[tenant.NAME]`
        #[arg(value_name = "TENANT", required_unless_present = "metrics")]
        tenant: Option<String>,
        /// Make a token for programs that read `/metrics` instead
        #[arg(long, conflicts_with = "tenant")]
        metrics: bool,
    },
}

pub(super) fn run(context: &Context, args: &ServeArgs) -> Ended {
    if let Some(ServeCommand::Token { tenant, .. }) = &args.command {
        return token(context, tenant.as_deref());
    }
    let mut config = context.server_config()?;
    let secrets = config.hooks.values().flat_map(HookConfig::secret_variables).collect();
    let commands = OnceRun { ledger: context.ledger_url()?, config: context.policy_file.clone(), secrets };
    config.environment = config.environment.commands(Arc::new(commands));
    let serve = with_flags(config.serve.clone(), args);
    let drain = serve.drain_timeout.unwrap_or(server::DRAIN);
    let inherited = Inherited::take()?;
    let app = App::new(context.store(IfMissing::Create)?, config)?;
    let runtime = runtime()?;
    let redact = context.policy.settings("once serve")?.terms.redact;
    let observed = observe::start(&args.log, redact, runtime.handle())?;
    let shutdown = signal("once serve")?;
    if args.with_stdin {
        end_with_stdin();
    }
    let entered = runtime.enter();
    let bound = Bound::all(&serve, inherited, &app)?;
    drop(entered);
    bound.say(&app);
    systemd::notify("READY=1");
    let draining = Arc::clone(&app);
    runtime.block_on(server::serve_all(bound.listeners, app, drain, async move {
        // The thread that watches for signals lives as long as this process.
        drop(shutdown.await);
        draining.health().drain();
        systemd::notify("STOPPING=1");
    }));
    observed.end();
    // Everything that the runtime still holds is already recorded, or in doubt as it should be. The last user
    // closes the ledger, which then writes the replay counts.
    runtime.shutdown_timeout(LAST_WRITES);
    Ok(ExitCode::SUCCESS)
}

/// Shuts down as SIGTERM does when standard input ends, also if the parent was killed.
fn end_with_stdin() {
    std::thread::spawn(|| {
        // A broken pipe is an end as well.
        drop(std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink()));
        drop(signal_hook::low_level::raise(signal_hook::consts::SIGTERM));
    });
}

/// The section of the policy, with what the command line says instead.
fn with_flags(mut serve: ServeConfig, args: &ServeArgs) -> ServeConfig {
    if !args.listen.is_empty() {
        serve.listen.clone_from(&args.listen);
    } else if args.socket.is_some() {
        // Who asks for a socket alone does not want a port as well.
        serve.listen.clear();
    }
    if args.socket.is_some() {
        serve.socket.clone_from(&args.socket);
    }
    if let (Some(cert), Some(key)) = (&args.tls_cert, &args.tls_key) {
        serve.tls = Some(TlsConfig::new(cert.clone(), key.clone()));
    }
    serve
}

/// What the server listens on.
struct Bound {
    listeners: Vec<Listener>,
    /// The addresses of the TCP listeners, and the sockets' paths, for people.
    addresses: Vec<SocketAddr>,
    socket: Option<PathBuf>,
    scheme: &'static str,
}

impl Bound {
    fn all(serve: &ServeConfig, inherited: Inherited, app: &Arc<App>) -> Result<Self, CommandError> {
        let tls = serve.tls.as_ref().map(|tls| Tls::read(&tls.cert, &tls.key)).transpose();
        let tls = tls.map_err(|error| CommandError::invalid(error.to_string()))?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let mut bound = Self { listeners: Vec::new(), addresses: Vec::new(), socket: None, scheme };
        let listens_elsewhere = serve.socket.is_some() || !inherited.is_empty();
        let addresses = match serve.listen.as_slice() {
            [] if listens_elsewhere => Vec::new(),
            [] => vec![DEFAULT],
            some => some.to_vec(),
        };
        for listener in inherited.tcp {
            let address = listener.local_addr().map_err(unusable)?;
            allowed(address, app.requires_tokens())?;
            bound.add(TcpListener::from_std(listener).map_err(unusable)?, tls.as_ref())?;
        }
        for listener in inherited.unix {
            let listener = UnixListener::from_std(listener).map_err(unusable)?;
            bound.listeners.push(Listener::unix(UnixSocket::inherited(listener)));
        }
        for address in addresses {
            allowed(address, app.requires_tokens())?;
            let listener =
                std::net::TcpListener::bind(address).map_err(|error| cannot_listen(address, &error))?;
            listener.set_nonblocking(true).map_err(unusable)?;
            bound.add(TcpListener::from_std(listener).map_err(unusable)?, tls.as_ref())?;
        }
        for (name, port) in app.upstream_ports() {
            let address = SocketAddr::new(bound.addresses.first().unwrap_or(&DEFAULT).ip(), port);
            let listener =
                std::net::TcpListener::bind(address).map_err(|error| cannot_listen(address, &error))?;
            listener.set_nonblocking(true).map_err(unusable)?;
            let listener = TcpListener::from_std(listener).map_err(unusable)?;
            answer::talk(&format!("once serve: {name} answers on {scheme}://{address}"));
            bound.listeners.push(Listener::tcp(listener, tls.as_ref()).map_err(unusable)?.of_upstream(name));
        }
        if let Some(path) = &serve.socket {
            let socket = UnixSocket::bind(path).map_err(|error| {
                CommandError::Outside(format!("cannot listen on {}: {error}", path.display()))
            })?;
            bound.listeners.push(Listener::unix(socket));
            bound.socket = Some(path.clone());
        }
        Ok(bound)
    }

    fn add(&mut self, listener: TcpListener, tls: Option<&Tls>) -> Result<(), CommandError> {
        self.addresses.push(listener.local_addr().map_err(unusable)?);
        self.listeners.push(Listener::tcp(listener, tls).map_err(unusable)?);
        Ok(())
    }

    /// Says where the server listens, and how to try it.
    fn say(&self, app: &App) {
        let authorization = if app.requires_tokens() { " -H \"Authorization: Bearer $TOKEN\"" } else { "" };
        for address in &self.addresses {
            answer::talk(&format!("once serve: listening on {}://{address}", self.scheme));
            if Reach::of(address.ip()) == Reach::Network && self.scheme == "http" {
                answer::talk(
                    "once serve: this address can be reached from the network, without encryption; tokens and results \
                     can be read on the way (--tls-cert and --tls-key encrypt)",
                );
            }
        }
        if let Some(socket) = &self.socket {
            answer::talk(&format!("once serve: listening on unix:{}", socket.display()));
        }
        let (options, url) = match (self.addresses.first(), &self.socket) {
            (Some(address), _) => (String::new(), format!("{}://{address}", self.scheme)),
            (None, Some(socket)) => {
                let path = crate::context::quoted(&socket.display().to_string());
                (format!(" --unix-socket {path}"), "http://localhost".to_owned())
            }
            (None, None) => return,
        };
        let body = r#"{"name":"hello","input":{"to":"world"},"dry_run":true}"#;
        answer::talk(&format!(
            "once serve: try it: curl{options}{authorization} --json '{body}' {url}/v1/operations"
        ));
    }
}

/// Checks the addresses in the policy, as a start without `--listen` does.
pub(super) fn check_addresses(context: &Context) -> Result<(), CommandError> {
    let config = context.server_config()?;
    config.serve.listen.iter().try_for_each(|address| allowed(*address, !config.tenants.is_empty()))
}

/// Refuses an address that other machines reach, unless callers need tokens.
fn allowed(address: SocketAddr, requires_tokens: bool) -> Result<(), CommandError> {
    if Reach::of(address.ip()) == Reach::Loopback || requires_tokens {
        return Ok(());
    }
    Err(CommandError::invalid(format!(
        "{address} can be reached from other machines, so callers need tokens: add a tenant to the policy (`once serve \
         token NAME` makes a token and shows the lines), or listen on 127.0.0.1"
    )))
}

fn cannot_listen(address: SocketAddr, error: &std::io::Error) -> CommandError {
    let hint = if error.kind() == ErrorKind::AddrInUse { "; --listen takes another address" } else { "" };
    CommandError::Outside(format!("cannot listen on {address}: {error}{hint}"))
}

fn unusable(error: std::io::Error) -> CommandError {
    CommandError::Outside(format!("a listener cannot be used: {error}"))
}

fn runtime() -> Result<Runtime, CommandError> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| CommandError::Outside(format!("cannot start the runtime: {error}")))
}

/// A new token, as `--json` shows it.
#[derive(Serialize)]
struct NewToken {
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    token: String,
    hash: String,
}

/// Makes a token for a tenant or, without one, for programs that read `/metrics`.
fn token(context: &Context, tenant: Option<&str>) -> Ended {
    tenant.map_or(Ok(()), tenants::check_name)?;
    let (token, hash) = tenants::new_token()
        .map_err(|error| CommandError::Outside(format!("the system has no randomness: {error}")))?;
    let hash = hash.to_string();
    if context.global.json {
        let made = NewToken { tenant: tenant.map(str::to_owned), token, hash };
        answer::success(true, "created", &made, String::new);
        return Ok(ExitCode::SUCCESS);
    }
    answer::data(&token);
    let (section, setting) = match tenant {
        Some(tenant) => (format!("tenant.{tenant}"), "tokens"),
        None => ("serve".to_owned(), "metrics_tokens"),
    };
    answer::talk(&format!(
        "once serve: this token is not stored and is not shown again. Add its hash to the policy:\n\n\
         [{section}]\n{setting} = [\"{hash}\"]"
    ));
    Ok(ExitCode::SUCCESS)
}
