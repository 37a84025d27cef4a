//! `once` with its ledger on a server.

use std::process::Command;

use insta::assert_snapshot;
use nix::sys::signal::Signal;
use onceward::{Ledger, OperationId};
use onceward_testkit::{Postgres, Redis, faketime};

use crate::common::{Bench, COUNTED, HELD, Running, Said, eventually};

/// A ledger on each kind of server, with nothing in it.
fn servers() -> [String; 2] {
    [Postgres::shared().fresh(), Redis::shared().fresh()]
}

#[test]
fn a_retry_is_a_noop_on_every_server() {
    for url in servers() {
        let bench = Bench::new();
        let run = ["run", "--json", "--ledger", &url, "--key", "k", "--", "sh", "-c", COUNTED];
        let first = bench.once(&run).exits(0).json();
        let second = bench.once(&run).exits(0).json();
        assert_eq!((&first["effect"], &second["effect"]), (&"updated".into(), &"noop".into()), "{url}");
        assert_eq!(first["data"], second["data"], "{url}");
        assert_eq!(bench.runs(), 1, "{url}");
        let id = first["operation"]["id"].as_str().unwrap();
        for command in [
            &["show", id][..],
            &["ls"],
            &["report"],
            &["cost"],
            &["stats"],
            &["gc"],
            &["wait", id],
            &["doctor"],
        ] {
            bench.once(&[command, &["--ledger", &url]].concat()).exits(0);
        }
        for word in [&id[..12], &id[3..12], "k"] {
            let shown = bench.json(&["show", word, "--ledger", &url])["data"].clone();
            assert_eq!(
                (&shown["id"], &shown["output"]["stdout"]),
                (&id.into(), &"out\n".into()),
                "{url} {word}"
            );
        }
        let count = |flags: &[&str]| {
            let listed = bench.json(&[&["ls", "--ledger", &url], flags].concat())["data"].clone();
            listed.as_array().unwrap().len()
        };
        assert_eq!((count(&["--key", "k", "--since", "1h"]), count(&["--until", "1h"])), (1, 0), "{url}");
        bench.once(&["forget", id, "--force", "--ledger", &url]).exits(0);
        bench.once(&run).exits(0);
        assert_eq!(bench.runs(), 2, "what was forgotten runs again");
    }
}

#[test]
fn who_only_looks_leaves_nothing_behind() {
    for url in servers() {
        let bench = Bench::new();
        for command in ["ls", "report", "cost", "gc", "stats", "export"] {
            let said = bench.once(&[command, "--ledger", &url]).exits(2).err();
            assert!(said.contains("there is no ledger") && said.contains("once run"), "{said}");
        }
        assert!(bench.once(&["doctor", "--ledger", &url]).exits(0).out().contains("there is no ledger"));
        bench.once(&["ls", "--ledger", &url]).exits(2);
    }
}

#[test]
fn without_its_server_nothing_runs_and_with_it_all_goes_on() {
    let mut postgres = Postgres::start();
    let mut redis = Redis::start();
    let urls = [postgres.fresh(), redis.fresh()];
    let benches = [Bench::new(), Bench::new()];
    let run_within = |timeout: &str, at: usize, key: &str| {
        let url = format!("{}&timeout={timeout}", urls[at]);
        benches[at].once(&["run", "--ledger", &url, "--key", key, "--", "sh", "-c", COUNTED])
    };
    let run = |at: usize, key: &str| run_within("60s", at, key);
    for at in [0, 1] {
        run(at, "before").exits(0);
    }
    postgres.kill();
    redis.kill();
    for at in [0, 1] {
        let said = run_within("500ms", at, "meanwhile").exits(12).err();
        assert!(said.contains("LEDGER_UNAVAILABLE") && said.contains("happened: unknown, ran: no"), "{said}");
        run_within("500ms", at, "before").exits(12);
        assert_eq!(benches[at].runs(), 1, "nothing runs without its intent on record");
    }
    postgres.start_again();
    redis.start_again();
    for at in [0, 1] {
        run(at, "before").exits(0);
        run(at, "meanwhile").exits(0);
        assert_eq!(benches[at].runs(), 2);
    }
}

/// On another machine, whose clock is wrong: leases are measured by the server's, so no process overtakes or runs
/// twice.
#[test]
fn a_machine_whose_clock_is_wrong_waits_and_runs_nothing_twice() {
    for url in servers() {
        let bench = Bench::new();
        let run = ["run", "--ledger", &url, "--key", "k", "--wait", "10ms", "--", "sh", "-c", HELD];
        let elsewhere = |offset: &str| -> Said {
            let right = bench.command(&run);
            let mut wrong = Command::new(right.get_program());
            wrong.args(right.get_args()).env("LD_PRELOAD", faketime::library()).env("FAKETIME", offset);
            wrong.current_dir(bench.path(".")).output().expect("it runs").into()
        };
        let running = bench.start(&run);
        eventually("the command runs", || bench.runs() > 0);
        for offset in ["-2d", "+2d", "+10y"] {
            let said = elsewhere(offset).exits(4).err();
            assert!(said.contains("IN_PROGRESS"), "{url} {offset}: {said}");
        }
        bench.release();
        running.end().exits(0);
        for offset in ["-2d", "+2d", "+10y"] {
            assert!(elsewhere(offset).exits(0).err().contains("nothing was run"), "{url} {offset}");
        }
        assert_eq!(bench.runs(), 1, "{url}");
    }
}

#[test]
fn a_server_that_cannot_keep_the_promise_is_refused() {
    let bench = Bench::new();
    let refused = |url: &str| {
        let said = bench.once(&["run", "--ledger", url, "--", "touch", "ran"]).exits(12).err();
        said.lines().next().unwrap().to_owned()
    };
    let forgetful = Postgres::start_with(&[("fsync", "off")]);
    assert_snapshot!(refused(&forgetful.fresh()), @"once: LEDGER_UNAVAILABLE the ledger cannot be used: the server runs with fsync or full_page_writes off, so a power failure loses intents and an effect can happen twice; set both to on; nothing was run");
    let lazy = Redis::start_with(&[("appendfsync", "everysec")]);
    let said = refused(&lazy.fresh()).replace(&lazy.port().to_string(), "PORT");
    assert_snapshot!(said, @"once: LEDGER_UNAVAILABLE the ledger cannot be used: 127.0.0.1:PORT answers before its writes are synced (appendfsync everysec), and an operation that is lost runs twice; set appendfsync always, or accept that with durability=everysec; nothing was run");
    assert!(!bench.path("ran").exists());
}

#[test]
fn a_password_is_never_repeated() {
    let bench = Bench::new();
    for url in [
        "postgres://me:s3cret@127.0.0.1:1/db?timeout=1s",
        "redis://me:s3cret@127.0.0.1:1?timeout=1s",
        "postgres://me:s3cret@127.0.0.1:1/db?what=ever",
        "redis://me:s3cret@127.0.0.1:1?what=ever",
        "redis://me:s3cret@:x",
    ] {
        for command in [&["run", "--", "touch", "ran"][..], &["doctor"], &["ls", "--json"]] {
            let said = bench.once(&[&["--ledger", url], command].concat());
            assert!(!said.out().contains("s3cret") && !said.err().contains("s3cret"), "{}", said.err());
        }
    }
    assert!(!bench.path("ran").exists());
}

/// Long enough for a call on a busy machine, and renewed every two seconds.
const LEASED: &str = "[defaults]\nlease = \"6s\"\nquarantine = \"100ms\"\n";

/// Does something to a `once run` while its command runs, on every server, and checks that its lease is renewed by
/// another process from then on.
fn is_kept(
    harm: impl Fn(Running) -> Option<Running> + Sync,
    end: impl Fn(&Bench, &str, Option<Running>) + Sync,
) {
    let kept = |url: &str| {
        let bench = Bench::new();
        bench.policy(LEASED);
        let run = ["run", "--ledger", url, "--key", "k", "--wait", "0s", "--probe", "exit 10"];
        let run = [&run[..], &["--", "sh", "-c", HELD]].concat();
        let running = bench.start(&run);
        eventually("the command runs", || bench.runs() > 0);
        let ledger = Ledger::new(onceward_store::open(url).unwrap()).blocking();
        let id = bench.json(&["ls", "--ledger", url])["data"][0]["id"].as_str().unwrap().to_owned();
        let id = OperationId::parse(&id).unwrap();
        let version = || ledger.find(&id).unwrap().0.version;
        let left = harm(running);
        let before = version();
        // One renewal may have been under way.
        eventually("its lease is renewed", || version() >= before + 2);
        let said = bench.once(&run).exits(4).err();
        assert!(said.contains("IN_PROGRESS"), "{url}: {said}");
        end(&bench, url, left);
        assert_eq!(bench.runs(), 1, "{url}");
    };
    let (servers, kept) = (servers(), &kept);
    std::thread::scope(|scope| servers.each_ref().map(|url| scope.spawn(move || kept(url))).map(drop));
}

#[test]
fn a_command_that_outlives_once_run_keeps_its_operation_running() {
    let killed = |running: Running| {
        running.kill();
        None
    };
    is_kept(killed, |bench, url, _| {
        bench.release();
        eventually("the keeper has written the doubt down", || {
            bench.once(&["show", "k", "--ledger", url]).out().contains("`once run` was killed")
        });
    });
}

#[test]
fn a_stopped_once_run_keeps_its_operation_running() {
    let stopped = |running: Running| {
        running.signal(Signal::SIGSTOP);
        Some(running)
    };
    is_kept(stopped, |bench, _, stopped| {
        let running = stopped.unwrap();
        running.signal(Signal::SIGCONT);
        bench.release();
        running.end().exits(0);
    });
}

#[test]
fn a_command_can_be_ended_with_its_once_run() {
    for url in servers() {
        let bench = Bench::new();
        let run = ["run", "--ledger", &url, "--key", "k", "--if-killed", "end", "--", "sh", "-c", HELD];
        let running = bench.start(&run);
        eventually("the command runs", || bench.runs() > 0);
        running.kill();
        eventually("the command has ended, and the keeper has written the doubt down", || {
            bench.once(&["show", "k", "--ledger", &url]).out().contains("`once run` was killed")
        });
    }
}

#[test]
fn a_result_that_has_gone_is_unavailable_and_not_empty() {
    let bench = Bench::new();
    let server = Redis::shared();
    let on_redis = server.fresh();
    for url in [bench.ledger(), on_redis] {
        std::fs::remove_file(bench.path("runs")).ok();
        let run = ["run", "--json", "--ledger", &url, "--key", "k", "--", "sh", "-c", COUNTED];
        let id = bench.once(&run).exits(0).json()["operation"]["id"].as_str().unwrap().to_owned();
        if url.starts_with("sqlite:") {
            let connection = rusqlite::Connection::open(bench.path("once.db")).unwrap();
            assert_eq!(connection.execute("DELETE FROM body", []).unwrap(), 1);
        } else {
            let keys = server.cli(&["KEYS", &format!("*{id}*:body")]);
            assert_eq!(server.cli(&["DEL", keys.trim()]).trim(), "1", "{keys}");
        }
        let again = bench.once(&run).exits(4).json();
        let (code, happened) = (&again["error"]["code"], &again["error"]["happened"]);
        assert_eq!((code, happened), (&"RESULT_UNAVAILABLE".into(), &"yes".into()), "{url}: {again}");
        for command in [&["show", &id, "--output"][..], &["wait", &id, "--output"]] {
            let said = bench.once(&[command, &["--ledger", &url]].concat()).exits(4);
            assert!(
                said.err().contains("its stored result is missing from the ledger"),
                "{url}: {}",
                said.err()
            );
        }
        let shown = bench.json(&["show", &id, "--ledger", &url]);
        assert_eq!(shown["data"]["outcome"]["unavailable"], true, "{url}: {shown}");
        assert_eq!(bench.runs(), 1, "{url}: it is no reason to run again");
    }
}
