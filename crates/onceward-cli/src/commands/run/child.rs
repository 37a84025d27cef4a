//! The command itself: started, watched, stopped, and its output relayed and recorded.

use std::cell::Cell;
use std::ffi::OsString;
use std::io::{ErrorKind, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, LazyLock, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use onceward::{Attempt, Blocking, Witness};
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::WithOrigin;
use signal_hook::low_level::siginfo::Cause;

use super::delivery::Delivery;
use super::family::{self, Family};
use super::keeper::Keeper;
use super::lookup::{self, Unstartable};
use super::outlet::Outlet;
use super::recording::{Recording, Stream};
use super::stdin::Feed;
use crate::cli::IfKilled;
use crate::environment::Environment;

/// How often to check whether the operation was asked to stop.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Time for a command to exit after SIGTERM, before SIGKILL.
const GRACE: Duration = Duration::from_secs(3);
/// How long output is read after the command has ended: a process that it left behind may keep the pipe open.
const OUTPUT_GRACE: Duration = Duration::from_secs(1);

/// A command to run.
pub(super) struct Child<'a> {
    pub(super) command: &'a [OsString],
    pub(super) stdin: Option<&'a Arc<[u8]>>,
    pub(super) timeout_ms: u64,
    pub(super) max_output: u64,
    pub(super) relay: Relay,
    pub(super) environment: &'a Environment,
    /// The working folder, if it is not the caller's.
    pub(super) folder: Option<&'a Path>,
    /// More variables for the command; one without a value is not passed on.
    pub(super) variables: &'a [(&'static str, Option<String>)],
    /// What the command shows that its envelope is its own.
    pub(super) witness: Option<Witness>,
    pub(super) keeper: Option<Keeping>,
}

/// What the lease keeper is started with, if one is needed.
pub(super) struct Keeping {
    pub(super) ledger: String,
    pub(super) lease_ms: u64,
    pub(super) if_killed: IfKilled,
}

/// Where the command's output goes as it arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Relay {
    /// To stdout and stderr.
    Both,
    /// Only stderr is relayed: stdout is for the answer.
    ErrOnly,
}

/// How the command ended.
pub(super) enum Finished {
    /// It was never started.
    NotStarted(Unstartable),
    /// It ended, with an exit code or by a signal, whether or not it was stopped.
    Ended { code: Option<i32>, signal: Option<String>, stopped: Option<Stopped>, output: Recording },
}

/// Why a command was stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stopped {
    /// It reached its time limit.
    TimedOut { after_ms: u64 },
    /// `once cancel` asked for it.
    Cancelled,
    /// This process got a signal that asks to end.
    Signal(String),
}

enum Event {
    Ended,
    OutputOver,
    Signal(i32, Sent),
}

/// Where a signal came from: the terminal sends it to the command as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    ByTerminal,
    ByProcess,
}

impl Child<'_> {
    pub(super) fn run(&self, attempt: &Attempt, ledger: &Blocking, delivery: &Delivery) -> Finished {
        let (events, happenings) = mpsc::channel();
        // From here on signals are passed on and do not end this process, because the record must be written.
        let Ok(signals) = watch_signals(&events) else {
            let reason = "cannot watch for signals".to_owned();
            return Finished::NotStarted(Unstartable { reason, exit_code: 126 });
        };
        let keeper = match self.start_keeper(attempt) {
            Ok(keeper) => keeper,
            Err(error) => {
                signals.close();
                let reason = format!("cannot start the process that renews its lease: {error}");
                return Finished::NotStarted(Unstartable { reason, exit_code: 126 });
            }
        };
        let mut child = match self.spawn(attempt, keeper.as_ref()) {
            Ok(child) => child,
            Err(error) => {
                signals.close();
                if let Some(keeper) = keeper {
                    keeper.dismiss();
                }
                return Finished::NotStarted(lookup::unstartable(&self.command[0], &error));
            }
        };
        let recording = Arc::new(Mutex::new(Recording::new(self.max_output)));
        let outlet = delivery.outlet();
        outlet.command_begins();
        if let Some(out) = child.process.stdout.take() {
            let to = (self.relay == Relay::Both).then(|| Arc::clone(outlet));
            relay_output(out, Stream::Out, to, &recording, &events);
        }
        if let Some(err) = child.process.stderr.take() {
            relay_output(err, Stream::Err, Some(Arc::clone(outlet)), &recording, &events);
        }
        let pid = Pid::from_raw(i32::try_from(child.process.id()).unwrap_or(i32::MAX));
        watch_end(pid, &events);
        drop(events);

        let streams_open = Cell::new(2);
        let family = Family::of(pid, keeper.as_ref().map(Keeper::pid));
        let watch = ChildMonitor {
            child: self,
            attempt,
            ledger,
            outlet,
            pid,
            family,
            begun: Instant::now(),
            streams_open,
        };
        let mut stopped = watch.until_ended(&happenings);
        outlet.command_ended();
        if matches!(stopped, Some(Stopped::TimedOut { .. } | Stopped::Cancelled)) {
            watch.end_the_family(&happenings);
        }
        watch.until_output_is_over(&happenings, &mut stopped);
        let unread = child.feed.map_or(0, |feed| feed.unread());
        // Reap it last: until then its process id cannot be reused, so a signal cannot reach another process.
        let status = child.process.wait();
        if let Some(keeper) = keeper {
            keeper.dismiss();
        }
        let asked = signals.close();
        let mut recording = std::mem::replace(
            &mut *recording.lock().unwrap_or_else(PoisonError::into_inner),
            Recording::new(0),
        );
        recording.unread_stdin(unread);
        // A terminal sends Ctrl-C to the command too, which may have ended before this process got the signal.
        let stopped = stopped.or_else(|| asks_to_end(asked));
        if stopped.is_some() {
            delivery.broken();
        }
        finished(status, stopped, recording)
    }

    fn start_keeper(&self, attempt: &Attempt) -> std::io::Result<Option<Keeper>> {
        let Some(Keeping { ledger, lease_ms, if_killed }) = &self.keeper else { return Ok(None) };
        Keeper::start(ledger.clone(), attempt, *lease_ms, *if_killed).map(Some)
    }

    fn spawn(&self, attempt: &Attempt, keeper: Option<&Keeper>) -> std::io::Result<Started> {
        match keeper {
            Some(keeper) => keeper.lend(|| self.start(attempt)),
            None => self.start(attempt),
        }
    }

    fn start(&self, attempt: &Attempt) -> std::io::Result<Started> {
        family::adopt_orphans();
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).envs(super::environment(attempt));
        command.envs([family::process_of(&self.environment.name_of(attempt.operation()))]);
        let parent = i32::try_from(std::process::id()).unwrap_or_default();
        let witness = lookup::program_of(self.command)
            .and_then(|program| onceward::witness_variable(parent, self.witness.as_ref()?, &program));
        match witness {
            Some(witness) => command.env(onceward::WITNESS, witness),
            None => command.env_remove(onceward::WITNESS),
        };
        for (name, value) in self.variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(folder) = self.folder {
            command.current_dir(folder);
        }
        self.environment.give_to(&mut command);
        crate::sealing::withhold_key(&mut command);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let Some(bytes) = self.stdin else {
            return Ok(Started { process: command.stdin(Stdio::inherit()).spawn()?, feed: None });
        };
        let (reader, writer) = std::io::pipe()?;
        let process = command.stdin(reader.try_clone()?).spawn()?;
        Ok(Started { process, feed: Some(Feed::begin(bytes, reader, writer)) })
    }
}

/// A command that was started.
struct Started {
    process: std::process::Child,
    feed: Option<Feed>,
}

fn finished(status: std::io::Result<ExitStatus>, stopped: Option<Stopped>, output: Recording) -> Finished {
    let (code, signal) = match status {
        Ok(status) => (status.code(), status.signal()),
        Err(_) => (None, None),
    };
    let signal = signal.and_then(|number| Signal::try_from(number).ok()).map(|signal| signal.to_string());
    Finished::Ended { code, signal, stopped, output }
}

/// The wait for a command that runs.
struct ChildMonitor<'a> {
    child: &'a Child<'a>,
    attempt: &'a Attempt,
    ledger: &'a Blocking,
    outlet: &'a Outlet,
    pid: Pid,
    family: Family,
    begun: Instant,
    /// How many of the command's two streams are still open.
    streams_open: Cell<u32>,
}

impl ChildMonitor<'_> {
    /// Waits until the command has ended; says why it was stopped, if it was.
    fn until_ended(&self, happenings: &Receiver<Event>) -> Option<Stopped> {
        let limit = (self.child.timeout_ms > 0).then(|| Duration::from_millis(self.child.timeout_ms));
        let mut stopped = None;
        let mut stop_at = limit.map(|limit| self.begun + limit);
        let mut told_to_end = false;
        let mut interrupts = 0;
        loop {
            let left = stop_at
                .map_or(POLL_INTERVAL, |at| at.saturating_duration_since(Instant::now()).min(POLL_INTERVAL));
            match happenings.recv_timeout(left) {
                Ok(Event::Ended) | Err(RecvTimeoutError::Disconnected) => return stopped,
                Ok(Event::OutputOver) => self.stream_is_over(),
                Ok(Event::Signal(number, sent)) => {
                    interrupts += u32::from(number == SIGINT);
                    stopped = stopped.or_else(|| asks_to_end(number));
                    self.pass_on(number, sent, interrupts);
                }
                Err(RecvTimeoutError::Timeout) => {
                    let out_of_time = stop_at.is_some_and(|at| Instant::now() >= at);
                    if !out_of_time && (stopped.is_some() || !self.cancel_requested()) {
                        continue;
                    }
                    if stopped.is_none() && !out_of_time {
                        self.say("once: this operation was asked to stop; stopping the command");
                        stopped = Some(Stopped::Cancelled);
                    }
                    stopped = stopped.or(Some(Stopped::TimedOut { after_ms: self.child.timeout_ms }));
                    if told_to_end {
                        self.family.kill();
                    } else {
                        self.family.ask_to_end();
                    }
                    told_to_end = true;
                    stop_at = Some(Instant::now() + GRACE);
                }
            }
        }
    }

    /// Ends the processes that a stopped command has left behind. A process that survives even this may still hold
    /// the attempt's lock, and the attempt then counts as running.
    fn end_the_family(&self, happenings: &Receiver<Event>) {
        let kill_at = Instant::now() + GRACE;
        while self.family.any_left() && Instant::now() < kill_at + GRACE {
            if Instant::now() < kill_at {
                self.family.ask_to_end();
            } else {
                self.family.kill();
            }
            match happenings.recv_timeout(Duration::from_millis(20)) {
                Ok(Event::OutputOver) => self.stream_is_over(),
                Ok(Event::Ended | Event::Signal(..)) => {}
                // There is nothing left to report; the processes may need a moment longer.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(Duration::from_millis(20)),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn until_output_is_over(&self, happenings: &Receiver<Event>, stopped: &mut Option<Stopped>) {
        let end = Instant::now() + OUTPUT_GRACE;
        while self.streams_open.get() > 0 {
            match happenings.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(Event::OutputOver) => self.stream_is_over(),
                Ok(Event::Signal(number, sent)) => {
                    if stopped.is_none() {
                        *stopped = asks_to_end(number);
                    }
                    self.pass_on(number, sent, 0);
                }
                Ok(Event::Ended) => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn stream_is_over(&self) {
        self.streams_open.set(self.streams_open.get().saturating_sub(1));
    }

    /// Passes a signal on. The command handles the first Ctrl-C; the second sends SIGTERM, the third SIGKILL.
    fn pass_on(&self, number: i32, sent: Sent, interrupts: u32) {
        match (number, interrupts) {
            (SIGINT, 2) => {
                self.say("once: asking the command to end; the record will be written");
                self.send(Signal::SIGTERM);
            }
            (SIGINT, 3..) => self.send(Signal::SIGKILL),
            (_, _) if sent == Sent::ByTerminal => {}
            (_, _) => {
                if let Ok(signal) = Signal::try_from(number) {
                    self.send(signal);
                }
            }
        }
    }

    /// Prints a message after the output so far. Does not wait for its reader.
    fn say(&self, text: &str) {
        self.outlet.put(Stream::Err, format!("{text}\n").as_bytes());
    }

    fn send(&self, signal: Signal) {
        // The command has not been reaped yet, so the id is still its own. If it has ended, the signal does
        // nothing.
        drop(kill(self.pid, signal).map_err(std::io::Error::from));
    }

    fn cancel_requested(&self) -> bool {
        self.ledger.wait_for(self.attempt.check_cancel_requested()).unwrap_or(false)
    }
}

/// Whether a signal asks the command to end. User signals do not, and 0 is not a signal.
fn asks_to_end(number: i32) -> Option<Stopped> {
    match number {
        0 | SIGUSR1 | SIGUSR2 => None,
        _ => Some(Stopped::Signal(
            Signal::try_from(number).map_or_else(|_| "a signal".to_owned(), |s| s.to_string()),
        )),
    }
}

/// The signals that ask a process to end.
const ASK_TO_END: [i32; 4] = [SIGTERM, SIGINT, SIGHUP, SIGQUIT];

/// Whether signals end this process again. They did before the first command, and do when its end is recorded.
static RECORDED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

static DEFAULT: Once = Once::new();

/// The end of the command is recorded: from now on a signal ends this process, even while it waits for a reader.
pub(super) fn outcome_is_recorded() {
    RECORDED.store(true, Ordering::SeqCst);
}

/// The signal handler.
struct Signals {
    handle: signal_hook::iterator::Handle,
    /// The last signal that asked to end, stored when it arrived. The thread that reports it may be late.
    asked: Arc<AtomicUsize>,
    notes: Vec<SigId>,
}

impl Signals {
    /// Stops watching; returns the signal that asked to end, or 0.
    fn close(self) -> i32 {
        self.handle.close();
        for note in self.notes {
            signal_hook::low_level::unregister(note);
        }
        i32::try_from(self.asked.load(Ordering::SeqCst)).unwrap_or(0)
    }
}

fn watch_signals(events: &Sender<Event>) -> std::io::Result<Signals> {
    let asked = Arc::new(AtomicUsize::new(0));
    let mut notes = Vec::new();
    RECORDED.store(false, Ordering::SeqCst);
    DEFAULT.call_once(|| {
        for number in ASK_TO_END {
            // Without it, a signal is ignored while the answer is written, as if it had come earlier.
            drop(signal_hook::flag::register_conditional_default(number, Arc::clone(&RECORDED)));
        }
    });
    for number in ASK_TO_END {
        let value = usize::try_from(number).unwrap_or(0);
        notes.push(signal_hook::flag::register_usize(number, Arc::clone(&asked), value)?);
    }
    let watched = ASK_TO_END.into_iter().chain([SIGUSR1, SIGUSR2]);
    let mut signals = SignalsInfo::<WithOrigin>::new(watched)?;
    let handle = signals.handle();
    let events = events.clone();
    std::thread::spawn(move || {
        for origin in &mut signals {
            let by_terminal = matches!(origin.cause, Cause::Kernel);
            let sent = if by_terminal { Sent::ByTerminal } else { Sent::ByProcess };
            if events.send(Event::Signal(origin.signal, sent)).is_err() {
                return;
            }
        }
    });
    Ok(Signals { handle, asked, notes })
}

/// Reports the end of the command without reaping it, so that its id cannot be reused before the last signal.
fn watch_end(pid: Pid, events: &Sender<Event>) {
    let events = events.clone();
    std::thread::spawn(move || {
        while waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT)
            == Err(nix::errno::Errno::EINTR)
        {}
        drop(events.send(Event::Ended));
    });
}

/// Relays output as it arrives, and records both streams in order.
fn relay_output(
    mut from: impl Read + Send + 'static,
    stream: Stream,
    to: Option<Arc<Outlet>>,
    recording: &Arc<Mutex<Recording>>,
    events: &Sender<Event>,
) {
    let (recording, events) = (Arc::clone(recording), events.clone());
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let length = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            to.iter().for_each(|outlet| outlet.wait_for_room());
            let mut recording = recording.lock().unwrap_or_else(PoisonError::into_inner);
            recording.push(stream, &buffer[..length]);
            // Within the lock, so that the order is the recorded one.
            to.iter().for_each(|outlet| outlet.put(stream, &buffer[..length]));
        }
        drop(events.send(Event::OutputOver));
    });
}
