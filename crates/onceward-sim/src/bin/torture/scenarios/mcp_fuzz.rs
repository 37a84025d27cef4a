//! Hostile messages through the MCP proxy, in both directions: broken JSON, reused ids, duplicate and missing
//! answers, cancellations after the answer, unknown protocol versions.
//!
//! The real proxy runs between a client and a server in this process, so that millions of messages pass in minutes.
//! The server does what it is asked and counts its effects.

mod client;
mod server;
mod stream;

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use onceward::{Clock, Ledger, MemoryStore, OperationId, Policy, State};
use onceward_mcp::{Exposure, HostScope, Options, Proxy, Streams, Trust};
use onceward_sim::random::Random;

use self::client::{Client, Expected};
use self::server::Server;
use self::stream::{LinesIn, LinesOut};
use crate::Trouble;
use crate::bench::{Bench, progress};
use crate::process::PATIENCE;
use crate::report::{Rule, Tally};

const MESSAGES: u64 = 10_000_000;
const SHORT_MESSAGES: u64 = 20_000;
/// How many messages a client sends before it disconnects.
const SESSION: u64 = 2_000;
/// How long unanswered calls may continue after that.
const DRAIN_MS: u64 = 30;
const SCOPE: &str = "scope";
const SERVER: &str = "fuzz";

pub(super) fn run(bench: &Bench, messages: Option<u64>, tally: &Tally) -> Result<(), Trouble> {
    let messages = messages.unwrap_or(if bench.short { SHORT_MESSAGES } else { MESSAGES });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    let (passed, sessions) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while passed.load(Ordering::Relaxed) < messages {
                    let number = sessions.fetch_add(1, Ordering::Relaxed);
                    let random = bench.random(&format!("mcp-fuzz {number}"));
                    let seen = watched(random, runtime.handle(), number, tally);
                    let sum = passed.fetch_add(seen, Ordering::Relaxed) + seen;
                    progress(&format!("mcp-fuzz {sum} of {messages} messages"));
                    tally.case();
                }
            });
        }
    });
    tally.figure("messages", passed.into_inner());
    runtime.shutdown_background();
    Ok(())
}

/// One session. If it hangs or panics, that is a violation, reported with its number so that it can be repeated.
fn watched(random: Random, runtime: &tokio::runtime::Handle, number: u64, tally: &Tally) -> u64 {
    let (sender, ended) = mpsc::channel();
    let runtime = runtime.clone();
    std::thread::spawn(move || {
        let session = AssertUnwindSafe(|| Session::new(random, runtime).run());
        // The receiver may have timed out.
        drop(sender.send(std::panic::catch_unwind(session)));
    });
    match ended.recv_timeout(PATIENCE) {
        Ok(Ok(judged)) => {
            for (rule, what) in judged.violations {
                tally.violated(rule, format!("session {number}: {what}"));
            }
            tally.effects(judged.effects);
            tally.faults(judged.faults);
            judged.messages
        }
        Ok(Err(_)) => {
            tally.violated(Rule::Unexpected, format!("session {number} panicked"));
            SESSION
        }
        Err(_) => {
            tally.violated(Rule::Stuck, format!("session {number} hangs"));
            SESSION
        }
    }
}

/// The result of a session.
struct Judged {
    messages: u64,
    faults: u64,
    effects: usize,
    violations: Vec<(Rule, String)>,
}

struct Session {
    random: Random,
    ledger: Ledger,
    runtime: tokio::runtime::Handle,
}

impl Session {
    fn new(random: Random, runtime: tokio::runtime::Handle) -> Self {
        let store = MemoryStore::new(Watch(Instant::now()));
        Self { random, ledger: Ledger::new(Arc::new(store)), runtime }
    }

    fn run(mut self) -> Judged {
        let (to_client, from_proxy) = LinesOut::new();
        let (to_server, from_client) = LinesOut::new();
        let (server_says, server_heard) = mpsc::channel();
        let streams = Streams { client: Box::new(to_client), server: Box::new(to_server) };
        let proxy = Proxy::new(self.ledger.clone(), options(), streams, self.runtime.clone());
        let server = Server::new(self.random.fork(), from_client, server_says);
        let client = Client::new(self.random.fork(), SESSION);
        let (expected, report) = std::thread::scope(|scope| {
            let server = scope.spawn(|| server.serve());
            let pump = scope.spawn(|| {
                let mut client = client;
                proxy.pump_client(&mut client);
                client.into_expected()
            });
            proxy.pump_server(LinesIn::new(server_heard));
            proxy.server_gone("the server ended");
            (pump.join(), server.join())
        });
        drop(proxy);
        let answers: Vec<Vec<u8>> = from_proxy.into_iter().collect();
        let (Ok(expected), Ok(report)) = (expected, report) else {
            return Judged {
                messages: SESSION,
                faults: 0,
                effects: 0,
                violations: vec![(Rule::Unexpected, "a thread of the session panicked".to_owned())],
            };
        };
        self.judge(&expected, &report, &answers)
    }

    fn judge(&self, expected: &Expected, report: &server::Report, answers: &[Vec<u8>]) -> Judged {
        let mut violations = expected.answered(answers);
        violations.extend(expected.passed(&report.heard));
        violations.extend(report.said_to(answers));
        violations.extend(self.effects(report));
        let messages = expected.sent + report.said.len() as u64 + report.answers;
        let effects = report.effects.values().sum();
        Judged { messages, faults: expected.faults + report.faults, effects, violations }
    }

    /// One effect per key, and a ledger that neither denies it nor leaves it open.
    fn effects(&self, report: &server::Report) -> Vec<(Rule, String)> {
        let mut violations = Vec::new();
        for ((tool, key), count) in &report.effects {
            let what = format!("{tool} with key {key:?}");
            if *count > 1 {
                violations.push((Rule::Duplicate, format!("{what} ran {count} times")));
            }
            let id = OperationId::of(SCOPE, &format!("{SERVER}/{tool}"), key);
            match self.runtime.block_on(self.ledger.find(&id)).map(|(_, state)| state) {
                Ok(State::Done | State::InDoubt) => {}
                Ok(State::Failed) => violations.push((Rule::FalseFailed, what)),
                Ok(State::Running) => violations.push((Rule::Stuck, what)),
                Ok(state @ (State::Staged | State::Cancelled | State::Expired)) => {
                    violations.push((Rule::Unexpected, format!("{what} is {state}")));
                }
                Err(error) => violations.push((Rule::NoIntent, format!("{what}: {error}"))),
            }
        }
        violations
    }
}

fn options() -> Options {
    Options {
        server: SERVER.to_owned(),
        identity: SERVER.to_owned(),
        policy: Policy::default(),
        scope: HostScope::Chosen(SCOPE.to_owned()),
        keys: None,
        trust: Trust::Annotations,
        exposure: Exposure::Arguments,
        dry_run: false,
        asking: onceward_mcp::Asking::Human,
        slow: onceward_mcp::Slow { ms: 4_000, every_client: false },
        guess: onceward_mcp::Guess::Reads,
        on_tool_error: None,
        program: "once".to_owned(),
        wait_ms: 1_000,
        drain_ms: DRAIN_MS,
        notice: Box::new(|_| {}),
    }
}

/// Real time, so that waiting for an unanswered call does not spin.
struct Watch(Instant);

#[async_trait]
impl Clock for Watch {
    fn now_ms(&self) -> i64 {
        i64::try_from(self.0.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    async fn sleep(&self, ms: u64) {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}
