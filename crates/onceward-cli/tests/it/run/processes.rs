//! Several processes, and processes that die.

use insta::assert_snapshot;
use nix::sys::signal::Signal;
use serde_json::json;

use crate::common::{Bench, COUNTED, HELD, eventually};

#[test]
fn of_many_at_once_one_runs_and_all_get_its_result() {
    let bench = Bench::new();
    let script = format!("{HELD}; echo result");
    let processes: Vec<_> =
        (0..8).map(|_| bench.start(&["run", "--key", "a", "--", "sh", "-c", &script])).collect();
    eventually("all are at work", || processes.iter().all(|process| process.has_open("once.db")));
    bench.release();
    for process in processes {
        assert_eq!(process.end().exits(0).out(), "result");
    }
    assert_eq!(bench.runs(), 1);
}

#[test]
fn who_does_not_wait_is_told_to_come_again() {
    let bench = Bench::new();
    let running = bench.start_held("a");
    let said = bench.once(&["run", "--key", "a", "--wait", "0s", "--", "sh", "-c", HELD]).exits(4);
    assert_snapshot!(said.err(), @r"
    once: IN_PROGRESS attempt 1 of this operation is still running for another caller
    once: happened: unknown, ran: no, retryable: no
    once: next: wait for it, then make the same call:
    once:   once --ledger sqlite:…/once.db wait op_…
    ");
    let error = bench.json(&["run", "--key", "a", "--wait", "0s", "--", "sh", "-c", HELD])["error"].clone();
    assert_eq!((&error["retryable"], error.get("retry_after_ms")), (&json!(false), None), "{error}");
    bench.release();
    running.end().exits(0);
}

#[test]
fn a_signal_is_passed_to_the_command_which_may_handle_it() {
    let bench = Bench::new();
    let script = "trap 'echo bye; exit 5' TERM; echo ran >> runs; while [ -e runs ]; do sleep 0.02; done";
    let running = bench.start(&["run", "--key", "a", "--", "sh", "-c", script]);
    eventually("the command runs", || bench.runs() == 1);
    running.signal(Signal::SIGTERM);
    let said = running.end().exits(79);
    assert_eq!(said.out(), "bye");
    assert!(said.err().contains("interrupted by SIGTERM and ended with exit code 5"), "{}", said.err());
    assert_eq!(bench.state(&bench.newest()), "in_doubt", "it may have acted before it was stopped");
}

#[test]
fn a_command_that_dies_of_the_signal_is_in_doubt() {
    let bench = Bench::new();
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1] {
        let bench = Bench::new();
        let running = bench.start_held("a");
        running.signal(signal);
        let said = running.end().exits(79);
        assert!(said.err().contains(&format!("killed by {signal}")), "{}", said.err());
        assert_eq!(bench.state(&bench.newest()), "in_doubt");
    }
    assert!(bench.listing().is_empty());
}

#[test]
fn two_interrupts_end_the_command_and_keep_the_record() {
    let bench = Bench::new();
    let script = "trap 'echo no >> noes' INT; echo ran >> runs; while [ -e runs ]; do sleep 0.02; done";
    let running = bench.start(&["run", "--key", "a", "--", "sh", "-c", script]);
    eventually("the command runs", || bench.runs() == 1);
    running.signal(Signal::SIGINT);
    eventually("the first interrupt is the command's", || !bench.read("noes").is_empty());
    running.signal(Signal::SIGINT);
    let said = running.end().exits(79);
    assert_snapshot!(said.err(), @r"
    once: asking the command to end; the record will be written
    once: IN_DOUBT the command was interrupted by SIGINT and was killed by SIGTERM. It may have taken effect
    once: happened: unknown, ran: yes, retryable: no
    once: next: check first whether it happened; do not repeat it. A person or a probe must record the finding:
    once:   once --ledger sqlite:…/once.db show op_…
    ");
    assert_eq!(bench.state(&bench.newest()), "in_doubt");
    bench.once(&["run", "--key", "a", "--", "sh", "-c", script]).exits(79);
    assert_eq!(bench.runs(), 1);
}

#[test]
fn a_third_interrupt_ends_what_ignores_the_others() {
    let bench = Bench::new();
    let script = "trap 'echo >> noes' INT TERM; echo ran >> runs; while [ -e runs ]; do sleep 0.02; done";
    let running = bench.start(&["run", "--key", "a", "--", "sh", "-c", script]);
    eventually("the command runs", || bench.runs() == 1);
    for seen in 1..=2 {
        running.signal(Signal::SIGINT);
        eventually("the command has seen it", || bench.read("noes").lines().count() == seen);
    }
    running.signal(Signal::SIGINT);
    let said = running.end().exits(79);
    assert!(said.err().contains("killed by SIGKILL"), "{}", said.err());
}

#[test]
fn a_command_outlives_its_killed_wrapper_and_is_not_overtaken() {
    let bench = Bench::new();
    let wrapper = bench.start_held("a");
    let id = bench.newest();
    wrapper.kill();
    assert_eq!(bench.state(&id), "running", "the command lives on, and so does its attempt");
    bench.once(&["run", "--key", "a", "--wait", "50ms", "--", "sh", "-c", HELD]).exits(4);
    let mut waiting = bench.start(&["wait", &id]);
    assert!(!waiting.is_over());
    bench.release();
    let said = waiting.end().exits(79);
    assert!(said.err().contains("IN_DOUBT"), "{}", said.err());
    let refused = bench.once(&["run", "--key", "a", "--", "sh", "-c", HELD]).exits(79);
    assert_snapshot!(refused.err(), @r"
    once: IN_DOUBT attempt 1 is in doubt: its owner ended before it reported back. It may have taken effect; nothing was run
    once: happened: unknown, ran: no, retryable: no
    once: next: check first whether it happened; do not repeat it. A person or a probe must record the finding:
    once:   once --ledger sqlite:…/once.db show op_…
    ");
    assert_eq!(bench.runs(), 1);
}

#[test]
fn what_a_dead_wrapper_left_is_in_doubt_everywhere_before_anybody_writes_it_down() {
    let bench = Bench::new();
    let wrapper = bench.start_held("a");
    let id = bench.newest();
    wrapper.kill();
    bench.release();
    eventually("its end is seen", || bench.state(&id) == "in_doubt");
    assert_eq!(bench.json(&["wait", &id])["operation"]["state"], "in_doubt");
    assert_eq!(bench.json(&["cancel", &id])["operation"]["state"], "in_doubt");
    assert_eq!(bench.json(&["stats"])["data"]["by_state"]["in_doubt"], 1);
    assert_eq!(bench.json(&["gc", "--dry-run"])["data"]["doubted"], 1);
    assert_eq!(bench.json(&["gc"])["data"]["doubted"], 1);
    assert_eq!(bench.json(&["gc"])["effect"], "noop");
}

#[test]
fn an_idempotent_command_whose_wrapper_was_killed_is_run_again_when_it_has_ended() {
    let bench = Bench::new();
    let wrapper = bench.start_held("a");
    wrapper.kill();
    let again = bench.start(&["run", "--key", "a", "--class", "idempotent", "--", "sh", "-c", HELD]);
    bench.release();
    again.end().exits(0);
    assert_eq!(bench.runs(), 2);
}

#[test]
fn what_a_command_leaves_behind_does_not_hold_up_the_answer() {
    let bench = Bench::new();
    let script = "echo ran >> runs; (while [ -e runs ]; do sleep 0.05; done) & echo done";
    let said = bench.once(&["run", "--key", "a", "--", "sh", "-c", script]).exits(0);
    assert_eq!(said.out(), "done");
    bench.once(&["run", "--key", "a", "--", "sh", "-c", script]).exits(0);
    assert_eq!(bench.runs(), 1);
}

#[test]
fn a_ledger_that_many_make_at_once_is_one() {
    let bench = Bench::new();
    let keys: Vec<String> = (0..8).map(|n| format!("k{n}")).collect();
    let processes: Vec<_> =
        keys.iter().map(|key| bench.start(&["run", "--key", key, "--", "sh", "-c", COUNTED])).collect();
    for process in processes {
        process.end().exits(0);
    }
    assert_eq!((bench.runs(), bench.json(&["stats"])["data"]["operations"].as_u64()), (8, Some(8)));
}

#[test]
fn a_no_does_not_count_while_a_process_without_the_lock_still_runs() {
    let bench = Bench::new();
    // It gives up everything that it inherited but its environment, as a daemon does.
    bench.write(
        "act.py",
        "import subprocess, sys, time, os\n\
         code = 'import os, time\\nwhile not os.path.exists(\"release\"): time.sleep(0.02)\\n'\\\n\
         'open(\"runs\", \"a\").write(\"ran\\\\n\")'\n\
         subprocess.Popen([sys.executable, '-c', code], close_fds=True, start_new_session=True,\n\
         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n\
         sys.exit(1)\n",
    );
    let call = || {
        bench
            .shell("once run --key a --quarantine 0s --probe 'grep -q ran runs || exit 10' -- python3 act.py")
    };
    call().exits(79);
    call().exits(79);
    assert_eq!(bench.runs(), 0);
    let said = bench.shell("once settle a --probe 'exit 10'");
    assert!(said.exit != 0 && said.err().contains("still runs"), "{}", said.err());
    bench.release();
    eventually("the process acts", || bench.runs() == 1);
    eventually("the probe finds it", || call().exit == 0);
    assert_eq!(bench.runs(), 1);
}

#[test]
fn a_no_counts_when_all_processes_have_ended() {
    let bench = Bench::new();
    let line = "once run --key a --quarantine 0s --probe 'exit 10' -- sh -c 'echo ran >> runs; exit 1'";
    bench.shell(line).exits(79);
    bench.shell(line).exits(79);
    assert_eq!(bench.runs(), 2);
}
