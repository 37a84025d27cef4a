//! A rolling upgrade of a ledger in PostgreSQL, with two builds. `scripts/upgrade-test` runs it.
//!
//! `upgrade write URL FILE PREFIX` pays until the ledger refuses: each effect is a line in FILE. It is also built
//! from the version before the migration, so it uses only what both versions have.
//! `upgrade drive OLD` starts a server and writers of the old build under load, lets this build migrate the ledger,
//! and counts: nothing happens twice, nothing is lost, and the old writers stop with a reason.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a program that tests")]

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use onceward::{Blocking, Code, Error, Ledger, Operation, Receipt};
use onceward_testkit::Postgres;

/// How many processes of the old build write, and how many threads each has.
const PROCESSES: usize = 4;
const THREADS: usize = 8;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["write", url, file, prefix] => write(url, Path::new(file), prefix),
        ["drive", old] => drive(Path::new(old)),
        _ => panic!("upgrade write URL FILE PREFIX, or upgrade drive OLD"),
    }
}

fn pay(ledger: &Blocking, key: &str, file: &Path) -> Result<Receipt, Error> {
    ledger.run(Operation::new("pay").key(key), |attempt| {
        let dispatched = attempt.dispatch()?;
        // One write per line, so that lines of many processes do not mix.
        let mut effects = std::fs::File::options().append(true).create(true).open(file).unwrap();
        effects.write_all(format!("{key}\n").as_bytes()).unwrap();
        Ok(dispatched.created(&key))
    })
}

/// Pays one key after the other until the ledger refuses, and prints why.
fn write(url: &str, file: &Path, prefix: &str) {
    let ledger = Ledger::new(onceward_store::open(url).unwrap()).blocking();
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let key = format!("{prefix}-{}", next.fetch_add(1, Ordering::SeqCst));
                    if let Err(error) = pay(&ledger, &key, file) {
                        println!("{key}: {:?}: {error}", error.code());
                        return;
                    }
                }
            });
        }
    });
}

fn drive(old: &Path) {
    let server = Postgres::start();
    let folder = tempfile::tempdir().unwrap();
    let (url, file) = (server.fresh(), folder.path().join("effects"));
    let writers: Vec<Child> = (0..PROCESSES)
        .map(|number| {
            let mut command = Command::new(old);
            command.args(["write", &url]).arg(&file).arg(format!("old{number}"));
            command.stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let begun = Instant::now();
    while lines(&file).len() < 500 {
        assert!(begun.elapsed() < Duration::from_secs(60), "the old build does not write");
        std::thread::sleep(Duration::from_millis(20));
    }
    let ledger = Ledger::new(onceward_store::open(&url).unwrap()).blocking();
    pay(&ledger, "new", &file).unwrap();
    let migrated = lines(&file).len();
    let (mut refusals, mut unclear) = (0, Vec::new());
    for writer in writers {
        let output = writer.wait_with_output().unwrap();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            refusals += 1;
            if !line.contains("newer version of Onceward") {
                unclear.push(line.to_owned());
            }
        }
    }
    assert_eq!(refusals, PROCESSES * THREADS, "every thread of the old build was refused");
    assert!(unclear.is_empty(), "these refusals do not say why: {unclear:#?}");
    let (done, in_doubt) = retry_all(&ledger, &file);
    println!(
        "{migrated} effects before the migration, {refusals} refusals; then {done} replayed, {in_doubt} in doubt"
    );
}

/// Repeats every call that took effect, with the new build: no second effect, and nothing that the ledger does not
/// know. An effect whose end was refused is in doubt.
fn retry_all(ledger: &Blocking, file: &Path) -> (usize, usize) {
    let before = lines(file);
    let (mut done, mut in_doubt) = (0, 0);
    for key in &before {
        let begun = Instant::now();
        loop {
            match pay(ledger, key, file) {
                Ok(receipt) => {
                    assert!(receipt.replayed(), "{key} was lost");
                    done += 1;
                    break;
                }
                Err(error) if error.code() == Code::InDoubt => {
                    in_doubt += 1;
                    break;
                }
                // Its owner has stopped, and its lease expires.
                Err(error) if error.code() == Code::InProgress && begun.elapsed().as_secs() < 60 => {}
                Err(error) => panic!("{key}: {error}"),
            }
        }
    }
    let mut counts: HashMap<String, usize> = HashMap::new();
    for key in lines(file) {
        *counts.entry(key).or_default() += 1;
    }
    counts.retain(|_, count| *count > 1);
    assert!(counts.is_empty(), "second effects: {counts:?}");
    (done, in_doubt)
}

fn lines(file: &Path) -> Vec<String> {
    std::fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}
