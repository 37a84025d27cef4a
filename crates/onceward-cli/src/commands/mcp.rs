//! `once mcp`: any MCP server, exactly once.

mod http;
mod stdio;

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use data_encoding::BASE32_NOPAD;
use onceward::KeyPolicy;
use onceward_mcp::{Asking, Explained, Exposure, HostScope, Options, Trust};
use sha2::{Digest, Sha256};

use crate::answer::{self, BOLD, styled};
use crate::cli::{self, DryRunArgs};
use crate::context::Context;
use crate::exit::{CommandError, Ended};

/// Put an MCP server behind the ledger: a tool is called once, whoever retries.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct McpArgs {
    #[command(subcommand)]
    command: Option<McpCommand>,
    #[command(flatten)]
    serve: ServeArgs,
}

#[derive(Debug, Subcommand)]
enum McpCommand {
    /// Write a policy with one rule for each tool of the server, to edit
    Init {
        /// Where to
        #[arg(default_value = "onceward.toml")]
        file: PathBuf,
        #[command(flatten)]
        rules: RuleArgs,
        #[command(flatten)]
        dry: DryRunArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
}

#[derive(Debug, Args)]
struct RuleArgs {
    /// A short name for the server: operations are called NAME/tool [default: made of its command]
    #[arg(long = "server", value_name = "NAME")]
    name: Option<String>,
    /// Who names an operation when the caller does not: auto, strict or keyed [default: auto]
    #[arg(long, value_name = "POLICY")]
    keys: Option<Keys>,
    /// Believe only the policy, not what the server says about its tools
    #[arg(long)]
    distrust_annotations: bool,
    /// Send this header when asking a server by HTTP for its tools (--explain, init); may be given again
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
}

#[derive(Debug, Args)]
struct ServeArgs {
    #[command(flatten)]
    rules: RuleArgs,
    /// Who shares keys: a session, a run, a tenant [default: what the host tells, else this connection]
    #[arg(long, visible_alias = "session", env = "ONCE_SCOPE", value_name = "SCOPE")]
    scope: Option<String>,
    /// Show the model an optional `idempotency_key` and `dry_run` in each tool that changes something
    #[arg(long)]
    expose_key: bool,
    /// Run nothing that changes something: each call is told what would happen
    #[arg(long)]
    dry_run: bool,
    /// Print each tool of the server, its class and why, and end
    #[arg(long)]
    explain: bool,
    /// How long a call waits for the same one of another caller, and for a lock
    #[arg(long, default_value = "10m", value_parser = cli::span, value_name = "TIME")]
    wait: u64,
    /// After how long a caller may have given up: the same call after such an answer is a retry for a while
    #[arg(long, default_value = "4s", value_parser = cli::span, value_name = "TIME")]
    slow: u64,
    /// How long that while is
    #[arg(long, default_value = "120s", value_parser = cli::span, value_name = "TIME")]
    window: u64,
    /// Do not ask the human, through a client that can, what became of an operation in doubt
    #[arg(long)]
    no_ask: bool,
    /// How long calls may go on when the client is gone
    #[arg(long, default_value = "30s", value_parser = cli::span, value_name = "TIME")]
    drain: u64,
    /// Where to listen for clients of a server by HTTP; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:6280", value_name = "ADDR", requires = "http")]
    listen: SocketAddr,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
struct ServerArgs {
    /// A server by streamable HTTP, instead of a command
    #[arg(long, value_name = "URL")]
    http: Option<String>,
    /// The server's command, after `--`
    #[arg(last = true, value_name = "SERVER")]
    command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Keys {
    /// The same call is a retry until its answer was delivered; after that it is wanted again
    Auto,
    /// The same call is the same operation within the scope
    Strict,
    /// Only a given key makes two calls one operation
    Keyed,
}

impl RuleArgs {
    fn keys(&self) -> Option<KeyPolicy> {
        self.keys.map(|keys| match keys {
            Keys::Auto => KeyPolicy::Auto,
            Keys::Strict => KeyPolicy::Strict,
            Keys::Keyed => KeyPolicy::Keyed,
        })
    }

    fn trust(&self) -> Trust {
        if self.distrust_annotations { Trust::PolicyOnly } else { Trust::Annotations }
    }

    fn name(&self, made: &str) -> String {
        self.name.clone().unwrap_or_else(|| made.to_owned())
    }
}

pub(super) fn run(context: &Context, args: &McpArgs) -> Ended {
    if let Some(McpCommand::Init { file, rules, dry, server }) = &args.command {
        return init(context, file, rules, *dry, &server.server()?);
    }
    let serve = &args.serve;
    match serve.server.server()? {
        server if serve.explain => explain(context, &serve.rules, &server),
        Server::Command(command) => stdio::serve(context, serve, &command),
        Server::Url(url) => http::serve(context, serve, &url),
    }
}

/// Which server.
enum Server {
    Command(Vec<OsString>),
    Url(String),
}

impl ServerArgs {
    fn server(&self) -> Result<Server, CommandError> {
        match (&self.http, self.command.as_slice()) {
            (Some(url), []) => Ok(Server::Url(url.clone())),
            (None, []) => Err(CommandError::invalid(
                "there is no server to stand before; give its command after `--`, or its address with --http",
            )),
            (None, command) => Ok(Server::Command(command.to_vec())),
            (Some(_), _) => Err(CommandError::invalid(
                "there are two servers to stand before; give a command after `--`, or --http, not both",
            )),
        }
    }
}

/// The server's tools, and the name that it goes by.
fn explained(
    context: &Context,
    rules: &RuleArgs,
    server: &Server,
) -> Result<(String, Vec<Explained>), CommandError> {
    let (name, policy) = match server {
        Server::Command(command) => (rules.name(&stdio::server_name(command)), context.policy.clone()),
        Server::Url(url) => (rules.name(&http::server_name(url)), context.policy.clone()),
    };
    let tools = match server {
        Server::Command(command) => stdio::explained(policy, rules, &name, command),
        Server::Url(url) => http::explained(policy, rules, &name, url),
    };
    Ok((name, tools?))
}

/// What the proxy is told, whatever carries the messages.
fn options(context: &Context, args: &ServeArgs, name: String, identity: String, scope: HostScope) -> Options {
    Options {
        server: args.rules.name(&name),
        // Who names a server says that it is the same wherever it is.
        identity: args.rules.name.clone().unwrap_or(identity),
        policy: context.policy.clone(),
        scope,
        keys: args.rules.keys(),
        trust: args.rules.trust(),
        exposure: if args.expose_key { Exposure::Arguments } else { Exposure::Hidden },
        dry_run: args.dry_run,
        slow_ms: args.slow,
        window_ms: args.window,
        wait_ms: args.wait,
        drain_ms: args.drain,
        asking: if args.no_ask { Asking::Nobody } else { Asking::Human },
        notice: Box::new(|text| answer::talk(&format!("once mcp: {text}"))),
    }
}

fn explain(context: &Context, rules: &RuleArgs, server: &Server) -> Ended {
    let (_, tools) = explained(context, rules, server)?;
    answer::success(context.global.json, "noop", &tools, || {
        let rows: Vec<_> = tools
            .iter()
            .map(|tool| {
                let plain = |text: String| (text, anstyle::Style::new());
                let keys = format!("{:?}", tool.keys).to_lowercase();
                vec![
                    (tool.tool.clone(), BOLD),
                    plain(tool.class.to_string()),
                    plain(keys),
                    plain(tool.why.to_owned()),
                ]
            })
            .collect();
        answer::table(&["TOOL", "CLASS", "KEYS", "WHY"], &rows)
    });
    Ok(ExitCode::SUCCESS)
}

fn init(context: &Context, file: &Path, rules: &RuleArgs, dry: DryRunArgs, server: &Server) -> Ended {
    let (name, tools) = explained(context, rules, server)?;
    let text = onceward_mcp::policy_text(&name, &tools);
    let json = context.global.json;
    if dry.dry_run {
        answer::success(json, "would_create", &tools, || text);
        return Ok(ExitCode::SUCCESS);
    }
    // A policy that somebody has edited is not overwritten.
    let made = File::options().write(true).create_new(true).open(file);
    made.and_then(|mut out| out.write_all(text.as_bytes()))
        .map_err(|error| CommandError::invalid(format!("cannot write {}: {error}", file.display())))?;
    answer::success(json, "created", &tools, || {
        format!("wrote {} with {} tools", styled(BOLD, file.display()), tools.len())
    });
    Ok(ExitCode::SUCCESS)
}

/// What tells one command or address from another, without keeping what it says.
fn identity(server: &[OsString]) -> String {
    let mut hash = Sha256::new();
    for word in server {
        hash.update(word.as_encoded_bytes());
        hash.update([0]);
    }
    BASE32_NOPAD.encode(&hash.finalize()[..10]).to_lowercase()
}
