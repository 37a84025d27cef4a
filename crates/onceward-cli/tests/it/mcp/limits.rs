//! Clients that send half a request and wait: others are served, and memory is bounded.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::common::Bench;
use crate::mcp::session::{about, effects};
use crate::mcp::web::{Process, Web};

const FLOOD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/mcp/flood.py");
/// An honest client waits less than this, on a machine that does other things as well.
const SOON: Duration = Duration::from_secs(60);

/// Opens this many connections, each with part of a body of that length, and keeps them waiting.
fn flood(web: &Web, count: usize, length: usize, sent: usize) -> Process {
    let args = [usize::from(web.port), count, length, sent].map(|number| number.to_string());
    let mut command = Command::new("python3");
    command.arg(FLOOD).args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    Process(child)
}

/// The most memory that the proxy has had, in MiB.
fn peak(web: &Web) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", web.proxy.0.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

#[track_caller]
fn is_served(bench: &Bench, web: &Web) {
    let begun = Instant::now();
    let before = effects(bench);
    for id in 1..=5 {
        assert!(about(&web.call(id, &json!({"n": id}))).is_null());
    }
    assert_eq!(effects(bench), before + 5);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

#[test]
fn a_thousand_half_bodies_keep_nobody_out() {
    let bench = Bench::new();
    let web = Web::scoped(&bench);
    let _flood = flood(&web, 1_030, 1_000, 500);
    is_served(&bench, &web);
    let peak = peak(&web);
    assert!(peak < 150, "{peak} MiB");
}

#[test]
fn large_bodies_that_do_not_end_take_a_bounded_room_and_keep_nobody_out() {
    let bench = Bench::new();
    let web = Web::scoped(&bench);
    let length = 62 << 20;
    let _flood = flood(&web, 24, length, length - 1);
    is_served(&bench, &web);
    let peak = peak(&web);
    assert!(peak < 400, "{peak} MiB");
}

#[test]
fn more_room_than_there_is_is_refused_and_nothing_is_run() {
    let bench = Bench::new();
    let web = Web::scoped(&bench);
    let length = 62 << 20;
    let flooding = flood(&web, 4, length, length - 1);
    // The refusal comes before the body is sent.
    let mut waiting = web.connect();
    let head =
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 16777216\r\n\r\n";
    waiting.write_all(head.as_bytes()).unwrap();
    let mut refused = String::new();
    waiting.read_to_string(&mut refused).unwrap();
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("nothing was run"), "{refused}");
    drop(flooding);
    assert!(about(&web.call(1, &json!({"x": "x".repeat(16 << 20)}))).is_null());
    assert_eq!(effects(&bench), 1);
}
