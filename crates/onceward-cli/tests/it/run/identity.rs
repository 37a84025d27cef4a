//! Which operation a command is: scope, name, key, occurrence, inputs.

use insta::assert_snapshot;

use crate::common::{Bench, COUNTED, Said};

/// A command that counts its runs, with other words behind it that belong to it and change nothing.
fn counted<'a>(flags: &[&'a str], words: &[&'a str]) -> Vec<&'a str> {
    [&["run"], flags, &["--", "sh", "-c", COUNTED, "sh"], words].concat()
}

#[test]
fn the_command_is_told_who_it_is() {
    let bench = Bench::new();
    let script = "echo $ONCE_KEY $ONCE_ATTEMPT $ONCE_SCOPE; echo $ONCE_OPERATION $IDEMPOTENCY_KEY; exit 3";
    let args = ["run", "--key", "pay-7", "--scope", "flow", "--fail-exit", "3", "--", "sh", "-c", script];
    let first = bench.once(&args).exits(3).out();
    let second = bench.once(&args).exits(3).out();
    assert_snapshot!(first, @r"
    pay-7 1 flow
    op_… op_…
    ");
    assert_snapshot!(second, @r"
    pay-7 2 flow
    op_… op_…
    ");
    let said = bench.once(&args).out;
    assert!(String::from_utf8(said).unwrap().contains(&bench.newest()), "the id is the operation's");
}

#[test]
fn the_downstream_key_is_the_same_for_every_attempt_and_another_in_every_scope() {
    let bench = Bench::new();
    let key = |scope: &str| {
        let said = ["run", "--key", "a", "--scope", scope, "--fail-exit", "1", "--", "sh", "-c"];
        bench.once(&[&said[..], &["echo $IDEMPOTENCY_KEY; exit 1"]].concat()).exits(1).out
    };
    assert_eq!(key("one"), key("one"));
    assert_ne!(key("one"), key("two"));
}

#[test]
fn two_scopes_share_nothing() {
    let bench = Bench::new();
    for scope in ["one", "two", "one", "two"] {
        bench.once(&counted(&["--key", "a", "--scope", scope], &[])).exits(0);
    }
    assert_eq!(bench.runs(), 2);
    // With the key of the other scope the inputs need not fit either.
    bench.once(&counted(&["--key", "a", "--scope", "three"], &["other"])).exits(0);
    assert_eq!(bench.runs(), 3);
}

#[test]
fn two_names_share_nothing() {
    let bench = Bench::new();
    for name in ["pay", "refund", "pay"] {
        bench.once(&counted(&["--key", "a", "--name", name], &[])).exits(0);
    }
    assert_eq!(bench.runs(), 2);
}

#[test]
fn a_repeat_is_wanted_by_another_occurrence() {
    let bench = Bench::new();
    for flags in [&[][..], &["--key", "a"]] {
        for occurrence in ["1", "2", "monday", "2", "monday"] {
            bench.once(&counted(&[flags, &["--occurrence", occurrence]].concat(), &[])).exits(0);
        }
        bench.once(&counted(&[flags, &["--occurrence", "1"]].concat(), &[])).exits(0);
    }
    assert_eq!(bench.runs(), 6, "1, 2 and monday, each once, for a derived and for a given key");
}

#[test]
fn without_a_key_the_arguments_identify_the_operation() {
    let bench = Bench::new();
    for word in ["a", "b", "a", "b"] {
        bench.once(&counted(&["--keys", "strict"], &[word])).exits(0);
    }
    assert_eq!(bench.runs(), 2);
}

#[test]
fn a_variable_identifies_it_where_that_is_said() {
    let bench = Bench::new();
    let run = |flags: &[&str], account: &str| -> Said {
        bench.command(&counted(flags, &[])).env("ACCOUNT", account).output().unwrap().into()
    };
    for account in ["a", "b", "a"] {
        run(&["--keys", "strict", "--env", "ACCOUNT"], account).exits(0);
    }
    assert_eq!(bench.runs(), 2);
    for account in ["a", "b"] {
        run(&["--keys", "strict"], account).exits(0);
    }
    assert_eq!(bench.runs(), 3, "a variable that is not named does not count");
}

#[test]
fn standard_input_identifies_it_and_is_passed_on() {
    let bench = Bench::new();
    let args = ["run", "--keys", "strict", "--", "sh", "-c", "echo ran >> runs; cat"];
    for text in ["one", "two", "one"] {
        assert_eq!(bench.once_with_stdin(&args, text.as_bytes()).exits(0).out(), text);
    }
    assert_eq!(bench.runs(), 2);
    // JSON counts by its meaning, not by its bytes.
    bench.once_with_stdin(&args, br#"{"a": 1, "b": [2]}"#).exits(0);
    bench.once_with_stdin(&args, b"{\"b\":[2.0],\n\"a\":1e0}").exits(0);
    assert_eq!(bench.runs(), 3);
}

#[test]
fn a_file_identifies_it_by_its_content() {
    let bench = Bench::new();
    for (name, content) in [("a", "one"), ("b", "one"), ("c", "two")] {
        bench.write(name, content);
        bench.once(&counted(&["--keys", "strict", "--input-file", name], &[])).exits(0);
    }
    assert_eq!(bench.runs(), 2);
}

#[test]
fn chosen_fields_make_the_key_and_the_others_must_fit() {
    let bench = Bench::new();
    let run = |input: &str| {
        bench.once(&counted(&["--keys", "strict", "--key-fields", "order.id,/amount", "--input", input], &[]))
    };
    run(r#"{"order": {"id": 7}, "amount": 5, "note": "hello"}"#).exits(0);
    run(r#"{"amount": 5, "note": "hello", "order": {"id": 7}}"#).exits(0);
    assert_eq!(bench.runs(), 1);
    run(r#"{"order": {"id": 8}, "amount": 5, "note": "hello"}"#).exits(0);
    assert_eq!(bench.runs(), 2);
    let said = run(r#"{"order": {"id": 7}, "amount": 5, "note": "sesame"}"#).exits(6);
    assert_snapshot!(said.err(), @r"
    once: KEY_REUSED this key was already used for a different action (/input/note differs); nothing was run
    once: happened: yes, ran: no, retryable: no
    once: next: if this is the same action, it is done; only for a different action use another key:
    once:   once --ledger sqlite:…/once.db show op_…
    ");
    assert_eq!(bench.runs(), 2);
}

#[test]
fn a_reused_key_names_fields_and_never_values() {
    let bench = Bench::new();
    let input = r#"{"card": "4111-withheld", "amount": 5}"#;
    bench.once(&counted(&["--key", "a", "--input", input], &[])).exits(0);
    let other = r#"{"card": "4242-hidden", "amount": 5, "tip": 1}"#;
    let said = bench.once(&counted(&["--key", "a", "--input", other, "--json"], &[])).exits(6);
    let text = said.out();
    assert!(text.contains("/input/card") && text.contains("/input/tip"), "{text}");
    assert!(
        !text.contains("withheld") && !text.contains("hidden") && !text.contains("/input/amount"),
        "{text}"
    );
    let files: Vec<u8> = bench.listing().into_values().flat_map(|(_, bytes)| bytes).collect();
    assert!(!files.windows(8).any(|bytes| bytes == b"withheld"), "inputs are not stored");
    assert_eq!(bench.runs(), 1);
}

#[test]
fn volatile_fields_may_differ() {
    let bench = Bench::new();
    let run = |flags: &[&str], trace: &str| {
        let input = format!(r#"{{"id": 7, "meta": {{"trace": "{trace}"}}}}"#);
        bench.once(&counted(&[&["--input", &input], flags].concat(), &[])).exit
    };
    let given = ["--key", "a", "--volatile", "meta.trace"];
    assert_eq!((run(&given, "x"), run(&given, "y"), bench.runs()), (0, 0, 1));
    let chosen = ["--keys", "strict", "--key-fields", "id", "--volatile", "/meta/trace"];
    assert_eq!((run(&chosen, "x"), run(&chosen, "y"), bench.runs()), (0, 0, 2));
    assert_eq!(run(&["--key", "a"], "z"), 6, "a field that is not volatile must fit");
}

/// The trace belongs to the call, not to the action: a retry has another one.
#[test]
fn the_trace_of_the_environment_is_stored_and_identifies_nothing() {
    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let bench = Bench::new();
    let run = |key: &str, trace: &str| {
        let args = counted(&["--key", key], &[]);
        let said = bench.command(&args).env("TRACEPARENT", trace).output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        bench.once(&["show", key]).exits(0).out()
    };
    let shown = run("a", TRACE);
    assert!(shown.contains(&format!("trace        {TRACE}")), "{shown}");
    let again = run("a", "00-11111111111111111111111111111111-2222222222222222-00");
    assert!(again.contains(TRACE) && bench.runs() == 1, "the retry is the same action: {again}");
    let shown = run("b", "00-not-a-trace");
    assert!(!shown.contains("trace"), "what is not a trace is not stored: {shown}");
}
