//! A secret is found nowhere it should not be.

use onceward_testkit::Redis;

use crate::common::{Bench, Said, eventually, started_by};

const CANARY: &str = "S3CRETcanary";

/// Everything that was said.
fn all(said: &Said) -> String {
    String::from_utf8_lossy(&[&said.out[..], &said.err].concat()).into_owned()
}

#[track_caller]
fn silent(said: &Said, what: &str) {
    assert!(!all(said).contains(CANARY), "{what}: {}", all(said));
}

/// `once` with that ledger in its environment.
fn with_ledger(bench: &Bench, url: &str, args: &[&str]) -> Said {
    bench.command(args).env("ONCE_LEDGER", url).output().unwrap().into()
}

#[test]
fn a_password_in_a_url_is_not_repeated() {
    let bench = Bench::new();
    let urls = [
        format!("postgres://a:{CANARY}@127.0.0.1:1/db?timeout=200ms"),
        format!("postgres://127.0.0.1:1/db?password={CANARY}&timeout=200ms"),
        format!("postgres://127.0.0.1:1/db?{CANARY}"),
        format!("postgres://127.0.0.1:1/db?passwrd{CANARY}=1"),
        format!("redis://a:{CANARY}@127.0.0.1:1?timeout=200ms"),
        format!("redis://127.0.0.1:1?password={CANARY}"),
        format!("redis://a:{CANARY}?x@127.0.0.1:1"),
        format!("redis://a:{CANARY}/x@127.0.0.1:1"),
        format!("mysql://a:{CANARY}@127.0.0.1:1"),
        format!("postgres://127.0.0.1:1/db?%70assword={CANARY}&timeout=200ms"),
        format!("postgres://a%3A{CANARY}@127.0.0.1:1/db?timeout=200ms"),
        format!("redis://%3a{CANARY}@127.0.0.1:1?timeout=200ms"),
    ];
    for url in &urls {
        for args in [
            &["--help"][..],
            &["run", "--help"],
            &["config", "show"],
            &["--json", "config", "show"],
            &["doctor"],
            &["run", "--key", "a", "--", "true"],
            &["--json", "run", "--key", "a", "--", "true"],
            &["run", "--key", "a", "--dry-run", "--", "true"],
        ] {
            silent(&with_ledger(&bench, url, args), &format!("{url} {args:?}"));
        }
        silent(&bench.once(&["--ledger", url, "ls"]), url);
    }
    let http = format!("https://bob:{CANARY}@127.0.0.1:1/mcp?api_key={CANARY}");
    silent(&bench.once(&["mcp", "--http", &http]), "an address of a server");
    let query = format!("ftp://127.0.0.1:1/mcp?api_key={CANARY}");
    silent(&bench.once(&["mcp", "--http", &query]), "an address of a server");
}

/// URLs that do not name a ledger, each with a password somewhere.
fn malformed() -> Vec<String> {
    let with = |url: &str| url.replace("PW", CANARY);
    let urls = [
        "sqlite:postgres://a:PW@127.0.0.1:1/db",
        "sqlite:redis://:PW@127.0.0.1:1",
        "sqlite://postgres://a:PW@127.0.0.1:1/db",
        "sqlite:///postgres://a:PW@127.0.0.1:1/db",
        "sqlite:sqlite:postgres://a:p/PW@127.0.0.1:1/db",
        "sqlite:./postgres:/a:PW@127.0.0.1:1/db",
        "sqlite://a:PW@127.0.0.1:1/db",
        "sqlite:a:PW@127.0.0.1:1/db",
        "sqlite:/no/such/a:PW@127.0.0.1:1/db",
        "sqlite:once.db?password=PW",
        "sqlite:once.db?sync=full;client_secret=PW",
        "sqlite:once.db?checkpoint=1&passphrase=PW",
        "postgres:postgres://a:PW@127.0.0.1:1/db",
        "postgres:a:PW@127.0.0.1:1/db",
        "postgres:/a:PW@127.0.0.1:1/db",
        "postgres//a:PW@127.0.0.1:1/db",
        "postgres://a:PW@127.0.0.1:port/db",
        "postgres://a:5/PW@127.0.0.1:1/db",
        "postgres://127.0.0.1:1/db?schema=x;password=PW",
        "postgres://127.0.0.1:1/db?sslpassword=PW",
        "redis:redis://a:PW@127.0.0.1:1",
        "redis:a:PW@127.0.0.1:1",
        "redis+sentinel://a:PW@127.0.0.1:1",
        "redis://a:PW@127.0.0.1:1/x",
        "redis://127.0.0.1:1?secret=PW",
        "mysql:postgres://a:PW@127.0.0.1:1",
        "a:PW@127.0.0.1:1/db",
        "once.db?password=PW",
        "?password=PW:x",
    ];
    urls.map(with).into()
}

#[test]
fn a_password_in_a_malformed_url_is_not_repeated_by_any_command() {
    let bench = Bench::new();
    bench.write("export", "{\"exported\":0}\n");
    let commands: [&[&str]; 21] = [
        &["run", "--key", "a", "--", "true"],
        &["run", "--key", "a", "--dry-run", "--", "true"],
        &["ls"],
        &["show", "op_a"],
        &["wait", "op_a"],
        &["report"],
        &["cost"],
        &["stats"],
        &["gc"],
        &["gc", "--dry-run"],
        &["settle", "op_a", "--as", "done"],
        &["cancel", "op_a"],
        &["forget", "op_a", "--force"],
        &["verify", "op_a"],
        &["export"],
        &["import", "export"],
        &["import", "--dry-run", "export"],
        &["backup", "copy.db"],
        &["doctor"],
        &["config", "show"],
        &["mcp", "--explain", "--", "true"],
    ];
    for (row, url) in malformed().into_iter().enumerate() {
        // Each URL goes to a third of the commands, and each command answers in both ways, to other URLs.
        for command in commands.into_iter().skip(row % 3).step_by(3) {
            let flags = if row % 2 == 0 { &["--json"][..] } else { &[] };
            let args = [&["--ledger", &url], flags, command].concat();
            silent(&bench.once(&args), &format!("{args:?}"));
        }
        // In the wrong place of the command line, and in a policy.
        let flag = format!("--leger={url}");
        for args in [&[url.as_str()][..], &["ls", &url], &["--json", "ls", &url], &["ls", &flag]] {
            silent(&bench.once(args).exits(2), &format!("{args:?}"));
        }
        bench.write("p.toml", format!("[ledger]\nurl = \"{url}\"\n"));
        for command in [&["config", "show"][..], &["--json", "doctor"], &["ls"], &["config", "check"]] {
            let args = [&["--config", "p.toml"], command].concat();
            let said: Said = bench.command(&args).env_remove("ONCE_LEDGER").output().unwrap().into();
            silent(&said, &format!("{url} {args:?}"));
        }
    }
    assert!(!bench.path("ran").exists());
}

#[test]
fn a_path_that_looks_like_a_password_is_used_and_not_shown() {
    let bench = Bench::new();
    let folder = format!("a:{CANARY}@host");
    std::fs::create_dir(bench.path(&folder)).unwrap();
    let url = format!("sqlite:{folder}/once.db");
    let doubt = ["run", "--key", "d", "--", "sh", "-c", "kill -9 $$"];
    for args in [
        &doubt[..],
        &doubt,
        &["--json", "show", "d"],
        &["doctor"],
        &["--json", "doctor"],
        &["config", "show"],
    ] {
        let said = with_ledger(&bench, &url, args);
        silent(&said, &format!("{args:?}"));
        silent(&bench.once(&[&["--ledger", &url], args].concat()), &format!("{args:?}"));
    }
    assert!(bench.path(&folder).join("once.db").exists());
}

#[test]
fn a_mistake_in_a_policy_does_not_quote_the_line() {
    let bench = Bench::new();
    for text in [
        format!("[ledger]\nurll = \"postgres://a:{CANARY}@h\"\n"),
        format!("[ledger]\nurl = \"postgres://a:{CANARY}@h\n"),
        format!("[ledger]\nurl = \"postgres://a:{CANARY}@h\" x\n"),
        format!("[ledger]\nurl = [\"postgres://a:{CANARY}@h\"]\n"),
        format!("[defaults]\nattempts = \"postgres://a:{CANARY}@h\"\n"),
        format!("[ledger]\nurl = \"redis://h?password={CANARY}\"\n"),
    ] {
        bench.write("p.toml", &text);
        for args in [&["config", "check", "p.toml"][..], &["--json", "config", "check", "p.toml"]] {
            let said: Said = bench.command(args).env_remove("ONCE_LEDGER").output().unwrap().into();
            assert_ne!(said.exit, 0, "{text}");
            silent(&said, &text);
        }
    }
    bench.once(&["config", "init", "mine.toml"]).exits(0);
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(bench.path("mine.toml")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
}

/// A server with a password, and the URL that has it.
fn with_password() -> (Redis, String) {
    let server = Redis::start();
    let url = server.fresh();
    drop(server.cli(&["config", "set", "requirepass", CANARY]));
    let url = url.replacen("redis://", &format!("redis://:{CANARY}@"), 1);
    (server, url)
}

#[test]
fn commands_are_not_told_the_password_and_nested_calls_say_so() {
    let bench = Bench::new();
    let (_server, url) = with_password();
    let env = "env > env.txt";
    let run = |flags: &[&str], key: &str, command: &str| {
        let args = [&["run", "--key", key], flags, &["--", "sh", "-c", command]].concat();
        with_ledger(&bench, &url, &args)
    };
    run(&["--verify", "env > check.txt"], "a", env).exits(0);
    let environment = bench.read("env.txt");
    assert!(!environment.contains(CANARY) && environment.contains("ONCE_LEDGER=redis://@"), "{environment}");
    assert!(!bench.read("check.txt").contains(CANARY));
    // A nested call names the same ledger and is refused there. It does not use another one in silence.
    let once = env!("CARGO_BIN_EXE_once");
    let nested = format!("{once} run --key inner -- touch inner");
    run(&[], "b", &nested).exits(79);
    assert!(!bench.path("inner").exists());
    run(&["--pass-ledger"], "c", &nested).exits(0);
    assert!(bench.path("inner").exists());
    // A server of someone else's is not told either.
    let args = ["mcp", "--explain", "--", "sh", "-c", "env > server.txt"];
    with_ledger(&bench, &url, &args);
    let environment = bench.read("server.txt");
    assert!(!environment.is_empty() && !environment.contains(CANARY), "{environment}");
}

#[test]
fn a_password_in_a_file_or_a_variable_is_in_no_process_list() {
    let bench = Bench::new();
    let (_server, url) = with_password();
    let bare = url.replacen(&format!(":{CANARY}@"), "", 1);
    bench.write("password", format!("{CANARY}\n"));
    let join = if bare.contains('?') { '&' } else { '?' };
    let by_file = format!("{bare}{join}password_file={}", bench.path("password").display());
    bench.once(&["--ledger", &by_file, "run", "--key", "f", "--", "true"]).exits(0);
    // Percent-encoded, as a program may write it.
    let by_variable = format!("{bare}{join}password_env=LEDGER%5FPASSWORD");
    let command = "env > env.txt; while [ ! -e release ]; do sleep 0.02; done";
    let mut once = bench.command(&["--ledger", &by_variable, "run", "--key", "v", "--", "sh", "-c", command]);
    let mut running = once.env("LEDGER_PASSWORD", CANARY).spawn().unwrap();
    eventually("the command runs", || !bench.read("env.txt").is_empty());
    let line = std::fs::read_to_string(format!("/proc/{}/cmdline", running.id())).unwrap();
    bench.release();
    assert!(running.wait().unwrap().success());
    assert!(!line.contains(CANARY) && !bench.read("env.txt").contains(CANARY), "{line}");
}

#[test]
fn no_process_that_is_started_shows_a_secret() {
    let bench = Bench::new();
    let (_server, url) = with_password();
    let command = "cat > /dev/null; touch up; while [ ! -e release ]; do sleep 0.02; done";
    let mut once = bench.command(&["run", "--key", "k", "--stdin", "--", "sh", "-c", command]);
    once.env("ONCE_LEDGER", &url).env("ONCE_MCP_TOKEN", CANARY).stdin(std::process::Stdio::piped());
    let mut running = once.spawn().unwrap();
    std::io::Write::write_all(&mut running.stdin.take().unwrap(), CANARY.as_bytes()).unwrap();
    eventually("the command runs", || bench.path("up").exists());
    let started = started_by(running.id());
    bench.release();
    assert!(running.wait().unwrap().success());
    // The keeper is `once` itself: it has the environment that the user gave.
    let is_keeper = |line: &str| line.contains("__keep-lease");
    assert!(started.iter().any(|process| is_keeper(&process.line)), "there is a keeper");
    assert!(started.iter().any(|process| !is_keeper(&process.line)), "there is a command");
    for process in started {
        assert!(!process.line.contains(CANARY), "{}", process.line);
        assert!(is_keeper(&process.line) || !process.environment.contains(CANARY), "{}", process.line);
    }
}

#[test]
fn a_password_in_a_policy_is_in_no_other_file_and_in_no_answer() {
    let bench = Bench::new();
    let (_server, url) = with_password();
    bench.write("onceward.toml", format!("[ledger]\nurl = \"{url}\"\n"));
    let once =
        |args: &[&str]| -> Said { bench.command(args).env_remove("ONCE_LEDGER").output().unwrap().into() };
    once(&["config", "allow"]).exits(0);
    let doubt = ["run", "--key", "d", "--", "sh", "-c", "env > env.txt; kill -9 $$"];
    silent(&once(&doubt).exits(79), "a doubt");
    for args in [
        &["--json", "show", "d"][..],
        &["doctor"],
        &["--json", "doctor"],
        &["config", "show"],
        &["--json", "config", "show"],
        &["config", "check"],
        &["report"],
        &["export"],
        &["mcp", "--explain", "--", "sh", "-c", "env > server.txt"],
    ] {
        silent(&once(args), &format!("{args:?}"));
    }
    for (path, (_, bytes)) in bench.listing() {
        let is_policy = path.as_os_str() == "onceward.toml";
        assert!(is_policy || !String::from_utf8_lossy(&bytes).contains(CANARY), "{}", path.display());
    }
    assert!(bench.path("env.txt").exists() && bench.path("server.txt").exists());
}

#[test]
fn a_next_step_names_the_ledger_without_its_password() {
    let bench = Bench::new();
    let (_server, url) = with_password();
    let doubt = ["run", "--key", "d", "--", "sh", "-c", "kill -9 $$"];
    let said = bench.once(&[&["--ledger", &url], &doubt[..]].concat()).exits(79);
    silent(&said, "by a flag");
    assert!(said.err().contains("once --ledger ") && said.err().contains("redis://@"), "{}", said.err());
    let said = with_ledger(&bench, &url, &doubt).exits(79);
    assert!(said.err().contains("  once show op_"), "the environment names it: {}", said.err());
}

#[test]
fn what_the_policy_redacts_is_stored_nowhere() {
    let bench = Bench::new();
    bench.policy("[defaults]\nredact = [\"re:S3CRET[a-z]+\", \"json:/token\"]\n");
    let output = format!("echo 'key {CANARY}'; echo '{CANARY}' >&2; echo done");
    let first = bench.once(&["run", "--key", "a", "--store-command", "--", "sh", "-c", &output]).exits(0);
    assert!(all(&first).contains(CANARY), "the first caller sees what the command writes");
    let replay = bench.once(&["run", "--key", "a", "--store-command", "--", "sh", "-c", &output]).exits(0);
    assert_eq!(replay.out(), "key [redacted]\ndone");
    let json = "echo '{\"id\": 7, \"token\": \"hidden-one\"}'";
    bench.once(&["run", "--key", "b", "--", "sh", "-c", json]).exits(0);
    let shown = bench.once(&["show", "b", "--output"]).exits(0).out();
    assert_eq!(shown, "{\"id\": 7, \"token\": \"[redacted]\"}");
    for (path, (_, bytes)) in bench.listing() {
        let text = String::from_utf8_lossy(&bytes);
        let ours = path.to_string_lossy().starts_with("once.db");
        assert!(!ours || !(text.contains(CANARY) || text.contains("hidden-one")), "{}", path.display());
    }
    silent(&bench.once(&["export"]).exits(0), "an export");
}

#[test]
fn what_is_said_of_a_doubt_is_redacted_too() {
    let bench = Bench::new();
    bench.policy("[defaults]\nredact = [\"re:S3CRET[a-z]+\", \"json:/token\"]\n");
    let id = bench.with_doubt();
    let data = format!("{{\"id\": 7, \"token\": \"hidden-one\", \"url\": \"/a?k={CANARY}\"}}");
    let note = format!("seen with {CANARY}");
    bench.once(&["settle", &id, "--as", "done", "--data", &data, "--note", &note]).exits(0);
    let outcome = bench.json(&["show", &id])["data"]["outcome"].clone();
    let expected = serde_json::json!({"id": 7, "token": "[redacted]", "url": "/a?k=[redacted]"});
    assert_eq!(
        (&outcome["data"], &outcome["settled_by"]["note"]),
        (&expected, &serde_json::json!("seen with [redacted]"))
    );
    let check = format!("echo {CANARY} is missing; exit 10");
    bench.once(&["verify", &id, "--check", &check]).exits(79);
    for (path, (_, bytes)) in bench.listing() {
        let text = String::from_utf8_lossy(&bytes);
        let ours = path.to_string_lossy().starts_with("once.db");
        assert!(!ours || !(text.contains(CANARY) || text.contains("hidden-one")), "{}", path.display());
    }
    silent(&bench.once(&["export"]).exits(0), "an export");
}

#[test]
fn inputs_are_in_no_file() {
    let bench = Bench::new();
    let args = ["run", "--key", "a", "--stdin", "--env", "TOKEN", "--", "sh", "-c", "cat >/dev/null", CANARY];
    let mut once = bench.command(&args);
    let mut running = once.env("TOKEN", CANARY).stdin(std::process::Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut running.stdin.take().unwrap(), CANARY.as_bytes()).unwrap();
    assert!(running.wait().unwrap().success());
    for (path, (_, bytes)) in bench.listing() {
        assert!(!String::from_utf8_lossy(&bytes).contains(CANARY), "{}", path.display());
    }
    silent(&bench.once(&["export"]).exits(0), "an export");
    silent(&bench.once(&["show", "a"]).exits(0), "show");
}
