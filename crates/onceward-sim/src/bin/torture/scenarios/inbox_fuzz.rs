//! Hostile webhooks: requests, contents, settings, keys, certificates and addresses, changed at random. None may make
//! the inbox panic, and none may be accepted that was not signed.
//!
//! - `forged`: signed requests of every preset, changed by someone without the keys.
//! - `contents`: changed requests that the vendor signed, for the parsers behind the verifier.
//! - `settings`: random settings, and damaged keys. `certificates`: damaged certificates, and their addresses.
//! - `mutate`: the changes.

mod certificates;
mod contents;
mod forged;
mod mutate;
mod settings;

use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use onceward_http::inbox::{FetchCertificate, Judgement, Reason, Received, Signed, Source, presets};
use onceward_sim::random::Random;

use crate::Trouble;
use crate::args::Args;
use crate::bench::{Bench, progress};
use crate::report::{Rule, Tally};

const EXECUTIONS: u64 = 10_000_000;
const SHORT_EXECUTIONS: u64 = 4_000;
/// How many executions use the same keys and samples.
const ROUND: u64 = 10_000;
const NOW_MS: i64 = 1_769_860_800_000;
const URL: &str = "https://example.com/hooks/in?a=1&b=2";
/// How many findings of a target are described.
const DESCRIBED: u64 = 20;

/// Who sends the changed requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sender {
    /// Someone without the keys.
    Stranger,
    /// Someone with the keys, who signs the changes: this must be found.
    KeyHolder,
}

/// What is fuzzed.
#[derive(Clone, Copy)]
enum Target {
    Forged(&'static str),
    Contents(&'static str),
    Settings,
    Keys,
    Certificates,
    Addresses,
}

impl Target {
    fn all() -> Result<Vec<Self>, Trouble> {
        let presets = || Ok::<_, Trouble>(presets::all()?.keys().map(String::as_str));
        let mut all: Vec<Self> = presets()?.map(Self::Forged).collect();
        // A message of Amazon SNS is parsed before its signature is checked, so `Forged` covers its parser.
        all.extend(presets()?.filter(|preset| *preset != "sns").map(Self::Contents));
        all.extend([Self::Settings, Self::Keys, Self::Certificates, Self::Addresses]);
        Ok(all)
    }

    fn name(self) -> String {
        match self {
            Self::Forged(preset) => preset.to_owned(),
            Self::Contents(preset) => format!("{preset}-contents"),
            Self::Settings => "settings".to_owned(),
            Self::Keys => "keys".to_owned(),
            Self::Certificates => "certificates".to_owned(),
            Self::Addresses => "addresses".to_owned(),
        }
    }
}

/// What happened to the executions of a target, from all its threads.
struct Counts<'a> {
    tally: &'a Tally,
    target: String,
    /// Requests that came as far as the check of the signature: the public-key operation, for keys of that kind.
    checked: AtomicU64,
    accepted: AtomicU64,
    findings: AtomicU64,
}

impl Counts<'_> {
    fn found(&self, rule: Rule, what: impl FnOnce() -> String) {
        if self.findings.fetch_add(1, Ordering::Relaxed) < DESCRIBED {
            self.tally.violated(rule, format!("{}: {}", self.target, what()));
        } else {
            self.tally.violated(rule, format!("{}: one more", self.target));
        }
    }

    fn judged(&self, judgement: &Judgement) {
        match judgement {
            Judgement::Rejected(rejection) => {
                let is_behind = [Reason::Signature, Reason::Old, Reason::Future, Reason::Body];
                self.checked.fetch_add(u64::from(is_behind.contains(&rejection.reason)), Ordering::Relaxed);
                if !Reason::ALL.contains(&rejection.reason) {
                    self.found(Rule::Unexpected, || format!("an unknown reason: {rejection:?}"));
                }
            }
            Judgement::Events(_) => {
                self.checked.fetch_add(1, Ordering::Relaxed);
                self.accepted.fetch_add(1, Ordering::Relaxed);
            }
            Judgement::Challenge(_) | Judgement::Confirm(_) => {
                self.checked.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Runs the executions for each target.
pub(super) fn run(bench: &Bench, args: &Args, tally: &Tally) -> Result<(), Trouble> {
    let sender = if args.not_safe { Sender::KeyHolder } else { Sender::Stranger };
    let executions = args.executions.unwrap_or(if bench.short { SHORT_EXECUTIONS } else { EXECUTIONS });
    let is_wanted = |target: &Target| args.targets.is_empty() || args.targets.contains(&target.name());
    let targets: Vec<Target> = Target::all()?.into_iter().filter(is_wanted).collect();
    if targets.is_empty() {
        return Err("there is no such target".into());
    }
    for target in targets {
        let [checked, accepted, findings] = [(); 3].map(|()| AtomicU64::new(0));
        let counts = Counts { tally, target: target.name(), checked, accepted, findings };
        let begun = Instant::now();
        run_target(bench, args.threads.max(1), target, sender, executions, &counts)?;
        let [checked, accepted, findings] =
            [&counts.checked, &counts.accepted, &counts.findings].map(|count| count.load(Ordering::Relaxed));
        let seconds = begun.elapsed().as_secs_f64();
        let line = format!(
            "{}: {executions} executions in {seconds:.0} s, {findings} findings; {checked} signatures checked, \
             {accepted} accepted",
            counts.target
        );
        // A long run shows what it has done so far.
        drop(writeln!(std::io::stderr(), "{line}"));
        tally.note(line);
    }
    Ok(())
}

fn run_target(
    bench: &Bench,
    threads: u64,
    target: Target,
    sender: Sender,
    executions: u64,
    counts: &Counts<'_>,
) -> Result<(), Trouble> {
    let rounds = executions.div_ceil(ROUND);
    let next = AtomicU64::new(0);
    let work = || -> Result<(), Trouble> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= rounds {
                return Ok(());
            }
            progress(&format!("inbox-fuzz {}: {number} of {rounds} rounds", counts.target));
            let length = ROUND.min(executions - number * ROUND);
            let mut random = bench.random(&format!("inbox-fuzz {} {number}", counts.target));
            let round = AssertUnwindSafe(|| round(target, sender, &mut random, length, counts));
            match std::panic::catch_unwind(round) {
                Ok(result) => result?,
                Err(_) => counts.found(Rule::Unexpected, || format!("round {number} panicked")),
            }
            counts.tally.cases(length);
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let ended = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|_| Err("a thread panicked".into())));
        ended.collect::<Result<Vec<()>, Trouble>>().map(drop)
    })
}

fn round(
    target: Target,
    sender: Sender,
    random: &mut Random,
    executions: u64,
    counts: &Counts<'_>,
) -> Result<(), Trouble> {
    match target {
        Target::Forged(preset) => forged::round(preset, sender, random, executions, counts),
        Target::Contents(preset) => contents::round(preset, random, executions, counts),
        Target::Settings => settings::round(random, executions, counts),
        Target::Keys => settings::keys(random, executions, counts),
        Target::Certificates => certificates::round(random, executions, counts),
        Target::Addresses => certificates::addresses(random, executions, counts),
    }
}

/// What a source says about a request.
fn judge(
    source: &Source,
    method: &http::Method,
    request: &Signed,
    now_ms: i64,
    fetch: &dyn FetchCertificate,
) -> Judgement {
    let received = Received { method, url: &request.url, headers: &request.headers, body: &request.body };
    pollster::block_on(source.judge(&received, now_ms, fetch))
}
