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
use onceward::policy::OnToolError;
use onceward::{KeyPolicy, Surface};
use onceward_mcp::{Asking, Explained, Exposure, Guess, HostScope, Options, Ruling, Slow, Trust};
use sha2::{Digest, Sha256};

use crate::answer::{self, BOLD, styled};
use crate::cli::{self, DryRunArgs};
use crate::context::Context;
use crate::exit::{CommandError, Ended};

/// How long an answer takes that a client may have given up on.
const SLOW_MS: u64 = 4_000;

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
        /// Write down what tools without annotations are, as far as their names tell
        #[arg(long)]
        guess: bool,
        #[command(flatten)]
        rules: RuleArgs,
        #[command(flatten)]
        dry: DryRunArgs,
        #[command(flatten)]
        server: InitServerArgs,
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
    /// Whether tools without annotations whose names say that they only read may run again
    #[arg(long, default_value = "yes", value_name = "yes|no")]
    guess: YesNo,
    /// What a result with isError means, unless the policy says so for the tool [default: in_doubt]
    #[arg(long, value_name = "MEANING")]
    on_tool_error: Option<ToolError>,
    /// How long a call waits for the same one of another caller, and for a lock
    #[arg(long, default_value = "10m", value_parser = cli::span, value_name = "TIME")]
    wait: u64,
    /// For a client that gives up without a cancel: the same call right after an answer that took longer than this is a
    /// retry [default: 4s, and only for clients that are known to do so]
    #[arg(long, value_parser = cli::span, value_name = "TIME")]
    slow: Option<u64>,
    /// How long a call that is known to be done, without its result, is not run again; and how long --slow looks back
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
    /// What clients must send as `Authorization: Bearer TOKEN` or `X-Once-Token`; needed beyond this machine
    #[arg(long, env = "ONCE_MCP_TOKEN", hide_env_values = true, value_name = "TOKEN", requires = "http")]
    token: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
struct ServerArgs {
    /// A server by streamable HTTP, instead of a command
    #[arg(long, value_name = "URL")]
    http: Option<String>,
    /// The server's command; after `--` where its words could be taken for options of this one
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "SERVER")]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
struct InitServerArgs {
    /// A server by streamable HTTP, instead of a command
    #[arg(long, value_name = "URL")]
    http: Option<String>,
    /// The server's command, after `--`
    #[arg(last = true, value_name = "SERVER")]
    command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum YesNo {
    Yes,
    No,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum ToolError {
    /// It may have happened all the same
    InDoubt,
    /// The tools of this server do nothing when they answer with an error
    NoEffect,
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
    // It decides what runs twice, and may name tools to call.
    if let Some(file) = &context.policy_file {
        answer::talk(&format!("once mcp: the policy is {}", file.display()));
    }
    if let Some(McpCommand::Init { file, guess, rules, dry, server }) = &args.command {
        return init(context, file, rules, *guess, *dry, &Server::of(server.http.as_ref(), &server.command)?);
    }
    let serve = &args.serve;
    match Server::of(serve.server.http.as_ref(), &serve.server.command)? {
        server if serve.explain => explain(context, serve, &server),
        Server::Command(command) => stdio::serve(context, serve, &command),
        Server::Url(url) => http::serve(context, serve, &url),
    }
}

/// Which server.
enum Server {
    Command(Vec<OsString>),
    Url(String),
}

impl Server {
    fn of(http: Option<&String>, command: &[OsString]) -> Result<Self, CommandError> {
        match (http, command) {
            (Some(url), []) => Ok(Self::Url(url.clone())),
            (None, []) => Err(CommandError::invalid(
                "there is no server to stand before; give its command after `--`, or its address with --http",
            )),
            (None, command) => Ok(Self::Command(command.to_vec())),
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
    guess: Guess,
    server: &Server,
) -> Result<(String, Vec<Explained>), CommandError> {
    let name = match server {
        Server::Command(command) => rules.name(&stdio::server_name(command)),
        Server::Url(url) => rules.name(&http::server_name(url)),
    };
    let ruling = Ruling {
        policy: context.policy.clone(),
        server: name.clone(),
        keys: rules.keys(),
        trust: rules.trust(),
        guess,
    };
    let tools = match server {
        Server::Command(command) => stdio::explained(ruling, command),
        Server::Url(url) => http::explained(ruling, rules, url),
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
        guess: args.guess(),
        on_tool_error: args.on_tool_error.map(|meaning| match meaning {
            ToolError::InDoubt => OnToolError::InDoubt,
            ToolError::NoEffect => OnToolError::NoEffect,
        }),
        program: program(context),
        exposure: if args.expose_key { Exposure::Arguments } else { Exposure::Hidden },
        dry_run: args.dry_run,
        slow: Slow { ms: args.slow.unwrap_or(SLOW_MS), every_client: args.slow.is_some() },
        window_ms: args.window,
        wait_ms: args.wait,
        drain_ms: args.drain,
        asking: if args.no_ask { Asking::Nobody } else { Asking::Human },
        notice: Box::new(|text| answer::talk(&format!("once mcp: {text}"))),
    }
}

/// How a person calls this program so that it finds the same ledger.
fn program(context: &Context) -> String {
    match context.surface() {
        Surface::Shell { program, options } => [vec![program], options].concat().join(" "),
        Surface::Python | Surface::McpAgent | Surface::McpPerson { .. } => "once".to_owned(),
    }
}

impl ServeArgs {
    fn guess(&self) -> Guess {
        match self.guess {
            YesNo::Yes => Guess::Reads,
            YesNo::No => Guess::Nothing,
        }
    }
}

fn explain(context: &Context, args: &ServeArgs, server: &Server) -> Ended {
    let (_, tools) = explained(context, &args.rules, args.guess(), server)?;
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
                    plain(tool.why.clone()),
                ]
            })
            .collect();
        answer::table(&["TOOL", "CLASS", "KEYS", "WHY"], &rows)
    });
    Ok(ExitCode::SUCCESS)
}

fn init(
    context: &Context,
    file: &Path,
    rules: &RuleArgs,
    guess: bool,
    dry: DryRunArgs,
    server: &Server,
) -> Ended {
    let (name, tools) = explained(context, rules, Guess::Reads, server)?;
    let text = onceward_mcp::policy_text(&name, &tools, guess);
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
