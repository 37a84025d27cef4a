//! The downstream: a command whose effect is one line in a file, appended in one write. It knows nothing about the
//! ledger.
//!
//! Its instructions are environment variables, so that a retry has the same arguments as the first call.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// The first argument that makes this program the downstream.
pub(crate) const ROLE: &str = "downstream";
/// The first argument that makes it print the clocks that it sees.
pub(crate) const CLOCKS: &str = "clocks";

/// The file in which effects are counted.
pub(crate) const FILE: &str = "EFFECT_FILE";
/// How long it takes before the effect.
pub(crate) const BEFORE_MS: &str = "EFFECT_BEFORE_MS";
/// How long it takes after the effect.
pub(crate) const AFTER_MS: &str = "EFFECT_AFTER_MS";
/// A file that it waits for before the effect, and one that it waits for after it. While it waits, it creates a file
/// of the same name with [`HERE`] added.
pub(crate) const HOLD_BEFORE: &str = "EFFECT_HOLD_BEFORE";
pub(crate) const HOLD_AFTER: &str = "EFFECT_HOLD_AFTER";
pub(crate) const HERE: &str = "here";
/// The maximum wait: a test that was aborted must not leave the process behind.
const HELD_AT_MOST: Duration = Duration::from_secs(1_200);
/// The exit code of a documented refusal, for `--fail-exit`.
pub(crate) const NO_EFFECT: u8 = 3;
/// The exit code of a refusal. If set, it exits with this code and has no effect.
pub(crate) const REFUSE: &str = "EFFECT_REFUSE";
/// A file with which it fills the disk after the effect.
pub(crate) const FILL: &str = "EFFECT_FILL";
/// How many bytes it prints.
pub(crate) const PRINT_BYTES: &str = "EFFECT_PRINT_BYTES";

/// The probe for `--probe`: searches the same file. Without the file it cannot tell. Exit 1 means *no*.
pub(crate) const PROBE: &str = r#"grep -q "^$ONCE_OPERATION " "$EFFECT_FILE""#;

/// Attempts that had an effect, by operation.
pub(crate) type Effects = BTreeMap<String, Vec<u32>>;

/// Performs the effect.
pub(crate) fn act() -> ExitCode {
    let text = |name: &str| std::env::var(name).unwrap_or_default();
    let number = |name: &str| text(name).parse::<u64>().unwrap_or(0);
    pause(number(BEFORE_MS));
    hold(&text(HOLD_BEFORE));
    if let Ok(code) = text(REFUSE).parse::<u8>() {
        return ExitCode::from(code);
    }
    let line = format!("{} {}\n", text("ONCE_OPERATION"), text("ONCE_ATTEMPT"));
    let appended =
        OpenOptions::new().append(true).open(text(FILE)).and_then(|mut file| file.write_all(line.as_bytes()));
    if appended.is_err() {
        return ExitCode::from(9);
    }
    if !text(FILL).is_empty() {
        fill(Path::new(&text(FILL)));
    }
    let mut out = std::io::stdout();
    let padding = ".".repeat(number(PRINT_BYTES) as usize);
    drop(out.write_all(format!("effect {line}{padding}").as_bytes()).and_then(|()| out.flush()));
    pause(number(AFTER_MS));
    hold(&text(HOLD_AFTER));
    ExitCode::SUCCESS
}

/// Prints the wall clock and the boot clock, which cannot be set, in milliseconds.
pub(crate) fn tell_clocks() -> ExitCode {
    let ms = |clock| clock_gettime(clock).map_or(0, |time| time.tv_sec() * 1000 + time.tv_nsec() / 1_000_000);
    let told = writeln!(std::io::stdout(), "{} {}", ms(ClockId::CLOCK_REALTIME), ms(ClockId::CLOCK_BOOTTIME));
    ExitCode::from(u8::from(told.is_err()))
}

/// The counted effects. An incomplete line is a mistake in the test and appears as a separate operation.
pub(crate) fn count(file: &Path) -> std::io::Result<Effects> {
    let mut effects = Effects::new();
    for line in std::fs::read_to_string(file)?.lines() {
        let (operation, attempt) = line.split_once(' ').unwrap_or((line, ""));
        effects.entry(operation.to_owned()).or_default().push(attempt.parse().unwrap_or(0));
    }
    Ok(effects)
}

/// Performs an effect from within this process: the line is durable when this returns.
pub(crate) fn append(file: &Path, line: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().append(true).open(file)?;
    file.write_all(format!("{line}\n").as_bytes())?;
    file.sync_data()
}

/// The complete lines that were appended, by operation.
pub(crate) fn lines(file: &Path) -> std::io::Result<BTreeMap<String, Vec<String>>> {
    let mut lines: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in std::fs::read_to_string(file)?.lines() {
        let operation = line.split(' ').next().unwrap_or_default();
        lines.entry(operation.to_owned()).or_default().push(line.to_owned());
    }
    Ok(lines)
}

/// Fills the disk to the last byte.
pub(crate) fn fill(file: &Path) {
    let Ok(mut file) = OpenOptions::new().create(true).append(true).open(file) else {
        return;
    };
    for size in [65_536, 4_096, 512, 1] {
        let block = vec![0_u8; size];
        // Bounded: no disk in these tests is larger than 64 MiB.
        for _ in 0..1_024 {
            if file.write_all(&block).and_then(|()| file.sync_data()).is_err() {
                break;
            }
        }
    }
}

/// Creates the marker file, and waits for the other file.
fn hold(file: &str) {
    if file.is_empty() {
        return;
    }
    let (file, begun) = (Path::new(file), Instant::now());
    drop(std::fs::write(file.with_extension(HERE), ""));
    while !file.exists() && begun.elapsed() < HELD_AT_MOST {
        pause(1);
    }
}

fn pause(ms: u64) {
    if ms > 0 {
        std::thread::sleep(Duration::from_millis(ms));
    }
}
