//! Passwords and keys: who gets them, and where they are not shown.

use std::process::Stdio;

use serde_json::json;

use crate::common::Bench;
use crate::mcp::http::seen;
use crate::mcp::session::{SERVER, about, request};

const LEDGER: &str = "postgres://agent:S3CRET@127.0.0.1:1/once";
/// A server that says which of our variables it got, and ends.
const SPY: &str = "env | grep ONCE_ > got; exit 0";

#[test]
fn a_server_does_not_get_the_password_of_the_ledger_unless_it_is_asked_for() {
    let bench = Bench::new();
    let run = |ledger: &str, flags: &[&str]| {
        let args = [&["--ledger", "sqlite:once.db", "mcp", "--scope", "s"], flags, &["--", "sh", "-c", SPY]]
            .concat();
        let mut command = bench.command(&args);
        command.env("ONCE_LEDGER", ledger).env("ONCE_MCP_TOKEN", "S3CRET-token").stdin(Stdio::null());
        let said = command.output().unwrap();
        (bench.read("got"), String::from_utf8(said.stderr).unwrap())
    };
    let (got, said) = run(LEDGER, &[]);
    assert_eq!(got, "");
    assert!(said.contains("--pass-ledger") && !said.contains("S3CRET"), "{said}");
    assert_eq!(run(LEDGER, &["--pass-ledger"]).0, format!("ONCE_LEDGER={LEDGER}\n"));
    assert_eq!(run("sqlite:other.db", &[]).0, "ONCE_LEDGER=sqlite:other.db\n", "there is nothing to hide");
}

#[test]
fn a_server_gets_no_password_of_the_ledger_from_other_variables() {
    let bench = Bench::new();
    let spy = ["mcp", "--explain", "--", "sh", "-c", "env > got; exit 0"];
    for url in [
        "postgres://agent@127.0.0.1:1/once",
        "postgres://agent@127.0.0.1:1/once?password_env=LEDGER_PASSWORD",
        "redis://127.0.0.1:1?password_env=LEDGER_PASSWORD",
        "https://127.0.0.1:1",
        "https://S3CRET@127.0.0.1:1",
        "http://:S3CRET@127.0.0.1:1",
        "https://127.0.0.1:1?token_env=LEDGER%5FPASSWORD",
    ] {
        let mut command = bench.command(&spy);
        command.env("ONCE_LEDGER", url).env("LEDGER_PASSWORD", "S3CRET").env("PGPASSWORD", "S3CRET");
        command.env("ONCE_TOKEN", "S3CRET");
        command.output().unwrap();
        let got = bench.read("got");
        let names: &[&str] = match url.split_once("_env") {
            Some(_) => &["ONCE_TOKEN", "LEDGER_PASSWORD"],
            None if url.starts_with("postgres") => &["ONCE_TOKEN", "PGPASSWORD"],
            None => &["ONCE_TOKEN"],
        };
        // A URL with a secret in it is withheld as a whole.
        assert_eq!(got.contains("ONCE_LEDGER="), !url.contains("S3CRET"), "{url}: {got}");
        assert!(!got.contains("S3CRET@"), "{url}: {got}");
        for name in names {
            assert!(!got.contains(&format!("{name}=S3CRET")), "{url}: {got}");
        }
    }
}

/// Whether a file is one of the server's, which may know what it was sent.
fn is_servers(path: &std::path::Path) -> bool {
    ["seen", "effects"].iter().any(|name| path.as_os_str() == *name)
}

#[test]
fn a_secret_of_a_request_by_http_is_passed_on_and_kept_nowhere() {
    let bench = Bench::new();
    let (server, port) = crate::mcp::web::server(&bench, 0);
    let url = format!("http://127.0.0.1:{port}/mcp");
    bench.policy("[defaults]\nredact = [\"re:S3CRET-out[a-z]*\"]\n");
    let args = ["mcp", "--http", &url, "--listen", "127.0.0.1:0", "--keys", "strict"];
    let mut command = bench.command(&args);
    command.env("ONCE_MCP_TOKEN", "S3CRET-token");
    command.stderr(std::fs::File::create(bench.path("log")).unwrap());
    let web = crate::mcp::web::Web::of(command.spawn().unwrap(), || bench.read("log"));
    let names = ["X-Api-Key", "Cookie", "Private-Token", "X-Goog-Api-Key", "Authorization"];
    let arguments = json!({"pin": "S3CRET-pin"});
    for name in names {
        let value = format!("S3CRET-{}", name.to_lowercase());
        let headers = [("X-Once-Token", "S3CRET-token"), (name, value.as_str())];
        assert!(about(&web.call_with(&headers, 1, &arguments)).is_null(), "{name}");
        assert_eq!(about(&web.call_with(&headers, 2, &arguments))["status"], "replayed", "{name}");
        assert_eq!(seen(&bench).last().unwrap()["headers"][name.to_lowercase()], value, "the server gets it");
    }
    let line = std::fs::read_to_string(format!("/proc/{}/cmdline", web.proxy.0.id())).unwrap();
    // A caller without the token, and a server that is gone: errors that could repeat a header.
    let headers = [("X-Once-Token", "S3CRET-token"), ("Authorization", "S3CRET-authorization")];
    let mut told =
        web.post(&[("Authorization", "Bearer S3CRET-wrong")], &request(3, "count", &json!({}))).body;
    drop(server);
    told += &web.post(&headers, &request(4, "count", &json!({"n": 1}))).body;
    let listed = ["ls", "report", "stats", "export"].map(|command| bench.once(&[command]).exits(0));
    let listed = listed.iter().map(|said| format!("{}{}", said.out(), said.err())).collect::<String>();
    for text in [line, told, listed, bench.json(&["ls"]).to_string()] {
        assert!(!text.contains("S3CRET"), "{text}");
    }
    drop(web);
    for (path, (_, bytes)) in bench.listing() {
        let text = String::from_utf8_lossy(&bytes);
        // The rule of the policy names what it looks for.
        let text = text.replace("re:S3CRET-out", "");
        assert!(is_servers(&path) || !text.contains("S3CRET"), "{}", path.display());
    }
}

#[test]
fn a_servers_address_is_shown_without_its_secrets() {
    let bench = Bench::new();
    for url in
        ["https://bob:S3CRET@127.0.0.1/mcp", "http://u:S3CRET?pw@127.0.0.1/", "ftp://h/?api_key=S3CRET"]
    {
        for args in [
            &["mcp", "--http", url][..],
            &["mcp", "--explain", "--http", url],
            &["--json", "mcp", "--http", url],
        ] {
            let said = bench.once(args).exits(2);
            assert!(
                !format!("{}{}", said.out(), said.err()).contains("S3CRET"),
                "{} {}",
                said.out(),
                said.err()
            );
        }
    }
    // One that is taken says where it listens, before which server, and no key.
    let mut child =
        bench.command(&["mcp", "--http", "http://127.0.0.1:1/mcp?api_key=S3CRET", "--listen", "127.0.0.1:0"]);
    let mut child = child.spawn().unwrap();
    let stderr = std::io::BufReader::new(child.stderr.take().unwrap());
    let lines: Vec<String> = std::io::BufRead::lines(stderr).map_while(Result::ok).take(2).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(lines[1].contains("/mcp?api_key=… for http://127.0.0.1:1/mcp?api_key=…"), "{lines:?}");
}

#[test]
fn a_header_may_come_from_the_environment() {
    let bench = Bench::new();
    let (_server, port) = crate::mcp::web::server(&bench, 0);
    let url = format!("http://127.0.0.1:{port}/mcp");
    let args = ["mcp", "--explain", "--http", &url, "--header-env", "Authorization=MY_TOKEN"];
    let said = bench.command(&args).env("MY_TOKEN", "Bearer x\n").output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    assert_eq!(seen(&bench)[0]["headers"]["authorization"], "Bearer x");
    let said = bench.once(&args).exits(2);
    assert!(said.err().contains("Authorization"), "{}", said.err());
    let said = bench.once(&["mcp", "--explain", "--header-env", "S3CRET", "--http", &url]).exits(2);
    assert!(said.err().contains("NAME=VARIABLE") && !said.err().contains("S3CRET"), "{}", said.err());
}

#[test]
fn a_server_inherits_no_file_of_the_ledger() {
    let bench = Bench::new();
    let script = format!("ls -l /proc/self/fd > files; exec python3 {SERVER}");
    let said = bench.command(&["mcp", "--explain", "--", "sh", "-c", &script]).output().unwrap();
    assert!(said.status.success());
    let mut session = bench.command(&["mcp", "--scope", "s", "--", "sh", "-c", &script]);
    session.stdin(Stdio::null()).output().unwrap();
    assert!(
        bench.read("files").contains("pipe:") && !bench.read("files").contains("once.db"),
        "{}",
        bench.read("files")
    );
}
