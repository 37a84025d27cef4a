//! Where things come from and go to: environment, policy, files, standard input.

use std::os::unix::fs::PermissionsExt;

use crate::common::{Bench, COUNTED, Said};

#[test]
fn the_environment_names_ledger_scope_and_policy() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("elsewhere")).unwrap();
    bench.write("elsewhere/policy.toml", "[operation.sh]\neffect = \"deleted\"\n");
    let mut command = bench.command(&["run", "--json", "--", "sh", "-c", COUNTED]);
    command.env("ONCE_LEDGER", "sqlite:elsewhere/my.db").env("ONCE_SCOPE", "mine");
    command.env("ONCE_CONFIG", "elsewhere/policy.toml");
    let answer = Said::from(command.output().unwrap()).exits(0).json();
    assert_eq!(answer["operation"]["scope"], "mine");
    assert_eq!(answer["effect"], "deleted");
    assert!(bench.path("elsewhere/my.db").exists() && !bench.path("once.db").exists());
    // A flag comes before the environment.
    let mut command = bench.command(&["run", "--scope", "flag", "--json", "--", "sh", "-c", COUNTED]);
    let answer = Said::from(command.env("ONCE_SCOPE", "mine").output().unwrap()).exits(0).json();
    assert_eq!(answer["operation"]["scope"], "flag");
}

#[test]
fn without_a_word_the_ledger_is_in_the_users_data_folder_and_private() {
    let bench = Bench::new();
    let mut command = bench.command(&["run", "--", "true"]);
    Said::from(command.env_remove("ONCE_LEDGER").output().unwrap()).exits(0);
    let mode = |name: &str| std::fs::metadata(bench.path(name)).unwrap().permissions().mode() & 0o777;
    let (folder, file) = ("home/.local/share/onceward", "home/.local/share/onceward/once.db");
    assert_eq!(mode(folder), 0o700);
    assert_eq!(mode(file), 0o600);
    for (path, (mode, _)) in bench.listing().iter().filter(|(path, _)| bench.path("").join(path).is_file()) {
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }
}

#[test]
fn the_ledger_is_private_whatever_the_umask() {
    let bench = Bench::new();
    let script = format!("umask 000; exec {} run -- true", env!("CARGO_BIN_EXE_once"));
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]).current_dir(bench.path("")).env("ONCE_LEDGER", "sqlite:once.db");
    assert!(command.status().unwrap().success());
    for (path, (mode, _)) in bench.listing() {
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }
}

#[test]
fn the_policy_of_the_folder_comes_before_the_users() {
    let bench = Bench::new();
    std::fs::create_dir_all(bench.path("home/.config/onceward")).unwrap();
    bench.write("home/.config/onceward/onceward.toml", "[defaults]\neffect = \"created\"\n");
    assert_eq!(bench.json(&["run", "--", "echo", "1"])["effect"], "created");
    bench.policy("[defaults]\neffect = \"deleted\"\n");
    assert_eq!(bench.json(&["run", "--", "echo", "2"])["effect"], "deleted");
}

#[test]
fn a_policy_names_the_ledger_and_makes_its_folder() {
    let bench = Bench::new();
    bench.policy("[ledger]\nurl = \"sqlite:state/agent/once.db\"\n");
    let mut command = bench.command(&["run", "--", "true"]);
    Said::from(command.env_remove("ONCE_LEDGER").output().unwrap()).exits(0);
    assert!(bench.path("state/agent/once.db").exists());
}

#[test]
fn a_policy_goes_by_the_operations_name() {
    let bench = Bench::new();
    let all = "[operation.\"charge_*\"]\neffect = \"created\"\nno_effect_exits = [7]\n";
    let one = "[operation.charge_test]\neffect = \"noop\"\n";
    bench.policy(&format!("{all}{one}"));
    let effect = |name: &str| {
        bench.json(&["run", "--name", name, "--", "true"])["effect"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        [effect("charge_card"), effect("charge_test"), effect("refund")],
        ["created", "noop", "updated"]
    );
    bench.once(&["run", "--name", "charge_card", "--", "sh", "-c", "exit 7"]).exits(7);
    bench.once(&["run", "--name", "refund", "--", "sh", "-c", "exit 7"]).exits(79);
}

#[test]
fn a_policy_can_ask_for_given_keys() {
    let bench = Bench::new();
    bench.policy("[defaults]\nkeys = \"keyed\"\n");
    let refused = bench.json(&["run", "--", "touch", "ran"]);
    assert_eq!(refused["error"]["code"], "KEY_MISSING");
    assert!(!bench.path("ran").exists());
    bench.once(&["run", "--key", "a", "--", "touch", "ran"]).exits(0);
    assert!(bench.path("ran").exists());
}

#[test]
fn standard_input_passes_through() {
    let bench = Bench::new();
    let args = ["run", "--key", "a", "--", "cat"];
    assert_eq!(bench.once_with_stdin(&args, b"hello").exits(0).out, b"hello");
    assert_eq!(
        bench.once_with_stdin(&args, b"other").exits(0).out,
        b"hello",
        "it is no part of the operation"
    );
}

#[test]
fn the_next_command_works_in_every_folder() {
    let bench = Bench::new();
    for folder in ["a b", "project", "elsewhere"] {
        std::fs::create_dir(bench.path(folder)).unwrap();
    }
    let policy = "[ledger]\nurl = \"sqlite:own.db\"\n[operation.sh]\nprobe = \"exit 0\"\n";
    bench.write("a b/pol'icy.toml", policy).write("project/onceward.toml", policy);
    for (folder, setup, call) in [
        ("a b", "true", "once --config \"pol'icy.toml\" run --key a"),
        ("a b", "export ONCE_CONFIG=\"pol'icy.toml\"", "once run --key b"),
        (".", "true", "once --config \"a b/pol'icy.toml\" run --key c"),
        ("project", "once config allow", "once run --key d"),
        ("a b", "true", "once --ledger sqlite:rel.db run --key e --probe 'exit 0'"),
        ("a b", "true", "once --ledger sqlite:rel.db run --key f --probe 'true\nexit 0'"),
    ] {
        let said = bench.path("said");
        let to = said.display();
        let line =
            format!("unset ONCE_LEDGER; cd '{folder}'; {setup} >&2; {call} -- sh -c 'exit 1' 2> '{to}'");
        bench.shell(&line).exits(79);
        let said = bench.read("said");
        let next =
            said.split_once("probe whether it happened:\nonce:   ").unwrap_or_else(|| panic!("{said}")).1;
        bench.shell(&format!("unset ONCE_LEDGER ONCE_CONFIG; cd elsewhere; {next}")).exits(0);
    }
    // What cannot be printed is not offered for pasting.
    let hidden = "once run --key g --probe \"$(printf 'echo \\033[31m; exit 0')\" -- sh -c 'exit 1'";
    let said = bench.shell(hidden).exits(79).err();
    assert!(said.contains("next: make the same call again; it asks the probe"), "{said}");
}
