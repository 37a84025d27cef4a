//! One process of a crew: calls operations of several kinds on its own handle, and records the answers.
//!
//! The prefix of a label is the kind of the operation: `once-1`, `idempotent-1`, `probed-1`, `derived-1` (without a
//! key), `long-1` (probed, and longer than its lease).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use onceward::{
    Blocking, Class, Effect, Error, Failure, Happened, Intent, Ledger, Operation, Outcome, ProbeAnswer,
    Receipt, Terms,
};
use onceward_sim::random::Random;

use crate::Trouble;
use crate::downstream;

/// The first argument that makes this program a worker.
pub(crate) const ROLE: &str = "worker";
/// Files in the folder of a crew: the labels, the current phase; and the phase that ends the work.
pub(crate) const LABELS: &str = "labels";
pub(crate) const MOMENT: &str = "moment";
pub(crate) const OVER: &str = "over";
/// The modes: make calls until the end and then call each label once more, or only call each label once.
pub(crate) const UNTIL_OVER: &str = "until-over";
pub(crate) const ALL_ONCE: &str = "all-once";

/// How many threads make calls at once, on one handle.
const THREADS: usize = 2;
/// The pause between two calls of a thread.
const PAUSE: Duration = Duration::from_millis(10);
/// The maximum lifetime: a worker of an aborted test must not stay behind.
const AT_MOST: Duration = Duration::from_secs(1_200);
/// How often a call is repeated while another caller executes the operation.
const TRIES: usize = 200;
/// How long a `long` operation takes before its effect; its lease and its quarantine.
const LONG: Duration = Duration::from_secs(8);
const LEASE_MS: u64 = 4_000;
pub(crate) const QUARANTINE_MS: u64 = 6_000;

/// `worker URL EFFECTS FOLDER NUMBER MODE`.
pub(crate) fn work(words: impl Iterator<Item = String>) -> ExitCode {
    let words: Vec<String> = words.collect();
    let [url, effects, folder, number, mode] = &words[..] else { return ExitCode::from(2) };
    match work_on(url, effects.as_ref(), folder.as_ref(), number, mode) {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            drop(writeln!(std::io::stderr(), "{trouble}"));
            ExitCode::FAILURE
        }
    }
}

fn work_on(url: &str, effects: &Path, folder: &Path, number: &str, mode: &str) -> Result<(), Trouble> {
    let said = std::fs::OpenOptions::new().create(true).append(true).open(said(folder, number))?;
    let (said, folder) = (Mutex::new(said), folder.to_owned());
    let labels: Vec<String> =
        std::fs::read_to_string(folder.join(LABELS))?.lines().map(str::to_owned).collect();
    let mut random = Random::seeded(number.bytes().map(u64::from).sum());
    let store = match onceward_store::open(url) {
        Ok(store) => store,
        Err(error) => {
            let moment = moment_in(&folder);
            return write_down(&said, &moment, "open", false, &Err(error.into()));
        }
    };
    let ledger = Ledger::new(store).blocking();
    if mode == ALL_ONCE {
        // A sweep must not delete anything too early either. On a replaced ledger it is refused.
        drop(ledger.admin().sweep(|_| {}));
    }
    let worker = Worker { ledger, effects, folder, labels, said, number, next: AtomicUsize::new(0) };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| (random.fork(), &worker))
            .map(|(mut random, worker)| {
                scope.spawn(move || {
                    if mode == UNTIL_OVER {
                        worker.until_over(&mut random)?;
                    }
                    worker.each_once()
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| Trouble::from("a thread of the worker panicked"))?
        })
    })
}

/// The file in which a worker records its answers.
pub(crate) fn said(folder: &Path, number: &str) -> PathBuf {
    folder.join(format!("said-{number}"))
}

/// The file that says that the work on this label has begun.
pub(crate) fn begun(folder: &Path, label: &str) -> PathBuf {
    folder.join(format!("begun-{label}"))
}

fn moment_in(folder: &Path) -> String {
    std::fs::read_to_string(folder.join(MOMENT)).unwrap_or_default()
}

struct Worker<'a> {
    ledger: Blocking,
    effects: &'a Path,
    folder: PathBuf,
    labels: Vec<String>,
    said: Mutex<std::fs::File>,
    number: &'a str,
    /// The next label, if each is called once.
    next: AtomicUsize,
}

impl Worker<'_> {
    /// Calls labels that other workers call too, and new ones.
    fn until_over(&self, random: &mut Random) -> Result<(), Trouble> {
        static FRESH: AtomicU64 = AtomicU64::new(0);
        let begun = Instant::now();
        while moment_in(&self.folder) != OVER && begun.elapsed() < AT_MOST {
            let label = match random.below(2) {
                0 => self.labels[random.index(self.labels.len())].clone(),
                _ => format!("once-new-{}-{}", self.number, FRESH.fetch_add(1, Ordering::Relaxed)),
            };
            self.call(&label)?;
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn each_once(&self) -> Result<(), Trouble> {
        while let Some(label) = self.labels.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            for _ in 0..TRIES {
                if !self.call(label)? {
                    break;
                }
                std::thread::sleep(PAUSE * 5);
            }
        }
        Ok(())
    }

    /// Makes one call. Returns whether another caller is executing the operation, so that a retry makes sense.
    fn call(&self, label: &str) -> Result<bool, Trouble> {
        let moment = moment_in(&self.folder);
        let ran = AtomicBool::new(false);
        let result = self.intent(label).and_then(|intent| self.run(label, intent, &ran));
        let again = matches!(&result, Err(Error::InProgress { .. }));
        write_down(&self.said, &moment, label, ran.load(Ordering::SeqCst), &result)?;
        Ok(again)
    }

    fn intent(&self, label: &str) -> Result<Intent, Error> {
        let kind = label.split('-').next().unwrap_or_default();
        let mut terms = Terms { lease_ms: LEASE_MS, wait_ms: 1, ..Terms::default() };
        terms.quarantine_ms = QUARANTINE_MS;
        terms.class = match kind {
            "idempotent" => Class::Idempotent,
            "probed" | "long" => Class::Probed,
            _ => Class::Once,
        };
        let operation = Operation::new("effect").terms(terms);
        let operation = match kind {
            "derived" => operation.input(serde_json::json!({ "label": label })),
            "probed" | "long" => operation.scope("crew").key(label).with_probe(),
            _ => operation.scope("crew").key(label),
        };
        self.ledger.intent(operation)
    }

    fn run(&self, label: &str, intent: Intent, ran: &AtomicBool) -> Result<Receipt, Error> {
        let mut call = self.ledger.call(intent);
        if label.starts_with("probed-") || label.starts_with("long-") {
            call = call.probe(|_| std::future::ready(self.probe(label)));
        }
        self.ledger.run_call(call, |attempt| {
            let sent = attempt.dispatch()?;
            if label.starts_with("long-") {
                std::fs::write(begun(&self.folder, label), "").map_err(Failure::in_doubt)?;
                std::thread::sleep(LONG);
            }
            ran.store(true, Ordering::SeqCst);
            let line = effect_line(label, attempt.number());
            downstream::append(self.effects, &line).map_err(Failure::in_doubt)?;
            Ok(sent.created(&line))
        })
    }

    /// Searches for the effect.
    fn probe(&self, label: &str) -> ProbeAnswer {
        match downstream::lines(self.effects) {
            Ok(lines) if lines.contains_key(label) => ProbeAnswer::Yes(Outcome::with_effect(Effect::Created)),
            Ok(_) => ProbeAnswer::No,
            Err(error) => ProbeAnswer::CannotTell(error.to_string()),
        }
    }
}

fn effect_line(label: &str, attempt: u32) -> String {
    static EFFECTS: AtomicU64 = AtomicU64::new(0);
    format!("{label} {attempt} {}-{}", std::process::id(), EFFECTS.fetch_add(1, Ordering::Relaxed))
}

/// A line: phase, label, whether it ran here, the code or `done`, `happened`, `ran` as reported, and the message.
fn write_down(
    said: &Mutex<std::fs::File>,
    moment: &str,
    label: &str,
    ran: bool,
    result: &Result<Receipt, Error>,
) -> Result<(), Trouble> {
    let ran = u8::from(ran);
    let rest = match result {
        Ok(receipt) => {
            let text: String =
                receipt.data().and_then(|data| serde_json::from_str(data).ok()).unwrap_or_default();
            format!("done\tyes\t{}\t{text}", u8::from(receipt.ran().as_bool()))
        }
        Err(error) => {
            let happened = error.happened().map_or("-", Happened::as_str);
            let words = error.to_string().replace(['\n', '\t'], " ");
            format!("{}\t{happened}\t{}\t{words}", error.code(), u8::from(error.ran().as_bool()))
        }
    };
    let line = format!("{moment}\t{label}\t{ran}\t{rest}\n");
    said.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes())?;
    Ok(())
}
