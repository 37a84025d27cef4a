use super::*;

fn command(argv: &[&str]) -> CommandAction {
    CommandAction {
        argv: argv.iter().map(|word| ByteString::from(*word)).collect(),
        folder: "/srv".into(),
        host: "here".to_owned(),
        stdin: None,
        env: BTreeMap::new(),
        input: None,
        files: Vec::new(),
        programs: Vec::new(),
    }
}

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

const WHOLE: Counted = Counted { folder: Relevance::Counts, stdin: Relevance::Counts };
const BARE: Counted = Counted { folder: Relevance::Ignored, stdin: Relevance::Ignored };

fn with_everything() -> CommandAction {
    CommandAction {
        stdin: Some(Content::new("Hello Ada!\n")),
        env: BTreeMap::from([("TARGET".to_owned(), "staging".to_owned())]),
        input: Some(raw(r#"{"order": 7}"#)),
        files: vec![FileState::of("conf", b"v1"), FileState::of("doc.json", b"[1.0]")],
        programs: vec![FileState::of("/srv/pay.sh", b"#!/bin/sh")],
        ..command(&["./pay.sh", "alice"])
    }
}

#[test]
fn every_part_that_counts_tells_a_command_from_another() {
    let whole = |change: fn(&mut CommandAction)| {
        let mut action = with_everything();
        change(&mut action);
        action.identity(WHOLE).canonical()
    };
    let changes: [fn(&mut CommandAction); 7] = [
        |_| {},
        |action| action.argv.push("--force".into()),
        |action| action.folder = "/elsewhere".into(),
        |action| action.stdin = Some(Content::new("Hello Bob\n")),
        |action| action.env = BTreeMap::from([("TARGET".to_owned(), "production".to_owned())]),
        |action| action.input = Some(raw(r#"{"order": 8}"#)),
        |action| action.files[0] = FileState::of("conf", b"v2"),
    ];
    let mut all: Vec<String> = changes.into_iter().map(whole).collect();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 7, "{all:#?}");
    // What is compared by meaning, and what is no input.
    for same in [
        |action: &mut CommandAction| action.input = Some(raw(r#" {"order":7.0} "#)),
        |action: &mut CommandAction| action.files[1] = FileState::of("doc.json", b"[1]"),
        |action: &mut CommandAction| action.programs.clear(),
    ] {
        assert_eq!(whole(same), whole(|_| {}));
    }
}

#[test]
fn the_identity_of_a_command_has_this_form() {
    let identity = |action: &CommandAction, counted| action.identity(counted).canonical();
    let plain = command(&["./pay.sh", "alice"]);
    assert_eq!(identity(&plain, WHOLE), r#"{"argv":["./pay.sh","alice"],"folder":"/srv"}"#);
    assert_eq!(identity(&plain, BARE), r#"{"argv":["./pay.sh","alice"]}"#);
    let document = CommandAction { stdin: Some(Content::new(r#"{"a":1}"#)), ..plain.clone() };
    assert_eq!(
        identity(&document, Counted { folder: Relevance::Ignored, stdin: Relevance::Counts }),
        r#"{"argv":["./pay.sh","alice"],"input":{"a":1},"stdin":true}"#
    );
    assert_eq!(identity(&document, BARE), identity(&plain, BARE));
    let empty = CommandAction { stdin: Some(Content::new("")), ..plain.clone() };
    assert_eq!(identity(&empty, WHOLE), identity(&plain, WHOLE), "an empty input counts as none");
    let bytes = CommandAction { argv: vec![ByteString::from(&b"\xff"[..])], ..plain };
    assert_eq!(identity(&bytes, BARE), r#"{"argv":[{"hex":"ff"}]}"#);
}

#[test]
fn what_is_stored_is_what_was_asked() {
    let mut action = with_everything();
    action.argv.push(ByteString::from(&b"\xff\n"[..]));
    action.stdin = Some(Content::new(&b"\x00\xfe"[..]));
    let stored = Action::Command(action.clone()).stored(&7);
    let (Action::Command(read), 7) = Action::read::<i32>(&stored).unwrap() else { panic!("{stored}") };
    assert_eq!((&read.argv, &read.stdin, &read.env), (&action.argv, &action.stdin, &action.env));
    assert_eq!(Action::Command(read).stored(&7), stored);
    let call = Action::ToolCall(ToolAction {
        server: "npx shop".to_owned(),
        tool: "pay".to_owned(),
        arguments: raw(r#"{"amount":12345678901234567890123}"#),
        members: BTreeMap::from([("requestState".to_owned(), raw("\"s\""))]),
    });
    let stored = call.stored(&());
    assert!(stored.contains("12345678901234567890123"), "{stored}");
    assert_eq!(Action::read::<()>(&stored).unwrap().0.stored(&()), stored);
    let sealed = Action::read::<()>("sealed:1:k_abcd2345:AAAA").unwrap_err();
    assert_eq!(sealed, Unreadable::Sealed { key: "k_abcd2345".to_owned() });
    assert!(matches!(Action::read::<()>("{}"), Err(Unreadable::Broken(_))));
}

#[test]
fn what_has_changed_since_is_named() {
    let action = with_everything();
    let (programs, files) = (action.programs.clone(), action.files.clone());
    let same = |file: &FileState| files.iter().find(|f| f.path == file.path).map(|f| f.sha256.clone());
    let changes = |programs: &[FileState], file: &dyn Fn(&FileState) -> Option<String>| {
        action.changed(programs, file).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(changes(&programs, &same).is_empty());
    let edited = [FileState::of("/srv/pay.sh", b"#!/bin/bash")];
    let [told] = &changes(&edited, &same)[..] else { panic!("one change") };
    assert!(told.starts_with("the program /srv/pay.sh has changed (it was sha256:"), "{told}");
    assert!(changes(&[], &same)[0].contains("is gone or cannot be read"));
    let more = [programs[0].clone(), FileState::of("/srv/new.sh", b"new")];
    assert!(changes(&more, &same)[0].starts_with("the program /srv/new.sh was not there"));
    let told = changes(&programs, &|_| None);
    assert_eq!(told.len(), 2);
    assert!(told[0].starts_with("the declared file conf is gone or cannot be read"), "{told:?}");
    let mut piped = action.clone();
    piped.files = vec![FileState::of("/dev/fd/63", b"v1").stream()];
    assert!(piped.changed(&programs, |_| None).is_empty(), "a stream cannot be read again");
}

#[test]
fn a_person_sees_all_of_a_command_and_nothing_hidden() {
    let shown = Action::Command(with_everything()).shown().to_string();
    for part in [
        "./pay.sh alice  (in /srv; with 11 bytes of input: \"Hello Ada!\\n\" sha256:",
        "; with TARGET=staging; with the declared input {\"order\":7}; with the file conf: 2 bytes, sha256:",
        "; program /srv/pay.sh: 9 bytes, sha256:",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let line = |argv: &[&str]| command(argv).line();
    assert_eq!(
        line(&["sh", "-c", "echo harmless # note:\ntouch GONE"]),
        r"sh -c $'echo harmless # note:\ntouch GONE'"
    );
    // What looks alike is not: a backslash and an n, or a line break.
    assert_eq!(line(&["printf", r"a\nb"]), r"printf 'a\nb'");
    assert_eq!(line(&["printf", "a\\n\nb"]), r"printf $'a\\n\nb'");
    assert_eq!(line(&["a  b", "\t", "it's", ""]), r"'a  b' $'\t' 'it'\''s' ''");
    assert_eq!(line(&["\u{1b}[2J\u{202e}\u{e0041}"]), r"$'\x1b[2J\u202e\U000e0041'");
    let bytes = CommandAction { argv: vec![ByteString::from(&b"a\xff'"[..])], ..command(&[]) };
    assert_eq!(bytes.line(), r"$'a\xff\''");
    let long = CommandAction { stdin: Some(Content::new("é".repeat(100).as_str())), ..command(&["cat"]) };
    let shown = Action::Command(long).shown().to_string();
    assert!(shown.contains(&format!("with 200 bytes of input: \"{}\"… sha256:", "é".repeat(30))), "{shown}");
}

#[test]
fn a_person_sees_the_arguments_of_a_call_as_they_were_written() {
    let arguments = "{\n  \"to\": \"a  b\\\" \\u202e\u{202e}\",\n\t\"amount\": 1.50 }";
    let call = ToolAction {
        server: "npx shop".to_owned(),
        tool: "pay\n".to_owned(),
        arguments: raw(arguments),
        members: BTreeMap::new(),
    };
    let shown = Action::ToolCall(call).shown().to_string();
    assert_eq!(shown, r#"pay\n {"to":"a  b\" \u202e\u202e","amount":1.50}  (at npx shop)"#);
    let arguments = serde_json::from_str(r#"{"args": ["e", 90], "kwargs": {"note": "x y"}}"#).unwrap();
    let call = Action::Function(FunctionAction { function: "pay".to_owned(), arguments });
    assert_eq!(call.shown().to_string(), r#"pay("e", 90, note="x y")"#);
}

#[test]
fn a_person_sees_the_body_of_a_request() {
    let request = RequestAction::new("POST", "/v1/charges", Some("a=1"), "application/json");
    let shown = |bytes: &[u8]| Action::Request(request.clone().body(bytes)).shown().to_string();
    let told = shown(b"{ \"amount\": 900 }");
    assert!(
        told.starts_with("POST /v1/charges?a=1 {\"amount\":900}  (17 bytes of application/json, sha256:")
    );
    assert!(shown(b"amount=900&x=\xff").starts_with(r#"POST /v1/charges?a=1 "amount=900&x=\xff"  ("#));
    let large = shown(&vec![b'a'; MOST_BODY + 1]);
    assert!(large.ends_with("; only the first 1048576 bytes are shown)"), "{}", &large[large.len() - 80..]);
    assert_eq!(Action::Request(request).shown().to_string(), "POST /v1/charges?a=1");
}
