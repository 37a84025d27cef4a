//! The health, metrics and logs of `once serve`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::common::Bench;

/// A server, and the address it listens on.
fn serve(bench: &Bench, environment: &[(&str, &str)]) -> (Child, String) {
    let mut command = bench.command(&["serve", "--listen", "127.0.0.1:0"]);
    command.envs(environment.iter().copied()).stderr(Stdio::piped());
    let mut server = command.spawn().unwrap();
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines();
    let address = loop {
        let line = lines.next().expect("the server says where it listens").unwrap();
        if let Some((_, address)) = line.split_once("listening on http://") {
            break address.trim_end_matches('/').to_owned();
        }
    };
    // The rest of what it says is read, so that it never waits for a reader.
    std::thread::spawn(move || lines.for_each(drop));
    (server, address)
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn end(mut server: Child) {
    kill(Pid::from_raw(i32::try_from(server.id()).unwrap()), Signal::SIGTERM).unwrap();
    assert!(server.wait().unwrap().success());
}

#[test]
fn health_and_metrics_are_served() {
    let bench = Bench::new();
    let (server, address) = serve(&bench, &[("ONCE_LOG", "debug")]);
    bench.once(&["run", "--key", "lost", "--", "sh", "-c", "exit 3"]).exits(79);
    assert!(get(&address, "/healthz").ends_with("\r\n\r\nok\n"));
    assert!(get(&address, "/readyz").ends_with("\r\n\r\nready\n"));
    let metrics = get(&address, "/metrics");
    assert!(metrics.contains("application/openmetrics-text"), "{metrics}");
    assert!(metrics.contains("onceward_ledger_up 1"), "{metrics}");
    end(server);
}

#[test]
fn a_collector_that_is_gone_stops_nothing() {
    let bench = Bench::new();
    let (server, address) = serve(&bench, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")]);
    assert!(get(&address, "/readyz").ends_with("ready\n"));
    end(server);
}

#[test]
fn a_collector_without_a_valid_address_is_an_error() {
    let bench = Bench::new();
    let mut command = bench.command(&["serve", "--listen", "127.0.0.1:0"]);
    let output = command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "not an address").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("OTEL_EXPORTER_OTLP_ENDPOINT"), "{said}");
}
