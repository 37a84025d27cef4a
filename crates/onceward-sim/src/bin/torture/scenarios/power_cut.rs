//! The power of a mounted disk is cut under writers. Everything that was acknowledged is on the disk afterwards.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use onceward::{Filter, Ledger, OperationId, State};
use onceward_store::sqlite::{SqliteOptions, SqliteStore};
use onceward_store::{Backend, Verdict};

use crate::Trouble;
use crate::args::Args;
use crate::bench::{Bench, Case, progress};
use crate::call::Call;
use crate::mount::Mount;
use crate::report::{Rule, Tally};
use crate::writer;

const CUTS: u64 = 200;
const SHORT_CUTS: u64 = 5;
const WRITERS: u32 = 3;
/// Use a new ledger after this many cuts, so that recovery always finds some history but not too much.
const CUTS_PER_LEDGER: u64 = 10;

/// How long writers may take until their first output.
const STARTED: Duration = Duration::from_secs(20);

/// The last acknowledgement of each operation.
#[derive(Default)]
struct Acked {
    states: Mutex<BTreeMap<String, Ack>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ack {
    Begun,
    Done,
}

pub(super) fn run(bench: &Bench, args: &Args, tally: &Tally) -> Result<(), Trouble> {
    let cuts = args.cuts.unwrap_or(if bench.short { SHORT_CUTS } else { CUTS });
    let point = bench.mount_point("disk")?;
    let image = bench.mount_point("images")?.join("cut.img");
    let disk =
        Mount::ext4(&point, &image, 256).map_err(|trouble| format!("a disk to cut is needed: {trouble}"))?;
    let mut random = bench.random("power-cut");
    for name in
        ["begun acknowledged", "done acknowledged", "acknowledged by `once run`", "lost", "cuts with a loss"]
    {
        tally.figure(name, 0);
    }
    let mut case = None;
    for cut in 0..cuts {
        progress(&format!("power-cut {} of {cuts}", cut + 1));
        if cut % CUTS_PER_LEDGER == 0 {
            if let Some(case) = &case {
                remove(&path_of(case));
            }
            let ledger = point.join(format!("cut-{cut}.db"));
            case = Some(bench.case()?.with_ledger(format!("{}?sync={}", ledger.display(), args.sync).into()));
        }
        if let Some(case) = &case {
            let pause = Duration::from_millis(random.below(450));
            let acked = write_and_cut(bench, &disk, case, cut, pause)?;
            judge(&disk, case, &acked, cut, tally)?;
        }
    }
    Ok(())
}

/// Lets writers write for a while, cuts the power, and returns what was read from them before the cut.
fn write_and_cut(
    bench: &Bench,
    disk: &Mount,
    case: &Case,
    cut: u64,
    pause: Duration,
) -> Result<BTreeMap<String, Ack>, Trouble> {
    let cutter = disk.cutter()?;
    let acked = Arc::new(Acked::default());
    let mut writers = Vec::new();
    for number in 0..WRITERS {
        let mut command = Command::new(&bench.torture);
        command.args([writer::ROLE, &case.url(), &format!("cut-{cut}-{number}")]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let reader = child.stdout.take().map(|out| acked.read(out));
        writers.push((child, reader));
    }
    let over = AtomicBool::new(false);
    let before = std::thread::scope(|scope| {
        let caller = scope.spawn(|| call_on(bench, case, cut, &over, &acked));
        acked.wait_for_the_first();
        std::thread::sleep(pause);
        // Only output that was read before the cut counts as acknowledged.
        let before = acked.states().clone();
        let result = cutter.cut();
        over.store(true, Ordering::Relaxed);
        stop(writers);
        drop(caller.join());
        result.map(|()| before)
    })?;
    disk.power_up()?;
    another_run_of_the_machine(&path_of(case))?;
    Ok(before)
}

/// `once run`, one call after another. Its exit code is the acknowledgement.
fn call_on(bench: &Bench, case: &Case, cut: u64, over: &AtomicBool, acked: &Acked) {
    for number in 0..100_000_u32 {
        if over.load(Ordering::Relaxed) {
            return;
        }
        let call = Call::new(format!("run-{cut}-{number}")).argument("--json");
        let Ok(ended) = call.run(bench, case) else { return };
        let answer: Option<serde_json::Value> = serde_json::from_slice(&ended.stdout).ok();
        let id = answer.as_ref().and_then(|answer| answer["operation"]["id"].as_str());
        if let (Some(0), Some(id)) = (ended.code, id) {
            acked.states().insert(format!("run {id}"), Ack::Done);
        }
    }
}

impl Acked {
    fn states(&self) -> MutexGuard<'_, BTreeMap<String, Ack>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A busy machine may take a while to start the writers.
    fn wait_for_the_first(&self) {
        let begun = Instant::now();
        while self.states().is_empty() && begun.elapsed() < STARTED {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn read(self: &Arc<Self>, out: std::process::ChildStdout) -> JoinHandle<()> {
        let acked = Arc::clone(self);
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if let Some((word, id)) = line.split_once(' ') {
                    let ack = if word == "done" { Ack::Done } else { Ack::Begun };
                    acked.states().insert(id.to_owned(), ack);
                }
            }
        })
    }
}

fn stop(writers: Vec<(Child, Option<JoinHandle<()>>)>) {
    for (mut child, reader) in writers {
        // A writer that has already ended needs no kill.
        drop(child.kill());
        drop(child.wait());
        if let Some(reader) = reader {
            drop(reader.join());
        }
    }
}

/// A real power cut changes the machine's boot id. The kernel that runs this test keeps its own, so the boot id in
/// the anchor is changed instead.
fn another_run_of_the_machine(ledger: &Path) -> Result<(), Trouble> {
    const BOOT_ID_AT: u64 = 16;
    let live = format!("{}-live", ledger.display());
    match std::fs::OpenOptions::new().write(true).open(live) {
        Ok(file) => Ok(file.write_all_at(&[0xff; 16], BOOT_ID_AT)?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The ledger's path, without the options in its URL.
fn path_of(case: &Case) -> std::path::PathBuf {
    let text = case.ledger.display().to_string();
    text.split('?').next().unwrap_or_default().into()
}

/// Makes room for the next ledger.
fn remove(ledger: &Path) {
    for suffix in ["", "-wal", "-shm", "-live"] {
        // It may not exist.
        drop(std::fs::remove_file(format!("{}{suffix}", ledger.display())));
    }
}

/// Checks that everything acknowledged is there, in a matching state.
fn judge(
    disk: &Mount,
    case: &Case,
    acked: &BTreeMap<String, Ack>,
    cut: u64,
    tally: &Tally,
) -> Result<(), Trouble> {
    tally.case();
    tally.faults(1);
    let what = format!("cut {cut} of {}", disk.point.display());
    let store = match SqliteStore::open(SqliteOptions::new(path_of(case))) {
        Ok(store) => store,
        Err(error) => {
            tally.violated(Rule::Damaged, format!("{what}: {error}"));
            return Ok(());
        }
    };
    let damage = match store.health() {
        Err(error) => Some(error.to_string()),
        Ok(health) => {
            let bad = health.into_iter().find(|finding| finding.verdict == Verdict::Bad);
            bad.map(|finding| format!("{}: {}", finding.what, finding.found))
        }
    };
    if let Some(damage) = damage {
        tally.violated(Rule::Damaged, format!("{what}: {damage}"));
    }
    let ledger = Ledger::new(store).blocking();
    tally.expect(!acked.is_empty(), || format!("{what}: nothing was acknowledged, so nothing was tested"));
    let mut lost = 0;
    for (name, ack) in acked {
        let id = OperationId::parse(name.trim_start_matches("run "))?;
        let state = ledger.find(&id).map(|(_, state)| state);
        let fits = match ack {
            Ack::Done => matches!(state, Ok(State::Done)),
            // The outcome may have reached the disk without being read in time.
            Ack::Begun => matches!(state, Ok(State::InDoubt | State::Done)),
        };
        let figure = match (name.starts_with("run "), ack) {
            (true, _) => "acknowledged by `once run`",
            (false, Ack::Begun) => "begun acknowledged",
            (false, Ack::Done) => "done acknowledged",
        };
        tally.figure(figure, 1);
        if !fits {
            lost += 1;
            tally.violated(
                Rule::Lost,
                format!("{what}: {ack:?} was acknowledged for {id}, and now it is {state:?}"),
            );
        }
    }
    tally.figure("lost", lost);
    tally.figure("cuts with a loss", u64::from(lost > 0));
    let running = Filter { states: vec![State::Running], limit: 10, ..Filter::default() };
    let stuck = ledger.list(&running)?;
    for (listed, _) in stuck {
        tally.violated(Rule::Stuck, format!("{what}: {} is running after the cut", listed.record.id));
    }
    Ok(())
}
