//! Held commands: releases, cancels and kills race each other. Each command runs once or never, and the ledger says
//! which.

use std::collections::BTreeMap;
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use nix::sys::signal::Signal;
use onceward_sim::random::Random;

use super::in_parallel;
use crate::Trouble;
use crate::bench::{Bench, Case};
use crate::call::{Call, Ended};
use crate::downstream;
use crate::judge::{self, Seen};
use crate::process;
use crate::report::{Rule, Tally};

const KEYS: u64 = 1_000;
const SHORT_KEYS: u64 = 40;
/// How many keys are worked on at the same time; each has several processes.
const AT_ONCE: usize = 4;
/// The exit codes of a release: done, refused (cancelled, running elsewhere), wrong state, in doubt.
const RELEASED: [i32; 4] = [0, 4, 6, 79];
/// The exit codes of a cancel: cancelled or asked to stop, too late.
const CANCELLED: [i32; 2] = [0, 6];

struct Field<'a> {
    bench: &'a Bench,
    case: &'a Case,
    tally: &'a Tally,
    /// How many releases and cancels of each key reported a success.
    said: Mutex<BTreeMap<u64, [u64; 2]>>,
}

pub(super) fn run(bench: &Bench, keys: Option<u64>, tally: &Tally) -> Result<(), Trouble> {
    let case = bench.case()?;
    let keys: Vec<u64> = (0..keys.unwrap_or(if bench.short { SHORT_KEYS } else { KEYS })).collect();
    let field = Field { bench, case: &case, tally, said: Mutex::default() };
    in_parallel("hold: holding", &keys, AT_ONCE, |key| field.hold(*key))?;
    let (held, effects) = judge::judge(bench, &case, tally, "while held")?;
    tally.expect(effects.is_empty(), || format!("an effect while everything is held: {effects:?}"));
    tally.expect(held.len() == keys.len() && held.iter().all(|seen| seen.state == "staged"), || {
        format!("{} of {} operations are held", held.len(), keys.len())
    });
    in_parallel("hold: racing", &keys, AT_ONCE, |key| field.race(*key))?;
    field.judge("after the races")?;
    // What was released and then killed before it started is started by the next one that looks.
    let due = judge::once(bench, &case).args(["release", "--due", "--trust-commands"]).output()?;
    tally.expect(due.status.code().is_some_and(|code| RELEASED.contains(&code)), || {
        format!("release --due: {} {}", due.status, String::from_utf8_lossy(&due.stderr))
    });
    let seen = field.judge("after release --due")?;
    tally.cases(seen.len() as u64);
    for one in &seen {
        tally.ended(&one.state);
    }
    tally.effects(downstream::count(&case.effects)?.len());
    Ok(())
}

impl Field<'_> {
    fn call(&self, key: u64) -> Call {
        Call::new(format!("key-{key}")).argument("--hold=approve")
    }

    /// Holds one command, twice: the second call is not a second hold.
    fn hold(&self, key: u64) -> Result<(), Trouble> {
        for _ in 0..2 {
            let ended = self.call(key).run(self.bench, self.case)?;
            let told =
                ended.code == Some(0) && ended.stdout.is_empty() && ended.stderr.contains("nothing was sent");
            self.tally.expect(told, || format!("key {key} is held: {}", ended.words()));
        }
        Ok(())
    }

    /// One to three releases and up to one cancel of the same operation at the same time; some releases are killed.
    fn race(&self, key: u64) -> Result<(), Trouble> {
        let mut random = self.bench.random(&format!("hold {key}"));
        let releases = random.below(4);
        let cancels = random.below(2);
        let mut words: Vec<&str> = std::iter::repeat_n("release", usize::try_from(releases)?)
            .chain(std::iter::repeat_n("cancel", usize::try_from(cancels)?))
            .collect();
        shuffle(&mut words, &mut random);
        let mut started = Vec::new();
        for word in words {
            started.push((word, self.start(word, key, &mut random)?));
            std::thread::sleep(Duration::from_micros(random.below(4_000)));
        }
        for (word, process) in &started {
            if *word == "release" && random.permille(400) {
                self.kill(process, &mut random);
            }
        }
        for (word, process) in started {
            let ended = Ended::from(process.wait_with_output()?);
            self.hear(key, word, &ended);
        }
        Ok(())
    }

    fn start(&self, word: &str, key: u64, random: &mut Random) -> Result<Child, Trouble> {
        let mut command = judge::once(self.bench, self.case);
        command.args([word, &format!("key-{key}")]);
        command.env(downstream::FILE, &self.case.effects);
        command.env(downstream::BEFORE_MS, random.below(8).to_string());
        command.env(downstream::AFTER_MS, random.below(8).to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command.spawn()?)
    }

    /// Kills a release, its command, or both, at a random time.
    fn kill(&self, release: &Child, random: &mut Random) {
        let pid = process::id(release);
        let target = random.below(3);
        let command = match target {
            0 => None,
            _ => process::wait_for_child(pid, Duration::from_millis(30)),
        };
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        if target != 1 {
            process::send(pid, Signal::SIGKILL);
        }
        if let Some(command) =
            command.filter(|command| process::children(pid).contains(command) || target == 2)
        {
            process::send(command, Signal::SIGKILL);
        }
        self.tally.faults(1);
    }

    fn hear(&self, key: u64, word: &str, ended: &Ended) {
        let Some(code) = ended.code else {
            self.tally.figure("releases that were killed", 1);
            return;
        };
        let (known, at): (&[i32], usize) = match word {
            "release" => (&RELEASED, 0),
            _ => (&CANCELLED, 1),
        };
        self.tally.expect(known.contains(&code), || format!("key {key}: {word}: {}", ended.words()));
        self.tally.figure(&format!("{word}: exit {code}"), 1);
        if code == 0 {
            let mut said = self.said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            said.entry(key).or_default()[at] += 1;
        }
    }

    /// Each ran once or never, and the ledger says which.
    fn judge(&self, what: &str) -> Result<Vec<Seen>, Trouble> {
        let (seen, effects) = judge::judge(self.bench, self.case, self.tally, what)?;
        let said = self.said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for one in &seen {
            let count = effects.get(&one.id).map_or(0, Vec::len);
            let told = format!("{what}: {} is {} with {count} effects", one.key, one.state);
            let right = match one.state.as_str() {
                "done" => count == 1,
                "staged" | "failed" | "cancelled" => count == 0,
                _ => count <= 1,
            };
            if !right {
                self.tally.violated(if count > 1 { Rule::Duplicate } else { Rule::FalseDone }, told.clone());
            }
            let key: u64 = one.key.trim_start_matches("key-").parse()?;
            let [released, _] = said.get(&key).copied().unwrap_or_default();
            // A release that said "done" is believed.
            self.tally
                .expect(released == 0 || count == 1, || format!("{told}, and a release said it is done"));
        }
        Ok(seen)
    }
}

fn shuffle<T>(words: &mut [T], random: &mut Random) {
    for at in (1..words.len()).rev() {
        words.swap(at, random.index(at + 1));
    }
}
