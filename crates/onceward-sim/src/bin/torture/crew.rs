//! A crew: several processes with their own handles on one ledger, while a scenario changes things; and the check of
//! its results.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Trouble;
use crate::bench::{Bench, Case};
use crate::downstream;
use crate::process::PATIENCE;
use crate::report::{Rule, Tally};
use crate::worker::{self, ALL_ONCE, LABELS, MOMENT, OVER, UNTIL_OVER};

/// Processes that make calls until the scenario ends.
pub(crate) struct Crew {
    folder: PathBuf,
    processes: Vec<Child>,
    size: usize,
}

/// One call of a worker: the answer, and whether its own code ran.
#[derive(Debug, Clone)]
pub(crate) struct WorkerReply {
    pub(crate) worker: usize,
    pub(crate) moment: String,
    pub(crate) label: String,
    pub(crate) ran: bool,
    /// `done`, or the code of the refusal.
    pub(crate) code: String,
    happened: String,
    told_ran: bool,
    /// The result, or the message of the refusal.
    pub(crate) words: String,
}

impl WorkerReply {
    fn parse(worker: usize, line: &str) -> Option<Self> {
        let words: Vec<&str> = line.splitn(7, '\t').collect();
        let [moment, label, ran, code, happened, told, rest] = words[..] else { return None };
        Some(Self {
            worker,
            moment: moment.to_owned(),
            label: label.to_owned(),
            ran: ran == "1",
            code: code.to_owned(),
            happened: happened.to_owned(),
            told_ran: told == "1",
            words: rest.to_owned(),
        })
    }

    pub(crate) fn is_done(&self) -> bool {
        self.code == "done"
    }
}

impl Crew {
    /// Starts workers that call these labels, and new ones, until the end.
    pub(crate) fn start(
        bench: &Bench,
        case: &Case,
        url: &str,
        labels: &[String],
        size: usize,
    ) -> Result<Self, Trouble> {
        Self::begin(bench, case, url, labels, size, UNTIL_OVER)
    }

    /// Has the workers call each label once, and returns their answers.
    pub(crate) fn call_each(
        bench: &Bench,
        case: &Case,
        url: &str,
        labels: &[String],
        size: usize,
    ) -> Result<Vec<WorkerReply>, Trouble> {
        Self::begin_each(bench, case, url, labels, size)?.end()
    }

    /// The same without waiting for them.
    pub(crate) fn begin_each(
        bench: &Bench,
        case: &Case,
        url: &str,
        labels: &[String],
        size: usize,
    ) -> Result<Self, Trouble> {
        Self::begin(bench, case, url, labels, size, ALL_ONCE)
    }

    fn begin(
        bench: &Bench,
        case: &Case,
        url: &str,
        labels: &[String],
        size: usize,
        mode: &str,
    ) -> Result<Self, Trouble> {
        let folder = tempfile::Builder::new().prefix("crew-").tempdir_in(&case.folder)?.keep();
        std::fs::write(folder.join(LABELS), labels.join("\n"))?;
        let mut crew = Self { folder, processes: Vec::new(), size };
        for number in 0..size {
            let mut command = Command::new(&bench.torture);
            command.args([worker::ROLE, url]).arg(&case.effects).arg(&crew.folder);
            command.args([&number.to_string(), mode]);
            let errors = File::create(crew.folder.join(format!("errors-{number}")))?;
            crew.processes.push(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors).spawn()?);
        }
        Ok(crew)
    }

    /// Sets the phase that calls from now on record.
    pub(crate) fn moment(&self, moment: &str) -> Result<(), Trouble> {
        let next = self.folder.join("moment.next");
        std::fs::write(&next, moment)?;
        Ok(std::fs::rename(next, self.folder.join(MOMENT))?)
    }

    /// Whether a worker has begun a `long` operation.
    pub(crate) fn has_begun(&self, label: &str) -> bool {
        worker::begun(&self.folder, label).exists()
    }

    /// Whether all processes have ended.
    pub(crate) fn has_ended(&mut self) -> Result<bool, Trouble> {
        for process in &mut self.processes {
            if process.try_wait()?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The answers so far.
    pub(crate) fn said(&self) -> Result<Vec<WorkerReply>, Trouble> {
        let mut said = Vec::new();
        for number in 0..self.size {
            let text =
                std::fs::read_to_string(worker::said(&self.folder, &number.to_string())).unwrap_or_default();
            // The last line may be incomplete.
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            for line in whole.lines() {
                let parsed = WorkerReply::parse(number, line);
                said.push(parsed.ok_or_else(|| format!("a worker wrote {line:?}"))?);
            }
        }
        Ok(said)
    }

    /// Waits until every worker has recorded a matching answer.
    pub(crate) fn wait_for_each(&self, sort: impl Fn(&WorkerReply) -> bool) -> Result<bool, Trouble> {
        self.wait_within(PATIENCE, sort)
    }

    /// The same with this limit.
    pub(crate) fn wait_within(
        &self,
        limit: Duration,
        sort: impl Fn(&WorkerReply) -> bool,
    ) -> Result<bool, Trouble> {
        let begun = Instant::now();
        loop {
            let said = self.said()?;
            if (0..self.size).all(|worker| said.iter().any(|said| said.worker == worker && sort(said))) {
                return Ok(true);
            }
            if begun.elapsed() > limit {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until there are `more` additional effects.
    pub(crate) fn wait_for_effects(&self, case: &Case, more: usize) -> Result<(), Trouble> {
        let count = || std::fs::read_to_string(&case.effects).map(|text| text.lines().count());
        let (begun, before) = (Instant::now(), count()?);
        while count()? < before + more {
            if begun.elapsed() > PATIENCE {
                return Err(format!("the crew does not work: {:?}", self.said()?.last()).into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Tells all workers to stop, and waits until they have ended.
    pub(crate) fn end(mut self) -> Result<Vec<WorkerReply>, Trouble> {
        self.moment(OVER)?;
        for number in 0..self.size {
            let status = self.processes[number].wait()?;
            if !status.success() {
                let errors = self.folder.join(format!("errors-{number}"));
                let words = std::fs::read_to_string(errors).unwrap_or_default();
                return Err(format!("a worker ended with {status}: {words}").into());
            }
        }
        self.said()
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // Both fail harmlessly if it has already ended, as usual.
            drop(process.kill());
            drop(process.wait());
        }
    }
}

/// The results of the operations.
#[derive(Debug, Default, Clone)]
pub(crate) struct Outcome {
    pub(crate) calls: usize,
    pub(crate) effects: usize,
    pub(crate) acknowledged: usize,
    pub(crate) second_effects: usize,
    /// Additional effects of idempotent operations, which are allowed.
    pub(crate) repeats: usize,
    pub(crate) codes: BTreeMap<String, usize>,
}

impl Outcome {
    pub(crate) fn add(&mut self, more: &Self) {
        self.calls += more.calls;
        self.effects += more.effects;
        self.acknowledged += more.acknowledged;
        self.second_effects += more.second_effects;
        self.repeats += more.repeats;
        for (code, count) in &more.codes {
            *self.codes.entry(code.clone()).or_default() += count;
        }
    }

    pub(crate) fn head() -> String {
        format!(
            "{:<34} {:>7} {:>7} {:>7} {:>7} {:>8}  {}",
            "", "calls", "effects", "acked", "second", "repeats", "refused"
        )
    }

    pub(crate) fn row(&self, label: &str) -> String {
        let refused = self.codes.iter().filter(|(code, _)| *code != "done");
        let refused: Vec<String> = refused.map(|(code, count)| format!("{count} {code}")).collect();
        format!(
            "{label:<34} {:>7} {:>7} {:>7} {:>7} {:>8}  {}",
            self.calls,
            self.effects,
            self.acknowledged,
            self.second_effects,
            self.repeats,
            refused.join(", ")
        )
    }
}

/// Compares the workers' answers with the counted effects.
pub(crate) fn judge(
    effects: &Path,
    said: &[WorkerReply],
    what: &str,
    tally: &Tally,
) -> Result<Outcome, Trouble> {
    let counted = downstream::lines(effects)?;
    let mut outcome = Outcome { calls: said.len(), ..Outcome::default() };
    let mut acknowledged: Vec<&str> = Vec::new();
    for one in said {
        *outcome.codes.entry(one.code.clone()).or_default() += 1;
        let lines = counted.get(&one.label).map_or(&[][..], Vec::as_slice);
        let told = || format!("{what}: {} got {} ({})", one.label, one.code, one.words);
        if one.is_done() {
            acknowledged.push(&one.label);
            // A probe's finding has no result of its own.
            let known = if one.words.is_empty() { !lines.is_empty() } else { lines.contains(&one.words) };
            if !known {
                tally.violated(Rule::FalseDone, told());
            }
        } else if one.ran && (one.happened == "no" || !one.told_ran) {
            tally.violated(Rule::FalseFailed, told());
        }
    }
    acknowledged.sort_unstable();
    acknowledged.dedup();
    outcome.acknowledged = acknowledged.len();
    for (label, lines) in &counted {
        outcome.effects += lines.len();
        if label.starts_with("idempotent-") {
            outcome.repeats += lines.len() - 1;
        } else if lines.len() > 1 {
            outcome.second_effects += 1;
            tally.violated(Rule::Duplicate, format!("{what}: {label} has effects {lines:?}"));
        }
    }
    tally.cases(counted.len() as u64);
    tally.effects(outcome.effects);
    Ok(outcome)
}

/// Labels of one kind.
pub(crate) fn labels(kind: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{kind}-{number}")).collect()
}
