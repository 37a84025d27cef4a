//! Kills the wrapper, the command or both at random times, with many callers at once on one ledger.

use std::collections::BTreeMap;
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::signal::Signal;
use onceward_sim::random::Random;

use crate::Trouble;
use crate::bench::{Bench, Case, progress};
use crate::call::{Call, Class, Ended};
use crate::judge::{self, Seen};
use crate::process;
use crate::report::{Rule, Tally};

const KILLS: u64 = 5_000;
const SHORT_KILLS: u64 = 200;
/// The number of concurrent callers.
const CALLERS: u64 = 6;
/// The number of keys in use at a time; few, so that callers collide.
const KEYS: usize = 10;
/// After this many calls a key is replaced by a new one.
const CALLS_PER_KEY: u64 = 6;
/// Exit codes of a caller that was not killed: done, in progress, refused by the command, in doubt.
const EXITS: [i32; 4] = [0, 4, 3, 79];

/// The state that all callers share.
struct Field<'a> {
    bench: &'a Bench,
    case: &'a Case,
    tally: &'a Tally,
    wanted: u64,
    kills: AtomicU64,
    keys: Mutex<Keys>,
    /// The first output for each key; every later answer must equal it.
    printed: Mutex<BTreeMap<String, Vec<u8>>>,
}

/// The intended target of a kill.
struct Aimed {
    wrapper: bool,
    command: Option<i32>,
}

struct Keys {
    slots: Vec<(u64, u64)>,
    last: u64,
}

pub(super) fn run(bench: &Bench, kills: Option<u64>, tally: &Tally) -> Result<(), Trouble> {
    let case = bench.case()?;
    let mut random = bench.random("random");
    let field = Field {
        bench,
        case: &case,
        tally,
        wanted: kills.unwrap_or(if bench.short { SHORT_KILLS } else { KILLS }),
        kills: AtomicU64::new(0),
        keys: Mutex::new(Keys { slots: (1..=KEYS as u64).map(|key| (key, 0)).collect(), last: KEYS as u64 }),
        printed: Mutex::default(),
    };
    std::thread::scope(|scope| {
        let callers: Vec<_> =
            (0..CALLERS).map(|_| random.fork()).map(|random| scope.spawn(|| field.call_on(random))).collect();
        let mut result = Ok(());
        for caller in callers {
            result = result.and(caller.join().map_err(|_| Trouble::from("a caller panicked"))?);
        }
        result
    })?;
    tally.faults(field.kills.load(Ordering::Relaxed));
    field.judge()
}

impl Field<'_> {
    /// Calls and kills until there were enough kills.
    fn call_on(&self, mut random: Random) -> Result<(), Trouble> {
        while self.kills.load(Ordering::Relaxed) < self.wanted {
            let key = lock(&self.keys).draw(&mut random);
            let mut call = call(key).takes(random.below(12), random.below(12));
            if random.permille(100) {
                call.refuse = Some(crate::downstream::NO_EFFECT);
            }
            let wrapper = call.start(self.bench, self.case)?;
            let aimed = self.kill(&wrapper, &mut random);
            let ended = Ended::from(wrapper.wait_with_output()?);
            self.tally.figure("calls", 1);
            self.count(&aimed, &ended);
            self.hear(key, &call, &ended, aimed.wrapper);
        }
        Ok(())
    }

    /// Kills at a random time; most calls take less than 40 ms.
    fn kill(&self, wrapper: &Child, random: &mut Random) -> Aimed {
        let (target, chance) = (random.below(8), random.below(30_000));
        let pid = process::id(wrapper);
        let mut aimed = Aimed { wrapper: target < 5, command: None };
        if target == 7 {
            return Aimed { wrapper: false, command: None };
        }
        if (3..7).contains(&target) {
            // The command is short, so wait for it; a replay has no command.
            aimed.command = process::wait_for_child(pid, Duration::from_millis(30));
        }
        std::thread::sleep(Duration::from_micros(if aimed.command.is_some() { chance / 2 } else { chance }));
        if aimed.wrapper {
            process::send(pid, Signal::SIGKILL);
        }
        // It may have ended meanwhile; its process id is not reused that soon.
        aimed.command =
            aimed.command.filter(|command| process::children(pid).contains(command) || aimed.wrapper);
        if let Some(command) = aimed.command {
            process::send(command, Signal::SIGKILL);
        }
        aimed
    }

    /// Counts the kills that hit a running process.
    fn count(&self, aimed: &Aimed, ended: &Ended) {
        let figure = match (ended.code.is_none(), aimed.command) {
            (true, Some(_)) => "kills of both",
            (true, None) => "kills of the wrapper",
            (false, Some(_)) if !aimed.wrapper => "kills of the command",
            (false, _) => "calls that were not hit",
        };
        self.tally.figure(figure, 1);
        if figure.starts_with("kills") {
            let done = self.kills.fetch_add(1, Ordering::Relaxed) + 1;
            progress(&format!("random: {done} of {} kills, seed {}", self.wanted, self.bench.seed));
        }
    }

    /// Checks that a caller's answer is true and the same for all.
    fn hear(&self, key: u64, call: &Call, ended: &Ended, killed: bool) {
        let Some(code) = ended.code else {
            self.tally
                .expect(killed, || format!("key {key}: a wrapper died without a kill: {}", ended.stderr));
            return;
        };
        self.tally
            .expect(EXITS.contains(&code), || format!("key {key} ({:?}): {}", call.class, ended.words()));
        // A probe that answers yes has no output to replay.
        if code == 0 && call.class == Class::Once {
            let mut printed = lock(&self.printed);
            let first = printed.entry(key.to_string()).or_insert_with(|| ended.stdout.clone());
            let same = *first == ended.stdout && !ended.stdout.is_empty();
            self.tally.expect(same, || format!("key {key}: another output than the first answer's"));
        }
    }

    /// Retries everything without kills, and checks the result.
    fn judge(&self) -> Result<(), Trouble> {
        let (seen, _) = judge::judge(self.bench, self.case, self.tally, "after the kills")?;
        for seen in &seen {
            self.tally.figure(&format!("after the kills: {}", seen.state), 1);
        }
        for (at, seen) in seen.iter().filter(|seen| seen.state != "done").enumerate() {
            progress(&format!("random: judging {at}"));
            self.retry(seen)?;
        }
        let (seen, effects) = judge::judge(self.bench, self.case, self.tally, "after the retries")?;
        self.tally.cases(seen.len() as u64);
        for seen in &seen {
            let count = effects.get(&seen.id).map_or(0, Vec::len);
            self.tally.ended(&seen.state);
            self.tally.effects(count);
            self.tally.most("most attempts of one operation", u64::from(seen.attempt));
            if seen.state == "in_doubt" {
                self.tally
                    .figure(if count == 0 { "in doubt, not happened" } else { "in doubt, happened" }, 1);
            }
        }
        Ok(())
    }

    fn retry(&self, seen: &Seen) -> Result<(), Trouble> {
        let call = call(seen.key.trim_start_matches("key-").parse()?);
        let ended = call.run(self.bench, self.case)?;
        let stays = seen.state == "in_doubt" && call.class == Class::Once;
        let right = ended.code == Some(if stays { 79 } else { 0 });
        if !right {
            self.tally.violated(Rule::Unexpected, format!("a retry of {seen:?}: {}", ended.words()));
        }
        Ok(())
    }
}

/// The call of a key. The class depends on the key.
fn call(key: u64) -> Call {
    let class = Class::ALL[(key % 3) as usize];
    // A killed key may need many attempts, and a waiting caller must not delay the test.
    Call::new(format!("key-{key}")).class(class).argument("--attempts=1000").argument("--wait=2s")
}

impl Keys {
    fn draw(&mut self, random: &mut Random) -> u64 {
        let at = random.index(self.slots.len());
        let (key, calls) = self.slots[at];
        self.slots[at].1 += 1;
        if calls >= CALLS_PER_KEY {
            self.last += 1;
            self.slots[at] = (self.last, 0);
        }
        key
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
