//! What the end of a command proves: an exit code alone proves nothing.

use serde_json::json;

use crate::common::server::{Server, closed};
use crate::common::{Bench, Said};

/// Calls the same line three times under one key. It must have one effect, and be reported as in doubt every time.
#[track_caller]
fn charges_once(bench: &Bench, key: &str, line: &str) {
    let before = bench.runs();
    for call in 1..=3 {
        let said = bench.shell(&format!("once --json run --key {key} -- {line}")).exits(79);
        let answer = said.json();
        let told = [&answer["error"]["code"], &answer["happened"], &answer["error"]["retryable"]];
        assert_eq!(told, [&json!("IN_DOUBT"), &json!("unknown"), &json!(false)], "{line}: {answer}");
        assert_eq!(answer["ran"], json!(call == 1), "{line}");
    }
    assert_eq!(bench.runs() - before, 1, "{line}: one charge in three calls");
}

/// Calls the same line twice under one key: it is reported as a failure without effect, and retried.
#[track_caller]
fn is_tried_again(bench: &Bench, key: &str, line: &str, exit: i32) {
    for attempt in 1..=2 {
        let answer = bench.shell(&format!("once --json run --key {key} -- {line}")).exits(exit).json();
        let told = [&answer["error"]["code"], &answer["happened"], &answer["operation"]["attempt"]];
        assert_eq!(told, [&json!("FAILED"), &json!("no"), &json!(attempt)], "{line}: {answer}");
    }
}

#[test]
fn curl_that_gives_up_on_a_charge_is_in_doubt() {
    let bench = Bench::new();
    let server = Server::start(&bench);
    charges_once(&bench, "timeout", &format!("curl -s --max-time 1 -X POST {}", server.url("hang")));
    charges_once(&bench, "no-reply", &format!("curl -s -X POST {}", server.url("drop")));
    charges_once(&bench, "http-500", &format!("curl -sf -X POST {}", server.url("error")));
    charges_once(&bench, "cannot-write", &format!("curl -s -X POST -o /dev/full {}", server.url("ok")));
}

#[test]
fn curl_that_is_refused_is_tried_again() {
    let bench = Bench::new();
    let url = format!("http://{}/charge", closed());
    is_tried_again(&bench, "refused", &format!("curl -sS -m 5 -X POST -d '{{\"amount\": [1]}}' {url}"), 7);
    is_tried_again(&bench, "no-host", "curl -s -X POST http://no-such-host.invalid/", 6);
    is_tried_again(&bench, "usage", "curl --no-such-option", 2);
    bench.policy("[defaults]\nbackoff = \"1ms\"\n");
    let answer = bench.json(&["run", "--key", "retries", "--retries", "3", "--", "curl", "-s", &url]);
    assert_eq!(
        answer["operation"]["attempt"], 4,
        "a refused connection is certain, so it is tried again at once"
    );
    assert_eq!((&answer["error"]["retryable"], &answer["happened"]), (&json!(true), &json!("no")));
}

#[test]
fn curl_that_may_have_sent_something_before_it_was_refused_is_in_doubt() {
    let bench = Bench::new();
    let server = Server::start(&bench);
    let (ok, redirect, closed) = (server.bare("ok"), server.url("redirect"), closed());
    charges_once(&bench, "redirect", &format!("curl -sL -X POST {redirect}"));
    charges_once(&bench, "spelled-out", &format!("curl -s --location-t -X POST {redirect}"));
    charges_once(&bench, "two-urls", &format!("curl -s -X POST {ok} {closed}"));
    charges_once(&bench, "next", &format!("curl -s -X POST {ok} --next {closed}"));
    charges_once(&bench, "url-option", &format!("curl -s -X POST {ok} --url {closed}"));
    bench.write("more", format!("url = {closed}\n"));
    charges_once(&bench, "config", &format!("curl -s -X POST {ok} -K more"));
    // Options in curl's configuration file count like arguments.
    std::fs::create_dir_all(bench.path("home")).unwrap();
    bench.write("home/.curlrc", "# mine\nuser-agent = \"x\"\nlocation\n");
    charges_once(&bench, "configured", &format!("curl -s -X POST {redirect}"));
}

#[test]
fn a_command_whose_wrapper_gives_up_is_in_doubt() {
    let bench = Bench::new();
    bench.script("charge.sh", "echo ran >> runs; exec sleep 60");
    charges_once(&bench, "timeout", "timeout 1 ./charge.sh");
    charges_once(&bench, "inner-kill", "sh -c 'sh -c \"echo ran >> runs; kill -9 \\$\\$\"; exit $?'");
    charges_once(&bench, "xargs", "xargs -a /etc/hostname sh -c 'echo ran >> runs; exit 1'");
    charges_once(&bench, "env", "env A=b sh -c 'echo ran >> runs; exit 3'");
}

#[test]
fn a_script_that_ends_with_a_read_timeout_is_in_doubt() {
    let bench = Bench::new();
    let server = Server::start(&bench);
    let script = "import sys, urllib.request\nurllib.request.urlopen(sys.argv[1], data=b'{}', timeout=1)\n";
    bench.write("pay.py", script);
    charges_once(&bench, "pay", &format!("python3 pay.py {}", server.url("hang")));
}

#[test]
fn no_exit_code_of_an_unknown_command_proves_anything() {
    let bench = Bench::new();
    // Wrong usage, our own codes, docker's, ssh's, timeout's, and what a shell tells of a signal.
    for code in [1, 2, 3, 4, 5, 6, 10, 12, 28, 52, 79, 100, 123, 124, 125, 126, 127, 128, 130, 137, 143, 255]
    {
        let script = format!("echo ran >> runs; exit {code}");
        let args = ["run", "--key", &format!("exit-{code}"), "--retries", "3", "--", "sh", "-c", &script];
        for _ in 0..2 {
            bench.once(&args).exits(79);
        }
    }
    assert_eq!(bench.runs(), 22, "each ran once, whatever --retries says");
}

#[test]
fn a_script_that_breaks_off_after_its_effect_is_in_doubt() {
    let bench = Bench::new();
    for (key, script) in [
        ("set-e", "set -e; echo ran >> runs; false; echo never"),
        ("pipefail", "set -eo pipefail; { echo ran >> runs; echo more; } | false"),
        ("trap", "trap 'exit 3' EXIT; echo ran >> runs; no-such-program"),
        ("unset", "set -u; echo ran >> runs; echo $NO_SUCH_VARIABLE"),
        ("usage", "echo ran >> runs; curl --no-such-option"),
        ("subshell", "(echo ran >> runs; kill -9 $BASHPID)"),
        ("syntax", "echo ran >> runs\nif"),
    ] {
        bench.write("script", script);
        charges_once(&bench, key, "bash script");
    }
}

#[test]
fn a_shell_that_finds_no_command_did_nothing() {
    let bench = Bench::new();
    bench.write("not-executable", "");
    is_tried_again(&bench, "missing", "sh -c 'no-such-program --pay 5'", 127);
    is_tried_again(&bench, "no-path", "bash -c ./no-such-program", 127);
    is_tried_again(&bench, "no-x", "sh -c ./not-executable", 126);
}

#[test]
fn a_shell_that_ends_as_if_it_found_no_command_may_have_done_something() {
    let bench = Bench::new();
    bench.script("gone.sh", "echo ran >> runs; exit 127");
    bench.script("denied.sh", "echo ran >> runs; exit 126");
    bench.script("last.sh", "echo ran >> runs; rm last.sh; exit 127");
    for (number, line) in [
        "sh -c ./gone.sh",
        "sh -c ./denied.sh",
        "sh -c 'exec ./gone.sh'",
        "sh -c 'command ./gone.sh'",
        "sh -c 'eval ./gone.sh'",
        "sh -c '. ./gone.sh'",
        "bash -c 'source ./gone.sh'",
        "bash -c 'time ./gone.sh'",
        "sh -c ./last.sh",
        "sh -c './gone.sh; no-such-program'",
        "bash -c './gone.sh\nno-such-program'",
    ]
    .iter()
    .enumerate()
    {
        charges_once(&bench, &format!("k{number}"), line);
    }
    let line = "f() { echo ran >> runs; return 127; }; export -f f; once run --key function -- bash -c f";
    bench.shell(line).exits(79);
    bench.write("startup", "echo ran >> runs\n");
    bench.shell("BASH_ENV=startup once run --key startup -- bash -c no-such-program").exits(79);
}

#[test]
fn exits_can_be_declared() {
    let bench = Bench::new();
    let run = |flags: &[&str], program: &str| -> Said {
        bench.once(
            &[&["run", "--key", &format!("{program}{}", flags.join(""))], flags, &["--", program]].concat(),
        )
    };
    bench.script("./pay", "exit 3").script("./refund", "exit 4");
    run(&["--fail-exit", "2,3"], "./pay").exits(3);
    run(&["--fail-exit", "2,4"], "./pay").exits(79);
    run(&["--fail-exit", "3", "--doubt-exit", "3"], "./pay").exits(79);
    bench.policy("[exits.pay]\nno_effect = [3]\n[operation.refund]\nno_effect_exits = [4]\n");
    run(&[], "./pay").exits(3);
    run(&[], "./refund").exits(4);
    run(&["--doubt-exit", "4"], "./refund").exits(79);
}

#[test]
fn a_program_that_passes_on_the_exit_code_of_another_proves_nothing() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("bin")).unwrap();
    bench.script("bin/git-pay", "echo ran >> runs; kill -HUP $$");
    bench.script("pay.sh", "echo ran >> runs; exit $1");
    charges_once(&bench, "alias", "git -c 'alias.pay=!./pay.sh 129' pay");
    charges_once(&bench, "server", "once mcp -- ./pay.sh 2");
    let line = "PATH=$PWD/bin:$PATH; once run --key hang-up -- git pay";
    bench.shell(line).exits(79);
    bench.shell(line).exits(79);
    assert_eq!(bench.runs(), 3);
}

#[test]
fn curl_that_uploads_is_in_doubt() {
    let bench = Bench::new();
    bench.write("a", "").write("b", "");
    // One target, but several files: the first may be there when the second is refused. FTP makes folders first.
    for (key, line) in [
        ("apart", format!("curl -s -T '{{a,b}}' http://{}/", closed())),
        ("joined", format!("curl -s '-T{{a,b}}' http://{}/", closed())),
        ("long", format!("curl -s --upload-file '{{a,b}}' http://{}/", closed())),
        ("folders", format!("curl -s --ftp-create-dirs -T a ftp://{}/new/a", closed())),
    ] {
        bench.shell(&format!("once run --key {key} -- {line}")).exits(79);
    }
}

#[test]
fn a_server_cannot_say_for_curl_that_nothing_happened() {
    let bench = Bench::new();
    // What the program prints looks like our envelope, but curl's own exit code says "timeout".
    let envelope = r#"{"ok":false,"effect":"noop","error":{"code":"FAILED","message":"no","happened":"no"}}"#;
    std::fs::create_dir(bench.path("bin")).unwrap();
    bench.script("bin/curl", &format!("echo ran >> runs; echo '{envelope}'; exit 28"));
    charges_once(&bench, "lie", "./bin/curl http://127.0.0.1/");
    // Nor can a tool that does not show that it was started itself.
    bench.script("bin/tool", &format!("echo ran >> runs; echo '{envelope}'; exit 9"));
    charges_once(&bench, "tool", "./bin/tool");
}

#[test]
fn only_a_program_of_the_system_is_known_by_its_name() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("bin")).unwrap();
    bench.script("bin/curl", "echo ran >> runs; exit 7");
    bench.script("bin/rsync", "echo ran >> runs; exit 1").script("bin/aws", "echo ran >> runs; exit 252");
    charges_once(&bench, "path", "./bin/curl http://127.0.0.1/");
    charges_once(&bench, "rsync", "./bin/rsync");
    let line = "PATH=$PWD/bin:$PATH once run --key search -- curl http://127.0.0.1/";
    bench.shell(line).exits(79);
    bench.shell("PATH=$PWD/bin:$PATH once run --key alias -- aws pay").exits(79);
    // What the policy says about a name counts for whatever has it.
    bench.policy("[exits.curl]\nno_effect = [7]\n");
    is_tried_again(&bench, "declared", "./bin/curl http://127.0.0.1/", 7);
}

#[test]
fn the_last_of_several_commands_does_not_speak_for_the_others() {
    let bench = Bench::new();
    let envelope = r#"{"ok":false,"effect":"noop","error":{"code":"FAILED","message":"no","happened":"no"}}"#;
    bench.script("pay.sh", "echo ran >> runs");
    bench.script("tool", &format!("echo '{envelope}'; exit 9"));
    bench.write("Makefile", "all:\n\t@./pay.sh\n\t@./tool\n");
    charges_once(&bench, "list", "sh -c './pay.sh; ./tool'");
    charges_once(&bench, "and", "bash -ec './pay.sh && exec ./tool'");
    charges_once(&bench, "file", "bash -c '. ./pay.sh; ./tool'");
    charges_once(&bench, "xargs", "xargs -a /etc/hostname sh -c './pay.sh; ./tool'");
    charges_once(&bench, "make", "make -s");
    charges_once(&bench, "behind", "env A=b timeout 20 sh -c './pay.sh; ./tool'");
}

#[test]
fn a_success_that_says_that_nothing_happened_is_none() {
    let bench = Bench::new();
    let said = |effect: &str, happened: &str, ran: bool| {
        format!(r#"{{"ok":true,"effect":"{effect}","happened":"{happened}","ran":{ran}}}"#)
    };
    for (key, envelope, state) in [
        ("planned", said("would_create", "no", false), "failed"),
        ("nothing", said("noop", "no", false), "failed"),
        ("held", said("held", "no", false), "in_doubt"),
        ("unknown", said("updated", "unknown", true), "in_doubt"),
        ("read", said("noop", "no", true), "done"),
        ("done", said("created", "yes", true), "done"),
        (
            "batch",
            format!("{{}}\n{}", said("held", "no", false).replacen('{', "{\"_summary\":true,", 1)),
            "in_doubt",
        ),
    ] {
        // It shows its witness if it is the program that was started.
        let signed = format!("{}$own}}", envelope.strip_suffix('}').unwrap());
        bench.script(
            "tool",
            &format!(
                "set -- \"$(realpath \"$0\")\" $ONCE_WITNESS\n\
                 [ \"$PPID $1\" = \"$2 $4\" ] && own=',\"witness\":\"'$3'\"'\n\
                 cat <<END\n{signed}\nEND"
            ),
        );
        let exit = bench.once(&["run", "--key", key, "--", "./tool"]).exit;
        assert_eq!(exit == 0, state == "done", "{key}: exit {exit}");
        assert_eq!(bench.json(&["show", key])["data"]["state"], state, "{key}");
        // A shell runs several commands, and the answer may be that of one of them.
        let in_shell = format!("{key}-sh");
        bench.once(&["run", "--key", &in_shell, "--", "sh", "-c", "./tool"]);
        let state = if state == "failed" { "in_doubt" } else { state };
        assert_eq!(bench.json(&["show", &in_shell])["data"]["state"], state, "{in_shell}");
    }
    let read = bench.json(&["show", "read"]);
    assert_eq!(read["data"]["outcome"]["effect"], "noop", "{read}");
    // Nor is it one if the answer is long.
    let long =
        format!("{}{}\"}}", r#"{"ok":true,"effect":"held","happened":"no","pad":""#, "x".repeat(400_000));
    bench.write("long", &long);
    bench.once(&["run", "--key", "long", "--", "cat", "long"]).exits(79);
}
