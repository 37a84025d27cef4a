//! A command that is stopped may have acted, whatever it ends with. A time limit ends all of its processes.

use std::os::unix::process::CommandExt;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::common::{Bench, eventually, in_enough_time};

/// A command that has its effect, and ends with this code when it is asked to.
fn obedient(code: i32) -> String {
    format!("trap 'exit {code}' INT TERM HUP QUIT; echo ran >> runs; while [ -e runs ]; do sleep 0.02; done")
}

/// Whether a process is there and is not a zombie.
fn lives(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn pid_in(bench: &Bench, file: &str) -> i32 {
    eventually("the process tells its id", || bench.read(file).ends_with('\n'));
    bench.read(file).trim().parse().unwrap()
}

#[test]
fn a_command_that_ends_well_after_a_signal_is_in_doubt() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        for code in [0, 1] {
            let bench = Bench::new();
            let script = obedient(code);
            // Not even a code that is declared to have no effect clears it.
            let args = ["run", "--key", "a", "--fail-exit", "1", "--retries", "3", "--", "sh", "-c", &script];
            let running = bench.start(&args);
            eventually("the command runs", || bench.runs() == 1);
            running.signal(signal);
            let said = running.end().exits(79);
            let told = format!("interrupted by {signal} and ended with exit code {code}");
            assert!(said.err().contains(&told), "{}", said.err());
            bench.once(&args).exits(79);
            assert_eq!(bench.runs(), 1);
        }
    }
}

#[test]
fn a_terminals_interrupt_is_seen_however_fast_the_command_ends() {
    // The whole group gets the signal at once, and the command may be gone before `once` looks.
    for round in 0..12 {
        let bench = Bench::new();
        let script = "trap 'exit 0' INT; echo ran >> runs; while [ -e runs ]; do sleep 0.01; done";
        let mut process =
            bench.command(&["run", "--key", "a", "--", "sh", "-c", script]).process_group(0).spawn().unwrap();
        eventually("the command runs", || bench.runs() == 1);
        killpg(Pid::from_raw(i32::try_from(process.id()).unwrap()), Signal::SIGINT).unwrap();
        assert_eq!(process.wait().unwrap().code(), Some(79), "round {round}");
        assert_eq!(bench.state(&bench.newest()), "in_doubt");
    }
}

#[test]
fn a_command_that_ends_well_after_a_cancel_is_in_doubt() {
    for code in [0, 1] {
        let bench = Bench::new();
        let script = obedient(code);
        let args = ["run", "--key", "a", "--fail-exit", "1", "--", "sh", "-c", &script];
        let running = bench.start(&args);
        eventually("the command runs", || bench.runs() == 1);
        bench.once(&["cancel", &bench.newest()]).exits(0);
        let said = running.end().exits(79);
        assert!(said.err().contains("asked to stop and"), "{}", said.err());
        bench.once(&args).exits(79);
        assert_eq!(bench.runs(), 1);
    }
}

#[test]
fn a_user_signal_is_no_stop() {
    let bench = Bench::new();
    let script = "trap 'got=1' USR1; echo ran >> runs; until [ $got ]; do sleep 0.02; done";
    let running = bench.start(&["run", "--key", "a", "--", "sh", "-c", script]);
    eventually("the command runs", || bench.runs() == 1);
    running.signal(Signal::SIGUSR1);
    running.end().exits(0);
}

/// The effect of a process that outlives the command: it must not happen after a stop.
const LATER: &str = "echo $$ > later; while ! [ -e release ]; do sleep 0.02; done; echo ran >> runs";

#[test]
fn a_time_limit_ends_every_process_of_the_command() {
    let python = "import subprocess, time\n\
        subprocess.Popen(['sh', 'later.sh'], close_fds=True, start_new_session=True)\ntime.sleep(60)\n";
    for (name, command) in [
        ("child", "sh later.sh"),
        ("background", "sh later.sh & wait"),
        ("left behind", "sh later.sh & until [ -s later ]; do sleep 0.02; done"),
        ("own session", "setsid sh later.sh & sleep 60"),
        ("no descriptors", "exec python3 start.py"),
        ("twice removed", "(setsid sh later.sh > /dev/null 2>&1 &) & sleep 60"),
        ("ignores the request", "trap '' TERM; sh later.sh & wait"),
    ] {
        let script = format!("while ! [ -e later ]; do sleep 0.02; done & {command}");
        let args =
            |limit| ["run", "--key", "a", "--timeout", limit, "--wait", "0s", "--", "sh", "-c", &script];
        // The second process must have started when the time is over, which takes longer on a busy machine.
        let (bench, said, limit) = in_enough_time(|limit| {
            let bench = Bench::new();
            bench.write("later.sh", LATER).write("start.py", python);
            let said = bench.once(&args(limit));
            bench.read("later").ends_with('\n').then_some((bench, said, limit))
        });
        if name == "left behind" {
            // The command itself ended in time: what it left behind is its own business, and holds the lock.
            assert_eq!(said.exit, 0, "{name}: {}", said.err());
            kill(Pid::from_raw(pid_in(&bench, "later")), Signal::SIGKILL).unwrap();
            continue;
        }
        assert_eq!(said.exit, 10, "{name}: {}", said.err());
        assert!(!lives(pid_in(&bench, "later")), "{name}: the process goes on");
        bench.release();
        bench.once(&args(limit)).exits(79);
        assert_eq!(bench.runs(), 0, "{name}");
    }
}

#[test]
fn a_time_limit_leaves_older_processes_alone() {
    let bench = Bench::new();
    let line = "sleep 60 > /dev/null 2>&1 & echo $! > older; sleep 0.1; exec once run --key a --timeout 300ms -- sleep 60";
    bench.shell(line).exits(10);
    let older = pid_in(&bench, "older");
    assert!(lives(older), "it was there before the command");
    kill(Pid::from_raw(older), Signal::SIGKILL).unwrap();
}

#[test]
fn a_process_that_outlives_a_stopped_command_is_a_running_attempt() {
    let bench = Bench::new();
    bench.write("later.sh", format!("trap '' TERM\n{LATER}"));
    let script = "sh later.sh & wait";
    let probed = "test -s runs || exit 10";
    let args = [
        "run",
        "--key",
        "a",
        "--quarantine",
        "0s",
        "--probe",
        probed,
        "--wait",
        "0s",
        "--",
        "sh",
        "-c",
        script,
    ];
    let mut process = bench.command(&args).stderr(Stdio::null()).spawn().unwrap();
    let later = pid_in(&bench, "later");
    kill(Pid::from_raw(i32::try_from(process.id()).unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(process.wait().unwrap().code(), Some(79));
    // The shell is gone, its child still holds the lock: the probe's "no" does not count.
    assert!(lives(later));
    let said = bench.once(&args).exits(4);
    assert!(said.err().contains("still running"), "{}", said.err());
    assert_eq!(
        bench.once(&[&args[..1], &["--again"], &args[1..]].concat()).exit,
        4,
        "nor does the caller's word"
    );
    bench.release();
    eventually("the process ends", || !lives(later));
    bench.once(&args).exits(0);
    assert_eq!(bench.runs(), 1);
}

#[test]
fn a_reader_that_does_not_read_does_not_keep_the_end_from_being_recorded() {
    // More than a pipe holds, and then the end.
    let full = "echo ran >> runs; head -c 100000 /dev/zero; echo late >&2";
    for (key, flags, signal) in [
        ("signal", &[][..], Some(Signal::SIGTERM)),
        ("limit", &["--timeout", "1s"], None),
        ("json", &["--json"], Some(Signal::SIGTERM)),
    ] {
        let bench = Bench::new();
        let (json, flags) = if flags == ["--json"] { (flags, &[][..]) } else { (&[][..], flags) };
        let args = [json, &["run", "--key", key], flags, &["--", "sh", "-c", full]].concat();
        let mut command = bench.command(&args);
        let (reader, writer) = std::io::pipe().unwrap();
        command.stdout(writer).stderr(std::process::Stdio::null());
        let mut process = command.spawn().unwrap();
        drop(command);
        eventually("it runs", || bench.runs() == 1);
        eventually("its end is recorded", || bench.state(&bench.newest()) == "done");
        match signal {
            Some(signal) => {
                eventually("a signal ends it", || {
                    let pid = Pid::from_raw(i32::try_from(process.id()).unwrap());
                    kill(pid, signal).unwrap_or_default();
                    process.try_wait().unwrap().is_some()
                });
            }
            None => eventually("the time limit ends it", || process.try_wait().unwrap().is_some()),
        }
        drop(reader);
        assert_eq!((bench.state(&bench.newest()).as_str(), bench.runs()), ("done", 1), "{key}");
    }
}

#[test]
fn a_command_that_nobody_reads_is_stopped_by_its_time_limit_and_by_a_cancel() {
    for (key, flags, state) in [("limit", &["--timeout", "1s"][..], "in_doubt"), ("cancel", &[], "in_doubt")]
    {
        let bench = Bench::new();
        let line = "echo ran >> runs; yes; true";
        let mut command = bench.command(&[&["run", "--key", key], flags, &["--", "sh", "-c", line]].concat());
        let (out, err) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        command.stdout(out.1).stderr(err.1);
        let mut process = command.spawn().unwrap();
        drop(command);
        eventually("it runs", || bench.runs() == 1);
        if key == "cancel" {
            bench.once(&["cancel", key]);
        }
        eventually("its end is recorded", || bench.state(&bench.newest()) == state);
        drop((out.0, err.0));
        process.wait().unwrap();
    }
}

#[test]
fn a_slow_reader_gets_everything() {
    let bench = Bench::new();
    let line = "for i in 1 2 3 4 5 6 7 8; do head -c 30000 /dev/zero | tr '\\0' $i; echo $i >&2; [ $i != 2 ] || touch full; done";
    bench.script("out.sh", line);
    bench
        .shell("once run --key a -- ./out.sh 2>&1 | (until [ -e full ]; do sleep 0.02; done; cat > got)")
        .exits(0);
    let got = bench.read("got");
    for digit in '1'..='8' {
        assert_eq!(got.matches(digit).count(), 30_001, "{digit}");
    }
}
