//! Every command that an answer offers is pasted in the situation that offers it, and does what the answer says.

use serde_json::Value;

use crate::common::{Bench, COUNTED, HELD, eventually};

/// The commands that an answer offers its caller.
fn offered(answer: &Value) -> Vec<String> {
    let error = &answer["error"];
    let options = error["options"].as_array().into_iter().flatten().map(|option| &option["command"]);
    let commands = options.chain(std::iter::once(&error["fix_command"]));
    commands.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// A call with these arguments and this shell command, in JSON.
fn call(bench: &Bench, more: &[&str], command: &str) -> Value {
    let args = [&["run", "--json", "--key", "a"][..], more, &["--", "sh", "-c", command]].concat();
    bench.json(&args)
}

/// A caller is in this situation. Returns its answer.
type Provoke = fn(&Bench) -> Value;

/// How a command begins that the caller is offered, after the options of the ledger; and the state of the operation
/// after it.
type Offer = (&'static str, &'static str);

const SITUATIONS: [(&str, Provoke, &[Offer]); 9] = [
    (
        "its own answer proves nothing",
        |bench| call(bench, &[], "exit 1"),
        &[("settle ID --as done", "done"), ("settle ID --as failed", "failed")],
    ),
    ("its answer was lost", |bench| call(bench, &[], "kill -9 $$"), &[("show ID", "in_doubt")]),
    (
        "its time was over",
        |bench| call(bench, &["--timeout", "100ms"], "exec sleep 600"),
        &[("show ID", "in_doubt")],
    ),
    (
        "there is a probe",
        |bench| call(bench, &["--probe", "test -e 'no such file' || exit 3", "--probe-no", "3"], "exit 1"),
        // The quarantine has not passed, so the same command is offered again.
        &[("settle ID --probe 'test -e '\\''no such file'\\'' || exit 3' --probe-no 3", "in_doubt")],
    ),
    (
        "the key was used for another action, which is done",
        |bench| {
            call(bench, &[], "true");
            call(bench, &[], "true # another")
        },
        &[("show ID", "done")],
    ),
    (
        "the key was used for another action, which is in doubt",
        |bench| {
            call(bench, &[], "exit 1");
            call(bench, &[], "true")
        },
        &[("show ID", "in_doubt")],
    ),
    (
        "a person holds it",
        |bench| {
            call(bench, &["--hold", "approve"], COUNTED);
            call(bench, &["--hold", "approve"], COUNTED)
        },
        &[],
    ),
    (
        "a person cancelled it",
        |bench| {
            call(bench, &["--hold", "approve"], COUNTED);
            bench.once(&["cancel", "a", "--note", "no"]).exits(0);
            call(bench, &["--hold", "approve"], COUNTED)
        },
        &[],
    ),
    (
        "a person stopped the scope",
        |bench| {
            bench.once(&["stop", "default"]).exits(0);
            call(bench, &[], COUNTED)
        },
        &[],
    ),
];

#[test]
fn what_a_caller_is_offered_works_and_overrides_no_person() {
    for (what, provoke, expected) in SITUATIONS {
        let count = offered(&provoke(&Bench::new())).len();
        assert_eq!(count, expected.len(), "{what}");
        for (index, (begins, state)) in expected.iter().enumerate() {
            // Each command is pasted in a situation of its own.
            let bench = Bench::new();
            let answer = provoke(&bench);
            let id = answer["operation"]["id"].as_str().unwrap();
            let command = &offered(&answer)[index];
            assert!(command.contains(&format!(" {}", begins.replace("ID", id))), "{what}: {command}");
            let said = bench.shell(command);
            let fails = if begins.contains("--probe") { 79 } else { 0 };
            let shown = command.split_whitespace().find(|word| word.starts_with("op_")).unwrap().to_owned();
            said.exits(fails);
            assert_eq!(&bench.state(&shown), state, "{what}: {command}");
        }
        let bench = Bench::new();
        let answer = provoke(&bench).to_string();
        for command in [" release op_", " resume ", " cancel op_"] {
            assert!(!answer.contains(command), "{what}: {command} in {answer}");
        }
    }
}

#[test]
fn a_caller_that_meets_a_running_call_waits_for_it() {
    let bench = Bench::new();
    let running = bench.start(&["run", "--key", "a", "--", "sh", "-c", HELD]);
    eventually("the command runs", || bench.runs() == 1);
    let [wait] = &offered(&call(&bench, &["--wait", "0s"], HELD))[..] else { panic!("one command") };
    assert!(wait.contains(" wait op_"), "{wait}");
    bench.once(&["cancel", "a"]).exits(0);
    bench.shell(wait).exits(79);
    running.end().exits(79);
}

/// The commands that `once` prints for a person, as they are.
fn printed(bench: &Bench, args: &[&str]) -> Vec<String> {
    let said = bench.command(args).output().unwrap();
    let text = String::from_utf8([said.stdout, said.stderr].concat()).unwrap();
    text.lines().filter_map(|line| line.find("once --ledger").map(|at| line[at..].to_owned())).collect()
}

#[test]
fn what_a_person_is_offered_works() {
    let lost = |bench: &Bench| call(bench, &[], "kill -9 $$");
    for (index, state) in ["done", "failed"].into_iter().enumerate() {
        let bench = Bench::new();
        lost(&bench);
        let commands = printed(&bench, &["show", "a"]);
        assert_eq!(commands.len(), 2, "{commands:?}");
        bench.shell(&commands[index]).exits(0);
        assert_eq!(bench.json(&["show", "a"])["data"]["state"], state, "{commands:?}");
    }
    let bench = Bench::new();
    bench.once(&["stop", "default"]).exits(0);
    let [resume] = &printed(&bench, &["stop", "default"])[..] else { panic!("one command") };
    bench.shell(resume).exits(0);
    call(&bench, &[], COUNTED);
    assert_eq!(bench.runs(), 1, "it was resumed");
}

/// The caller's own probe is named again, with when its "no" counts.
#[test]
fn an_early_no_says_when_it_counts_and_how_to_ask_again() {
    let bench = Bench::new();
    call(&bench, &[], "exit 1");
    let asks = ["settle", "a", "--probe", "exit 10"];
    let said = bench.once(&asks).exits(79).err();
    assert!(said.contains("a \"no\" counts from "), "{said}");
    let [again] = &printed(&bench, &asks)[..] else { panic!("{said}") };
    assert!(again.ends_with(" --probe 'exit 10'"), "{again}");
    bench.shell(again).exits(79);
    bench.shell(&format!("{again} --force")).exits(0);
    let bench = Bench::new();
    let probe = ["--probe", "exit 10"];
    call(&bench, &probe, "exit 1");
    let told = call(&bench, &probe, "exit 1")["error"]["message"].as_str().unwrap().to_owned();
    assert!(told.contains("The probe found no effect, which counts from 20"), "{told}");
}

#[test]
fn the_stop_of_a_scope_without_operations_is_warned_about() {
    let bench = Bench::new();
    let running = bench.start(&["run", "--scope", "run-7", "--key", "a", "--", "sh", "-c", HELD]);
    eventually("the command runs", || bench.runs() == 1);
    let stopped = bench.json(&["stop", "run7"]);
    assert_eq!(
        stopped["warnings"][0], "no operation was ever in the scope run7; operations run in run-7",
        "{stopped}"
    );
    let stopped = bench.json(&["stop", "run-7", "--wait", "60s"]);
    assert_eq!(stopped["warnings"].as_array().unwrap().len(), 0, "{stopped}");
    running.end().exits(79);
}
