//! The server as a process.

use std::io::{Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::common::{Bench, eventually};
use crate::serve::rig::{Server, curl};

#[test]
fn the_printed_command_shows_what_a_call_would_do() {
    let bench = Bench::new();
    let server = Server::start(&bench, &["--listen", "127.0.0.1:0"]);
    eventually("it says how to try it", || server.said().len() >= 2);
    let line = server.said()[1].split_once("try it: ").unwrap().1.to_owned();
    let said = bench.shell(&format!("{line} -s")).exits(0);
    let answer = said.json();
    assert_eq!((&answer["decision"], &answer["effect"]), (&json!("run"), &json!("would_update")));
    assert_eq!(bench.json(&["ls"])["data"], json!([]), "a dry run writes nothing");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_killed_server_leaves_doubts_and_the_late_answer_settles_them() {
    let bench = Bench::new();
    let server = Server::start(&bench, &["--listen", "127.0.0.1:0"]);
    let pay = r#"{"name":"pay","key":"1"}"#;
    let (status, begun) = curl(&["--json", pay, &format!("{}/v1/operations", server.url())]);
    assert_eq!(status, 201, "{begun}");
    server.kill();
    let id = begun["operation"]["id"].as_str().unwrap();
    assert_eq!(bench.state(id), "in_doubt", "`once` on the same file sees it at once");
    let server = Server::start(&bench, &["--listen", "127.0.0.1:0"]);
    let operations = format!("{}/v1/operations", server.url());
    let (status, problem) = curl(&["--json", pay, &operations]);
    assert_eq!((status, &problem["code"]), (424, &json!("IN_DOUBT")));
    let report = json!({"attempt": 1, "token": begun["token"], "data": 7}).to_string();
    let (status, done) = curl(&["--json", &report, &format!("{operations}/{id}/finish")]);
    assert_eq!((status, &done["state"]), (200, &json!("done")));
    let (status, replayed) = curl(&["--json", pay, &operations]);
    assert_eq!((status, &replayed["data"]), (200, &json!(7)));
}

/// `once run` and a caller of the server share one ledger.
#[test]
fn a_command_and_a_caller_of_the_server_meet_in_one_ledger() {
    let bench = Bench::new();
    let server = Server::start(&bench, &["--listen", "127.0.0.1:0"]);
    bench.once(&["run", "--name", "pay", "--key", "1", "--", "echo", "paid"]).exits(0);
    let preview = r#"{"name":"pay","key":"1","dry_run":true}"#;
    let (status, seen) = curl(&["--json", preview, &format!("{}/v1/operations", server.url())]);
    assert_eq!(status, 200);
    // The command's inputs are others, so the key is known and does not fit.
    assert_eq!(seen["decision"], "refuse", "{seen}");
}

#[test]
fn an_address_that_others_reach_needs_tokens() {
    let bench = Bench::new();
    let refused = bench.once(&["serve", "--listen", "0.0.0.0:0"]).exits(2);
    assert!(refused.err().contains("tokens"), "{}", refused.err());
    let made = bench.json(&["serve", "token", "acme"]);
    let (token, hash) = (made["data"]["token"].as_str().unwrap(), made["data"]["hash"].as_str().unwrap());
    bench.policy(&format!("[tenant.acme]\ntokens = [\"{hash}\"]\n"));
    let server = Server::start(&bench, &["--listen", "0.0.0.0:0"]);
    let url = server.url().replace("0.0.0.0", "127.0.0.1");
    let (status, problem) = curl(&[&format!("{url}/v1/report")]);
    assert_eq!((status, &problem["code"]), (401, &json!("AUTH_REQUIRED")));
    let authorization = format!("Authorization: Bearer {token}");
    let (status, report) = curl(&["-H", &authorization, &format!("{url}/v1/report")]);
    assert_eq!((status, &report["settled"]), (200, &json!(true)));
    assert!(server.said().iter().any(|line| line.contains("without encryption")), "{:?}", server.said());
    // The token is in no file.
    let found =
        bench.listing().into_values().any(|(_, bytes)| String::from_utf8_lossy(&bytes).contains(token));
    assert!(!found);
    bench.once(&["serve", "token", "Not A Name"]).exits(2);
}

#[test]
fn a_port_that_is_taken_and_files_that_are_wrong_are_said() {
    let bench = Bench::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let refused = bench.once(&["serve", "--listen", &address]).exits(1);
    assert!(refused.err().contains("--listen takes another address"), "{}", refused.err());
    bench.write("cert.pem", "no certificate");
    let args = ["serve", "--listen", "127.0.0.1:0", "--tls-cert", "cert.pem", "--tls-key", "cert.pem"];
    let refused = bench.once(&args).exits(2);
    assert!(refused.err().contains("cert.pem"), "{}", refused.err());
    bench.once(&["serve", "--tls-cert", "cert.pem"]).exits(2);
    bench.policy("[serve]\nmax_bdy = 1\n");
    let refused = bench.once(&["serve"]).exits(2);
    assert!(refused.err().contains("max_bdy"), "{}", refused.err());
}

#[test]
fn the_policy_names_the_addresses_and_flags_take_precedence() {
    let bench = Bench::new();
    bench.policy("[serve]\nlisten = [\"127.0.0.1:0\", \"[::1]:0\"]\nsocket = \"policy.sock\"\n");
    let server = Server::start(&bench, &[]);
    eventually("it says all addresses", || server.said().len() >= 4);
    let said = server.said().join("\n");
    assert!(said.contains("http://127.0.0.1:") && said.contains("http://[::1]:"), "{said}");
    assert!(said.contains("unix:policy.sock"), "{said}");
    server.kill();
    let server = Server::start(&bench, &["--socket", "flag.sock"]);
    eventually("it says how to try it", || server.said().len() >= 2);
    let said = server.said().join("\n");
    assert!(!said.contains("http://127.0.0.1:") && said.contains("unix:flag.sock"), "{said}");
    let line = server.said()[1].split_once("try it: ").unwrap().1.to_owned();
    assert_eq!(bench.shell(&format!("{line} -s")).exits(0).json()["decision"], "run");
    // A second server does not take the socket away, and the first one keeps it.
    let second = bench.once(&["serve", "--socket", "flag.sock"]).exits(1);
    assert!(second.err().contains("listens on flag.sock already"), "{}", second.err());
    assert_eq!(bench.shell(&format!("{line} -s")).exits(0).json()["decision"], "run");
    server.kill();
    // What a killed server left behind is replaced.
    assert!(bench.path("flag.sock").exists());
    drop(Server::start(&bench, &["--socket", "flag.sock"]));
}

/// The first signal lets a request end, the second one ends the server at once.
#[test]
fn a_server_that_is_asked_to_end_answers_first() {
    let bench = Bench::new();
    let socket = bench.path("once.sock");
    let waiting = |lease_ms: u64| {
        let server = Server::start(&bench, &["--socket", "once.sock"]);
        let body = json!({"name": "pay", "key": lease_ms.to_string(), "lease_ms": lease_ms}).to_string();
        let path = socket.display().to_string();
        let (_, begun) = curl(&["--unix-socket", &path, "--json", &body, "http://localhost/v1/operations"]);
        let id = begun["operation"]["id"].as_str().unwrap().to_owned();
        let mut stream = UnixStream::connect(&socket).unwrap();
        let get = |path: &str| format!("GET /v1/operations/{id}{path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        // They arrive together, so the server has both when it answers the first.
        stream.write_all((get("") + &get("/wait?timeout=25")).as_bytes()).unwrap();
        assert_ne!(stream.read(&mut [0; 64 << 10]).unwrap(), 0);
        server.signal(Signal::SIGTERM);
        eventually("it has heard the signal", || server.said().join("").contains("shutting down"));
        (server, stream)
    };
    let (server, mut stream) = waiting(1_500);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("\"state\":\"in_doubt\""), "{answer}");
    assert_eq!(server.end(), Some(0));
    assert!(!socket.exists());
    let (server, mut stream) = waiting(600_000);
    server.signal(Signal::SIGTERM);
    server.end();
    let mut answer = String::new();
    // A reset is an end as well.
    drop(stream.read_to_string(&mut answer));
    assert_eq!(answer, "", "it did not wait for the request");
}

/// The units of the guide are valid, and systemd's own tool starts the server with the first connection.
#[test]
fn the_units_of_the_guide_work() {
    let bench = Bench::new();
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/serve.md")).unwrap();
    let units: Vec<&str> =
        text.split("```ini\n").skip(1).map(|block| block.split("```").next().unwrap()).collect();
    let [socket, service] = units[..] else { panic!("a socket and a service: {units:?}") };
    bench.write("once.socket", socket);
    bench.write("once.service", service.replace("/usr/local/bin/once", env!("CARGO_BIN_EXE_once")));
    let mut verify = Command::new("systemd-analyze");
    let said = verify.args(["verify", "./once.socket", "./once.service"]).current_dir(bench.path(""));
    let said = said.output().unwrap();
    assert!(said.status.success() && said.stderr.is_empty(), "{}", String::from_utf8_lossy(&said.stderr));

    let address = crate::common::server::closed();
    let template = bench.command(&["serve"]);
    let mut command = Command::new("systemd-socket-activate");
    command.current_dir(bench.path("")).arg("--listen").arg(&address);
    for (name, value) in template.get_envs() {
        command.arg(format!("--setenv={}={}", name.display(), value.unwrap().display()));
    }
    let server = Server::waiting(command.args([env!("CARGO_BIN_EXE_once"), "serve"]), "Listening on");
    assert!(!bench.path("once.db").exists(), "it starts with the first connection");
    let (status, _) = curl(&[&format!("http://{address}/v1/report")]);
    assert_eq!(status, 200);
    assert_eq!(server.url(), format!("http://{address}"));
    server.signal(Signal::SIGTERM);
    assert_eq!(server.end(), Some(0));
}

/// A service manager opens the socket and starts the server, which says when it is ready.
#[test]
fn sockets_of_systemd_are_used_and_it_is_notified() {
    let bench = Bench::new();
    let messages = UnixDatagram::bind(bench.path("notify")).unwrap();
    messages.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // Opens two sockets as descriptors 3 and 4, then becomes the server, as systemd does.
    let activate = "import os, socket, sys\n\
        tcp = socket.create_server(('127.0.0.1', 0)); unix = socket.socket(socket.AF_UNIX); unix.bind('unit.sock')\n\
        unix.listen(); print(tcp.getsockname()[1], flush=True)\n\
        tcp, unix = os.dup(tcp.fileno()) and tcp.detach(), unix.detach()\n\
        one, two = os.dup2(tcp, 10), os.dup2(unix, 11)\n\
        os.dup2(10, 3); os.dup2(11, 4)\n\
        os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='2')\n\
        os.execv(sys.argv[1], sys.argv[1:])\n";
    let template = bench.command(&["serve"]);
    let mut command = Command::new("python3");
    command
        .args(["-c", activate, env!("CARGO_BIN_EXE_once"), "serve"])
        .current_dir(bench.path(""))
        .env_clear();
    for (name, value) in template.get_envs() {
        command.env(name, value.unwrap());
    }
    command.env("NOTIFY_SOCKET", bench.path("notify"));
    let server = Server::of(command);
    let mut message = [0; 64];
    let length = messages.recv(&mut message).unwrap();
    assert_eq!(&message[..length], b"READY=1");
    let (status, _) = curl(&[&format!("{}/v1/report", server.url())]);
    assert_eq!(status, 200);
    let path = bench.path("unit.sock").display().to_string();
    let (status, _) = curl(&["--unix-socket", &path, "http://localhost/v1/report"]);
    assert_eq!(status, 200);
    server.signal(Signal::SIGTERM);
    let length = messages.recv(&mut message).unwrap();
    assert_eq!(&message[..length], b"STOPPING=1");
    assert_eq!(server.end(), Some(0));
    assert!(bench.path("unit.sock").exists(), "the socket belongs to the unit");
}
