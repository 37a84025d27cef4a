//! Many processes that make durable first calls on one ledger: each with the file open, all through one `once serve` on
//! a Unix socket, and the same while that server is killed again and again. One JSON line per measurement.
//!
//! `bench/processes` runs it. `BENCH_ONCE` is the program `once`, `BENCH_PROCESSES` the number of processes (16),
//! `BENCH_ROUNDS` how often they alternate (3). `-- member URL FIRST SECONDS` is one process.
#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a program that prints figures"
)]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::{ROUND, call};
use onceward::{IfMissing, Ledger, State};
use onceward_store::StoreUrl;
use onceward_store::sqlite::{SqliteOptions, SqliteStore};

/// Keys of different processes do not meet.
const KEYS_EACH: u64 = 10_000_000;
/// How long a server lives that is to be killed.
const LIFE: Duration = Duration::from_millis(400);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        [_, "member", url, first, seconds] => member(url, first.parse().unwrap(), seconds.parse().unwrap()),
        _ => compare(),
    }
}

/// The rounds alternate, so that a slow minute of the machine affects all alike.
fn compare() {
    let number =
        |name: &str, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (processes, rounds) = (number("BENCH_PROCESSES", 16), number("BENCH_ROUNDS", 3));
    let only = std::env::var("BENCH_ONLY").unwrap_or_default();
    let folder = std::env::var_os("BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let folder = tempfile::tempdir_in(folder).expect("a folder to measure in");
    for round in 1..=rounds {
        for peer in ["file", "socket", "killed"].into_iter().filter(|peer| peer.contains(&only)) {
            let file = folder.path().join(format!("{peer}-{round}.db"));
            drop(SqliteStore::open(SqliteOptions::new(&file)).expect("a ledger"));
            let socket = folder.path().join(format!("{round}.sock"));
            let server = (peer != "file").then(|| Server::start(&socket, &file));
            let url = match &server {
                Some(_) => format!("unix:{}", socket.display()),
                None => format!("sqlite:{}", file.display()),
            };
            let killer = server.map(|server| Killer::start(server, peer == "killed"));
            let (calls, seconds, micros) = together(&url, processes);
            let kills = killer.map_or(0, Killer::end);
            check(&file, calls);
            let at = |share: f64| micros[((micros.len() - 1) as f64 * share) as usize];
            println!(
                "{{\"peer\":\"onceward, {peer}\",\"mode\":\"first\",\"processes\":{processes},\"round\":{round},\
                 \"operations\":{calls},\"kills\":{kills},\"per_second\":{:.0},\"p50_us\":{:.1},\"p99_us\":{:.1}}}",
                calls as f64 / seconds,
                at(0.5),
                at(0.99)
            );
        }
    }
}

/// Runs the processes, and returns how many calls they made, in which time, and how long each call took.
fn together(url: &str, processes: u64) -> (usize, f64, Vec<f64>) {
    let members: Vec<Child> = (0..processes)
        .map(|number| {
            let words = ["member", url, &(number * KEYS_EACH).to_string(), &ROUND.as_secs_f64().to_string()];
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
            command.spawn().expect("a process")
        })
        .collect();
    let mut members: Vec<_> = members.into_iter().map(|member| (member, String::new())).collect();
    // Each reports that it has the ledger open; then all start.
    let mut outputs = Vec::new();
    for (member, ready) in &mut members {
        let mut output = BufReader::new(member.stdout.take().unwrap());
        output.read_line(ready).unwrap();
        outputs.push(output);
    }
    let begun = Instant::now();
    members.iter_mut().for_each(|(member, _)| drop(member.stdin.take()));
    let mut micros = Vec::new();
    for ((mut member, _), mut output) in members.into_iter().zip(outputs) {
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        micros.extend(text.split_whitespace().map(|word| word.parse::<f64>().unwrap()));
        assert!(member.wait().unwrap().success(), "a process failed");
    }
    let seconds = begun.elapsed().as_secs_f64();
    micros.sort_by(f64::total_cmp);
    (micros.len(), seconds, micros)
}

/// One process: first calls, one after the other.
fn member(url: &str, first: u64, seconds: f64) {
    let store = StoreUrl::parse(url).unwrap().open_with(IfMissing::Fail, None).expect("the ledger");
    let ledger = Ledger::new(store).blocking();
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    let (begun, limit) = (Instant::now(), Duration::from_secs_f64(seconds));
    let mut micros = String::new();
    for number in first.. {
        let start = Instant::now();
        if start - begun >= limit {
            break;
        }
        call(&ledger, number);
        micros.push_str(&format!("{:.1} ", start.elapsed().as_secs_f64() * 1e6));
    }
    println!("{micros}");
}

/// Every acknowledged call is in the file.
fn check(file: &Path, calls: usize) {
    let ledger = Ledger::new(SqliteStore::open(SqliteOptions::new(file)).expect("the ledger"));
    let counts = pollster::block_on(ledger.admin().counts()).expect("the counts");
    assert_eq!(counts.get(&State::Done).copied().unwrap_or(0), calls as u64, "acknowledged and stored");
}

/// A `once serve` in a process of its own.
struct Server {
    socket: PathBuf,
    file: PathBuf,
    process: Child,
}

impl Server {
    fn start(socket: &Path, file: &Path) -> Self {
        let process = Self::spawn(socket, file);
        while UnixStream::connect(socket).is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { socket: socket.to_owned(), file: file.to_owned(), process }
    }

    fn spawn(socket: &Path, file: &Path) -> Child {
        let once = std::env::var_os("BENCH_ONCE").expect("BENCH_ONCE is the program `once`");
        let mut command = Command::new(once);
        command.arg("--ledger").arg(format!("sqlite:{}", file.display())).arg("serve");
        command.arg("--socket").arg(socket).stderr(Stdio::null());
        command.spawn().expect("a server")
    }

    /// Kills it without warning, and starts it again.
    fn kill(&mut self) {
        self.process.kill().expect("it runs");
        drop(self.process.wait());
        self.process = Self::spawn(&self.socket, &self.file);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Keeps a server, and kills it now and then if it is asked to.
struct Killer {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Killer {
    fn start(mut server: Server, kills: bool) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            let mut killed = 0;
            loop {
                std::thread::sleep(LIFE);
                if is_over.load(Ordering::Relaxed) {
                    return killed;
                }
                if kills {
                    server.kill();
                    killed += 1;
                }
            }
        });
        Self { ends, thread }
    }

    /// Ends the server. Returns how often it was killed.
    fn end(self) -> u64 {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().expect("it does not panic")
    }
}
