//! A full disk: before the intent nothing runs, and after the effect nothing is forgotten.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Trouble;
use crate::bench::{Bench, Case};
use crate::call::{Call, Class};
use crate::downstream;
use crate::judge::{self, state_of};
use crate::mount::Mount;
use crate::process::PATIENCE;
use crate::report::Tally;

/// More than the space left on a full disk, so that the outcome cannot be written.
const OUTPUT_BYTES: &str = "200000";

/// A ledger on a small disk, with its effects on another one.
struct Disk<'a> {
    bench: &'a Bench,
    tally: &'a Tally,
    kind: &'static str,
    mount: &'a Mount,
    rounds: u32,
}

pub(super) fn run(bench: &Bench, tally: &Tally) -> Result<(), Trouble> {
    let rounds = if bench.short { 1 } else { 10 };
    let point = bench.mount_point("tmpfs")?;
    let mount = Mount::tmpfs(&point, "1m").map_err(|trouble| format!("a small disk is needed: {trouble}"))?;
    Disk { bench, tally, kind: "tmpfs", mount: &mount, rounds }.run()?;
    let point = bench.mount_point("ext4")?;
    let image = bench.mount_point("images")?.join("full.img");
    let mount =
        Mount::ext4(&point, &image, 16).map_err(|trouble| format!("a small disk is needed: {trouble}"))?;
    Disk { bench, tally, kind: "ext4", mount: &mount, rounds }.run()
}

impl Disk<'_> {
    fn run(&self) -> Result<(), Trouble> {
        for round in 0..self.rounds {
            self.before_the_ledger(round)?;
            self.before_the_intent(round)?;
            self.before_the_outcome(round, Class::Once)?;
            self.before_the_outcome(round, Class::Probed)?;
            self.cleared_in_time(round)?;
        }
        Ok(())
    }

    fn case(&self, name: &str) -> Result<Case, Trouble> {
        let ledger = self.mount.point.join(format!("{name}.db"));
        Ok(self.bench.case()?.with_ledger(ledger))
    }

    fn filler(&self) -> PathBuf {
        self.mount.point.join("filler")
    }

    /// Nothing runs if no ledger can be created.
    fn before_the_ledger(&self, round: u32) -> Result<(), Trouble> {
        let what = format!("{}: full before there is a ledger", self.kind);
        let case = self.case(&format!("cold-{round}"))?;
        downstream::fill(&self.filler());
        let ended = Call::new("cold").run(self.bench, &case)?;
        let effects = downstream::count(&case.effects)?.len();
        self.tally.expect(ended.code == Some(12) && effects == 0, || {
            format!("{what}: {}, {effects} effects", ended.words())
        });
        self.works_again(&case, "cold", &what)
    }

    /// Nothing runs without its intent; finished operations are still replayed.
    fn before_the_intent(&self, round: u32) -> Result<(), Trouble> {
        let what = format!("{}: full before the intent", self.kind);
        let case = self.case(&format!("warm-{round}"))?;
        let done = Call::new("done").run(self.bench, &case)?;
        downstream::fill(&self.filler());
        let refused = Call::new("new").run(self.bench, &case)?;
        let replay = Call::new("done").run(self.bench, &case)?;
        let effects: usize = downstream::count(&case.effects)?.values().map(Vec::len).sum();
        self.tally.expect(refused.code == Some(12) && effects == 1, || {
            format!("{what}: {}, {effects} effects", refused.words())
        });
        let same = (replay.code, &replay.stdout) == (Some(0), &done.stdout);
        self.tally.expect(same, || format!("{what}: no replay of a finished operation: {}", replay.words()));
        self.works_again(&case, "new", &what)
    }

    /// The command performs its effect and fills the disk. Then its outcome is in doubt and stays so.
    fn before_the_outcome(&self, round: u32, class: Class) -> Result<(), Trouble> {
        let what = format!("{}: full before the outcome ({class:?})", self.kind);
        let case = self.case(&format!("outcome-{class:?}-{round}"))?;
        Call::new("other").run(self.bench, &case)?;
        let call = Call::new("filling").class(class);
        let filling = call
            .clone()
            .environment(downstream::FILL, self.filler().display().to_string())
            .environment(downstream::PRINT_BYTES, OUTPUT_BYTES);
        let ended = filling.run(self.bench, &case)?;
        self.tally.expect(ended.code == Some(79), || format!("{what}: {}", ended.words()));
        remove(&self.filler());
        let (seen, _) = judge::judge(self.bench, &case, self.tally, &what)?;
        let state = state_of(&seen, "filling");
        self.tally.ended(&state);
        self.tally.expect(state == "in_doubt", || format!("{what}: it is {state} after room was made"));
        let retry = call.run(self.bench, &case)?;
        let expected = if class == Class::Once { 79 } else { 0 };
        self.tally.expect(retry.code == Some(expected), || format!("{what}: a retry: {}", retry.words()));
        self.over(&case, &what)
    }

    /// The final write is retried for a second and a half.
    fn cleared_in_time(&self, round: u32) -> Result<(), Trouble> {
        let what = format!("{}: full before the outcome, cleared soon after", self.kind);
        let case = self.case(&format!("cleared-{round}"))?;
        Call::new("other").run(self.bench, &case)?;
        let call = Call::new("filling")
            .environment(downstream::FILL, self.filler().display().to_string())
            .environment(downstream::PRINT_BYTES, OUTPUT_BYTES);
        let wrapper = call.start(self.bench, &case)?;
        let begun = std::time::Instant::now();
        while std::fs::metadata(&case.effects)?.len() < 60 && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(100));
        remove(&self.filler());
        let ended = crate::call::Ended::from(wrapper.wait_with_output()?);
        self.tally.expect(ended.code == Some(0), || format!("{what}: {}", ended.words()));
        self.over(&case, &what)
    }

    /// Frees space, and checks that everything works again.
    fn works_again(&self, case: &Case, key: &str, what: &str) -> Result<(), Trouble> {
        remove(&self.filler());
        let ended = Call::new(key).run(self.bench, case)?;
        self.tally.expect(ended.code == Some(0), || format!("{what}, room was made: {}", ended.words()));
        self.over(case, what)
    }

    fn over(&self, case: &Case, what: &str) -> Result<(), Trouble> {
        let after = Call::new("after").run(self.bench, case)?;
        self.tally
            .expect(after.code == Some(0), || format!("{what}, a new key afterwards: {}", after.words()));
        let (_, effects) = judge::judge(self.bench, case, self.tally, what)?;
        self.tally.case();
        self.tally.faults(1);
        self.tally.effects(effects.values().map(Vec::len).sum());
        for suffix in ["", "-wal", "-shm", "-live"] {
            remove(Path::new(&format!("{}{suffix}", case.ledger.display())));
        }
        Ok(())
    }
}

fn remove(file: &Path) {
    // It may not exist.
    drop(std::fs::remove_file(file));
    // A journal gives the room back when it is written.
    let folder = file.parent().map(std::fs::File::open);
    drop(folder.and_then(Result::ok).map(|folder| folder.sync_all()));
}
