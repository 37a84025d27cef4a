//! Standard input belongs to a call that has no key: another input is another action.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use crate::common::{Bench, Said};

const MAIL: [&str; 7] = ["run", "--keys", "strict", "--", "sh", "-c", "echo ran >> runs; cat"];

#[test]
fn another_body_is_another_mail() {
    let bench = Bench::new();
    for body in ["one", "two", "one", "two\n"] {
        assert_eq!(bench.once_with_stdin(&MAIL, body.as_bytes()).exits(0).out, body.as_bytes());
    }
    assert_eq!(bench.runs(), 3);
    // A file counts like a pipe, and an empty one like none.
    bench.write("body", "one").write("empty", "");
    let from = |file: &str| -> Said {
        let file = std::fs::File::open(bench.path(file)).unwrap();
        bench.command(&MAIL).stdin(file).output().unwrap().into()
    };
    assert_eq!(from("body").exits(0).out(), "one");
    assert_eq!(bench.runs(), 3);
    from("empty").exits(0);
    bench.once(&MAIL).exits(0);
    assert_eq!(bench.runs(), 4);
}

#[test]
fn a_number_by_itself_counts_by_its_bytes() {
    let bench = Bench::new();
    for version in ["1.1", "1.10", "1.100", "\"1\"", "1", " 1", "null", "true"] {
        bench.once_with_stdin(&MAIL, version.as_bytes()).exits(0);
    }
    assert_eq!(bench.runs(), 8);
    for (name, version) in [("a", "1.1"), ("b", "1.10"), ("c", "1.1")] {
        bench.write(name, version);
        bench
            .once(&["run", "--keys", "strict", "--input-file", name, "--", "sh", "-c", "echo ran >> runs"])
            .exits(0);
    }
    assert_eq!(bench.runs(), 10);
}

#[test]
fn a_socket_counts_like_a_pipe() {
    let bench = Bench::new();
    for (body, runs) in [("one", 1), ("two", 2), ("one", 2)] {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let child = bench.command(&MAIL).stdin(Stdio::from(OwnedFd::from(theirs))).spawn().unwrap();
        ours.write_all(body.as_bytes()).unwrap();
        drop(ours);
        let said = Said::from(child.wait_with_output().unwrap()).exits(0);
        assert_eq!((said.out().as_str(), bench.runs()), (body, runs));
    }
}

#[test]
fn no_standard_input_is_fine() {
    let bench = Bench::new();
    for redirection in ["<&-", "< /dev/null", "< /dev/zero"] {
        bench.shell(&format!("once run -- sh -c 'echo ran >> runs' {redirection}")).exits(0);
    }
    assert_eq!(bench.runs(), 3);
}

#[test]
fn an_open_pipe_that_says_nothing_is_refused_with_the_way_out() {
    let bench = Bench::new();
    let mut child = bench.command(&MAIL).stdin(Stdio::piped()).spawn().unwrap();
    let open = child.stdin.take();
    let said = Said::from(child.wait_with_output().unwrap()).exits(2);
    drop(open);
    for hint in ["standard input is open, but nothing was read", "</dev/null", "--ignore stdin", "--stdin"] {
        assert!(said.err().contains(hint), "{hint}: {}", said.err());
    }
    assert_eq!(bench.runs(), 0);
    // Left out by name, or under a key, it is the command's own.
    for flag in [&["--ignore", "stdin"][..], &["--key", "a"]] {
        let args = [&["run"], flag, &["--", "sh", "-c", "echo ran >> runs"]].concat();
        let mut child = bench.command(&args).stdin(Stdio::piped()).spawn().unwrap();
        let _open = child.stdin.take();
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(bench.runs(), 2);
}

#[test]
fn a_large_input_is_passed_on_whole_and_a_huge_one_is_refused() {
    let bench = Bench::new();
    let count = ["run", "--", "sh", "-c", "echo ran >> runs; wc -c"];
    assert_eq!(bench.once_with_stdin(&count, &vec![b'x'; 20_000_000]).exits(0).out().trim(), "20000000");
    let line = "head -c 70000000 /dev/zero | once run -- sh -c 'echo ran >> runs; wc -c'";
    let said = bench.shell(line).exits(2);
    assert!(
        said.err().contains("larger than 64 MiB") && said.err().contains("--ignore stdin"),
        "{}",
        said.err()
    );
    assert_eq!(bench.runs(), 1);
    let line = "head -c 70000000 /dev/zero | once run --ignore stdin -- sh -c 'echo ran >> runs; wc -c'";
    assert_eq!(bench.shell(line).exits(0).out().trim(), "70000000");
}

#[test]
fn input_that_the_command_did_not_read_is_told() {
    let bench = Bench::new();
    // The command is asked for each line, but the first call has read all of them.
    let line = "printf 'a\\nb\\nc\\n' | while read -r name; do once run -- echo $name; done";
    let said = bench.shell(line).exits(0);
    assert_eq!(said.out(), "a");
    let warning =
        "once: warning: the command did not read 4 of the 4 bytes that once had read from standard input";
    assert!(said.err().contains(warning) && said.err().contains("</dev/null"), "{}", said.err());
    for way in ["once run -- echo $name </dev/null", "once run --ignore stdin -- echo $name"] {
        let said =
            bench.shell(&format!("printf 'a\\nb\\nc\\n' | while read -r name; do {way}; done")).exits(0);
        assert_eq!((said.out().as_str(), said.err().as_str()), ("a\nb\nc", ""), "{way}");
    }
    // More than a pipe holds, of which the command reads a part.
    let said = bench.once_with_stdin(&["--json", "run", "--", "head", "-c", "5"], &[b'x'; 300_000]);
    assert!(said.json()["warnings"][0].as_str().unwrap().contains("of the 300000 bytes"), "{}", said.out());
    let said = bench.once_with_stdin(&["--json", "run", "--", "wc", "-c"], &[b'x'; 300_000]);
    assert_eq!(said.json()["warnings"], serde_json::json!([]));
}
