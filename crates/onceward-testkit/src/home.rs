//! The folder in which a test process keeps its servers, and the clean-up.
//!
//! A server dies with the process that started it, even if that process is killed: the kernel signals it when the
//! *thread* that started it is gone. Test threads are short-lived, so one permanent thread starts all servers. A
//! shell that waits for the end of its input removes the folder, so a killed test leaves nothing behind.
//!
//! The folder is in memory where there is room. What a server has acknowledged survives its own kill there as on a
//! disk, and a sync costs nothing. A benchmark wants the disk: see [`on_disk`].

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::statvfs::{Statvfs, statvfs};
use nix::unistd::{Pid, User, geteuid};

/// How long a server may take to start, stop or replicate, and a test waits for an event. Only a failing test waits
/// that long, and a sentinel on a very busy machine rests for half a minute before it looks again.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(180);
/// Below the kernel's range for outgoing connections, so that a restarted server finds its port free, and with room
/// for the bus port of a cluster node, ten thousand above.
const PORTS: std::ops::Range<u64> = 10_300..22_000;
/// The distance between the port of a cluster node and its bus port.
const BUS: u16 = 10_000;

/// Memory that is mounted as a folder, and how much of it must be free: a dozen servers of a few tests at once.
const MEMORY: &str = "/dev/shm";
const ROOM: u64 = 4 << 30;

static HOME: OnceLock<Home> = OnceLock::new();
static ON_DISK: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);

struct Home {
    folder: PathBuf,
    jobs: Mutex<Sender<SpawnRequest>>,
    /// Its input ends with this process.
    _keeper: Child,
}

struct SpawnRequest {
    command: Command,
    started: Sender<std::io::Result<Child>>,
}

impl Home {
    fn make() -> Self {
        let made = tempfile::Builder::new().prefix("onceward-testkit-").tempdir_in(place());
        let folder = must(made, "cannot create a folder for the servers").keep();
        // PostgreSQL may run as another user, which needs access to the folder.
        let open = std::fs::Permissions::from_mode(0o755);
        must(std::fs::set_permissions(&folder, open), "cannot open the servers' folder");
        // A PostgreSQL that was killed leaves a segment of shared memory. The machine has room for a few thousand.
        let remove = "cat >/dev/null; \
             for lock in \"$1\"/*/data/postmaster.pid; do ipcrm -m \"$(sed -n '7s/.* //p' \"$lock\")\"; done; \
             for i in 1 2 3 4 5 6 7 8 9 10; do rm -rf \"$1\" && exit; sleep 0.2; done";
        let mut keeper = Command::new("sh");
        keeper.args(["-c", remove, "sh"]).arg(&folder).process_group(0);
        keeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let _keeper = must(keeper.spawn(), "cannot start sh");
        let (jobs, wanted) = mpsc::channel::<SpawnRequest>();
        let start = move || {
            for mut job in wanted {
                // The requester may have given up.
                drop(job.started.send(job.command.spawn()));
            }
        };
        must(
            std::thread::Builder::new().name("harness".into()).spawn(start),
            "cannot start the harness' thread",
        );
        Self { folder, jobs: Mutex::new(jobs), _keeper }
    }
}

/// Keeps the data of all servers on disk, for programs that measure or break it. Call it before the first server is
/// started.
pub fn on_disk() {
    ON_DISK.store(true, Ordering::SeqCst);
}

/// Where the folder is made.
fn place() -> PathBuf {
    let in_memory = !ON_DISK.load(Ordering::SeqCst) && statvfs(MEMORY).is_ok_and(|memory| has_room(&memory));
    if in_memory { PathBuf::from(MEMORY) } else { std::env::temp_dir() }
}

fn has_room(memory: &Statvfs) -> bool {
    memory.blocks_available().saturating_mul(memory.fragment_size()) >= ROOM
}

fn home() -> &'static Home {
    HOME.get_or_init(Home::make)
}

/// Returns the value, or panics with a message that names what failed.
#[track_caller]
pub(crate) fn must<T, E: std::fmt::Display>(result: Result<T, E>, what: &str) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{what}: {error}"),
    }
}

/// A name that is unique in this process, prefixed with the process id.
pub(crate) fn unique() -> String {
    format!("t{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// A new folder for a test, in memory where there is room. It is removed when it is dropped, or when this process is
/// gone.
#[must_use]
#[track_caller]
pub fn scratch() -> tempfile::TempDir {
    must(tempfile::tempdir_in(&home().folder), "cannot create a folder for a test")
}

/// Removes the folder of a test, and panics if a process that was started in it is still running.
///
/// A command that waits for a file ends when its folder goes, so it gets a moment. What is left then is killed.
pub fn leave(folder: tempfile::TempDir) {
    let path = folder.path().to_owned();
    drop(folder);
    let begun = Instant::now();
    let mut left = processes_in(&path);
    while !left.is_empty() && begun.elapsed() < TIMEOUT {
        std::thread::sleep(Duration::from_millis(5));
        left = processes_in(&path);
    }
    for (pid, _) in &left {
        // It may have ended just now.
        drop(kill(Pid::from_raw(*pid), Signal::SIGKILL).map_err(std::io::Error::from));
    }
    assert!(left.is_empty() || std::thread::panicking(), "the test left processes behind: {left:?}");
}

/// The processes that work in a folder, or below it, with their command lines.
fn processes_in(folder: &Path) -> Vec<(i32, String)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let inside = |entry: &std::fs::DirEntry| {
        std::fs::read_link(entry.path().join("cwd"))
            .is_ok_and(|at| at.starts_with(folder) || is_gone(&at, folder))
    };
    let named = |entry: std::fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        Some((pid, String::from_utf8_lossy(&line).replace('\0', " ")))
    };
    entries.filter(inside).filter_map(named).collect()
}

/// The kernel's name for a folder that was removed.
fn is_gone(at: &Path, folder: &Path) -> bool {
    at.to_str()
        .and_then(|at| at.strip_suffix(" (deleted)"))
        .is_some_and(|at| Path::new(at).starts_with(folder))
}

/// The path of a new folder for one server.
pub(crate) fn folder(what: &str) -> PathBuf {
    home().folder.join(format!("{what}-{}", unique()))
}

/// Creates a folder that is owned by the servers' user.
pub(crate) fn make_folder(folder: &Path) {
    must(std::fs::create_dir_all(folder), &format!("cannot create {}", folder.display()));
    if let Some(user) = other_user() {
        let given = std::os::unix::fs::chown(folder, Some(user.uid.as_raw()), Some(user.gid.as_raw()));
        must(given, &format!("cannot give {} to {}", folder.display(), user.name));
    }
}

/// PostgreSQL refuses to run as root; then it runs as the user of its package.
fn other_user() -> Option<User> {
    if !geteuid().is_root() {
        return None;
    }
    let user = must(User::from_name("postgres"), "cannot read the users of this machine");
    assert!(
        user.is_some(),
        "there is no user `postgres`: install the Debian package `postgresql`, or run scripts/test"
    );
    user
}

/// The user that a program runs as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunAs {
    /// The user of the test.
    CurrentUser,
    /// A user other than root.
    NotRoot,
}

/// A command from a package, to be run as `who`. It dies with this process.
pub(crate) fn command(program: &str, package: &str, who: RunAs) -> Command {
    command_at(&find(program, package), who)
}

/// The same for a program whose path is known.
pub(crate) fn command_at(program: &Path, who: RunAs) -> Command {
    let mut command = Command::new(find("setpriv", "util-linux"));
    command.args(["--pdeathsig", "KILL"]);
    if let (RunAs::NotRoot, Some(user)) = (who, other_user()) {
        command.args(["--reuid", &user.uid.to_string(), "--regid", &user.gid.to_string(), "--clear-groups"]);
    }
    command.arg("--").arg(program).stdin(Stdio::null()).current_dir("/");
    command
}

/// The path of a program. Debian keeps PostgreSQL's server programs in a folder named after the version.
pub(crate) fn find(program: &str, package: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<PathBuf> = versions.map(|version| version.path()).collect();
    versions.sort_by_key(|path| {
        path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse::<u32>().ok())
    });
    let newest = versions.into_iter().rev().map(|version| version.join("bin"));
    let usual = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let known = newest.chain(usual).map(|folder| folder.join(program)).find(|path| path.exists());
    known.or_else(|| on_path(program)).unwrap_or_else(|| {
        panic!("{program} is missing: install the Debian package `{package}`, or run scripts/test")
    })
}

fn on_path(program: &str) -> Option<PathBuf> {
    let output = Command::new("sh").args(["-c", "command -v \"$1\"", "sh", program]).output().ok()?;
    let path = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| PathBuf::from(path.trim()))
}

/// Starts a process that lives until it is ended or this process is gone.
pub(crate) fn spawn(mut command: Command) -> Child {
    command.process_group(0);
    let words = format!("{command:?}");
    let (started, answer) = mpsc::channel();
    let jobs = home().jobs.lock().unwrap_or_else(PoisonError::into_inner);
    must(jobs.send(SpawnRequest { command, started }), "the harness' thread is gone");
    drop(jobs);
    must(must(answer.recv(), "the harness' thread is gone"), &words)
}

/// Runs a command to completion; it must succeed.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> String {
    let output = must(command.output(), &format!("{command:?}"));
    let Output { status, stdout, stderr } = &output;
    let said = String::from_utf8_lossy(stderr);
    assert!(status.success(), "{command:?}: {status}: {}{said}", String::from_utf8_lossy(stdout));
    String::from_utf8_lossy(stdout).trim_end().to_owned()
}

/// A port that no other test takes, also while nothing listens on it: a server that is stopped for a while comes back
/// to its own port.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) number: u16,
    /// Other processes see it too. It ends with this value, or with this process.
    _reserved: UnixListener,
}

/// Reserves a port that is free now, together with its bus port.
pub(crate) fn reserve_port() -> Port {
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let span = PORTS.end - PORTS.start;
    // Bounded: the range is never that full on a sane machine.
    for _ in 0..1_000 {
        let port = PORTS.start + RandomState::new().build_hasher().finish() % span;
        if let Ok(number) = u16::try_from(port)
            && let Ok(reserved) = SocketAddr::from_abstract_name(format!("onceward-port-{number}"))
                .and_then(|name| UnixListener::bind_addr(&name))
            && free(number)
            && free(number + BUS)
        {
            return Port { number, _reserved: reserved };
        }
    }
    panic!("no free port was found between {} and {}", PORTS.start, PORTS.end)
}

/// Polls until the condition holds, and panics if that takes longer than three minutes.
#[track_caller]
pub fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < TIMEOUT, "waited {} s until {what}", TIMEOUT.as_secs());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The same on a runtime.
///
/// # Panics
/// If it does not become so in time.
pub async fn until(what: &str, mut so: impl AsyncFnMut() -> bool) {
    found(what, async || so().await.then_some(())).await;
}

/// Waits until there is a value.
///
/// # Panics
/// If there is none in time.
pub async fn found<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(begun.elapsed() < TIMEOUT, "waited {} s until {what}", TIMEOUT.as_secs());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_reserved_while_nothing_listens_on_it() {
        let port = reserve_port();
        let name = SocketAddr::from_abstract_name(format!("onceward-port-{}", port.number)).unwrap();
        assert!(TcpListener::bind(("127.0.0.1", port.number)).is_ok(), "nothing listens");
        assert!(UnixListener::bind_addr(&name).is_err(), "it is reserved");
        drop(port);
        assert!(UnixListener::bind_addr(&name).is_ok(), "it is free again");
    }
}
