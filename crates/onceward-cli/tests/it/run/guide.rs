//! The samples of the guide and of the README, run as they are printed.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::{Bench, Said, tidy};

/// The scripts that the samples call.
const SCRIPTS: [(&str, &str); 8] = [
    (
        "charge.sh",
        r#"case $1 in
            bob-crash) echo "$1 $2" >> charges; kill -9 $PPID $$;;
            slowly) echo "$1 $2" >> charges; exec sleep 60;;
            nobody) echo 'no such customer' >&2; exit 3;;
            lost) echo "$1 $2" >> charges; exit 1;;
            unlucky) [ $ONCE_ATTEMPT = 2 ] || exit 1;;
        esac
        echo "$1 $2" >> charges; echo "charged $1 $2""#,
    ),
    ("was-charged.sh", r#"grep -q "^$1 " charges || exit 10"#),
    ("mail.sh", r#"read -r body; echo "$1 $body" >> mails; echo "sent to $1: $body""#),
    ("backup.sh", "echo \"$ONCE_KEY\" >> backups; if [ -e crash ]; then kill -9 $PPID $$; fi"),
    ("book.sh", r#"echo "$1" >> bookings; echo "{\"data\":{\"id\":\"$1-1\"}}""#),
    ("cancel.sh", r#"echo "cancel $1" >> bookings"#),
    ("bin/terraform", "echo \"Apply complete: $(cat main.tf)\""),
    ("bin/date", "cat today"),
];

/// A sample: a line that is typed, and what it prints.
#[derive(Debug)]
struct Sample {
    line: String,
    prints: Vec<String>,
}

/// The folder in which a page's samples are run, one after the other.
struct Page {
    bench: Bench,
    text: String,
}

impl Page {
    fn open(name: &str) -> Self {
        let bench = Bench::new();
        std::fs::create_dir(bench.path("bin")).unwrap();
        for (name, script) in SCRIPTS {
            bench.script(name, script);
        }
        bench.write("main.tf", "web = 1\n").write("today", "2026-03-01\n");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let page = Self { bench, text: std::fs::read_to_string(root.join(name)).unwrap() };
        let git = "git init -q --bare remote; git init -q -b main; git config user.email a@example.org; \
            git config user.name A; git remote add origin remote; git commit -q --allow-empty -m first";
        assert!(page.command(git).status().unwrap().success());
        page
    }

    /// A line of shell, as a user types it who has one ledger and no settings.
    fn command(&self, line: &str) -> Command {
        let mut command = self.bench.shell_command(line);
        let path = command.get_envs().find(|(name, _)| *name == "PATH").and_then(|(_, value)| value).unwrap();
        let path = format!("{}:{}", self.bench.path("bin").display(), path.to_str().unwrap());
        command.env("PATH", path).env_remove("ONCE_LEDGER").env("LC_ALL", "C");
        command
    }

    /// Runs a line; returns what it prints on both streams.
    fn prints(&self, line: &str) -> String {
        let file = std::fs::File::create(self.bench.path("printed")).unwrap();
        let mut command = self.command(line);
        command.stdout(file.try_clone().unwrap()).stderr(file).stdin(Stdio::null());
        command.status().unwrap();
        tidy(self.bench.read("printed").as_bytes())
    }

    /// The blocks of one kind between two headings.
    fn blocks(&self, kind: &str, from: &str, to: &str) -> Vec<&str> {
        let (_, part) = self.text.split_once(from).unwrap_or_else(|| panic!("no {from}"));
        let part = if to.is_empty() { part } else { part.split_once(to).unwrap().0 };
        let begin = format!("```{kind}\n");
        part.split(begin.as_str()).skip(1).map(|block| block.split("```").next().unwrap()).collect()
    }

    fn runs_as_printed(&self, from: &str, to: &str) -> usize {
        let mut count = 0;
        for sample in self.blocks("console", from, to).into_iter().flat_map(samples) {
            let printed = self.prints(&sample.line);
            assert!(
                fits(&sample.prints, &printed),
                "$ {}\n{printed}\nthe page says:\n{:#?}",
                sample.line,
                sample.prints
            );
            count += 1;
        }
        count
    }
}

fn samples(block: &str) -> Vec<Sample> {
    let mut samples: Vec<Sample> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), samples.last_mut()) {
            (Some(line), _) => samples.push(Sample { line: line.to_owned(), prints: Vec::new() }),
            (None, Some(sample)) => sample.prints.push(tidy(line.as_bytes())),
            (None, None) => panic!("a block begins with a line that is typed: {line}"),
        }
    }
    samples
}

/// Whether the page's lines fit what was printed. `…` stands for any text; alone on the last line, for any lines.
fn fits(page: &[String], printed: &str) -> bool {
    let mut printed = printed.lines();
    for line in page {
        if line == "…" {
            return true;
        }
        if !printed.next().is_some_and(|printed| fits_line(line, printed)) {
            return false;
        }
    }
    printed.next().is_none()
}

fn fits_line(page: &str, printed: &str) -> bool {
    let mut parts = page.split('…');
    let Some(mut rest) = printed.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut open = false;
    for part in parts {
        match rest.split_once(part) {
            Some((_, after)) => rest = if part.is_empty() { rest } else { after },
            None => return false,
        }
        open = part.is_empty();
    }
    open || rest.is_empty()
}

#[test]
fn the_samples_of_the_guide_print_what_the_guide_says() {
    let page = Page::open("docs/run.md");
    assert!(page.runs_as_printed("# `once run`", "") > 20);
    assert_eq!(page.bench.read("mails").lines().count(), 2, "two bodies, two mails");
    let charges = page.bench.read("charges");
    assert_eq!(charges.matches("alice 100").count(), 1, "{charges}");
    assert_eq!((charges.matches("slowly").count(), charges.matches("lost").count()), (1, 1), "{charges}");
    let kinds = page.text.lines().filter(|line| line.len() > 3 && line.starts_with("```"));
    assert!(
        kinds.clone().all(|line| ["```console", "```crontab"].contains(&line)),
        "{:?}",
        kinds.collect::<Vec<_>>()
    );
}

#[test]
fn a_job_of_cron_runs_each_day_and_a_retry_after_a_crash_does_not() {
    let page = Page::open("docs/run.md");
    let block = page.blocks("crontab", "## Recipes", "")[0];
    // Five fields of time, then the command, in which cron takes a bare % for a new line.
    let job = block.trim().splitn(6, ' ').last().unwrap().trim().replace("\\%", "%");
    let start = |today: &str| -> Said {
        page.bench.write("today", today);
        page.command(&job).output().unwrap().into()
    };
    let backups = || page.bench.read("backups").lines().count();
    page.bench.write("crash", "");
    assert_eq!(start("2026-03-01").exit, -1, "killed half way");
    std::fs::remove_file(page.bench.path("crash")).unwrap();
    start("2026-03-01").exits(79);
    assert_eq!(backups(), 1, "it is unknown how far it got");
    for day in ["2026-03-02", "2026-03-03", "2026-03-03", "2026-03-04"] {
        start(day).exits(0);
    }
    assert_eq!(backups(), 4, "each day once");
}

#[test]
fn the_samples_of_the_readme_print_what_it_says() {
    let page = Page::open("README.md");
    let (from, to) = ("# Onceward", "## Guard an MCP server");
    assert!(page.runs_as_printed(from, to) >= 4);
    let said: Value = serde_json::from_str(page.blocks("json", from, to)[0]).unwrap();
    let real = page.prints("once --json run --key order-42 -- ./charge.sh alice 100 2> /dev/null");
    same_shape(&said, &serde_json::from_str(&real).unwrap(), "");
    // Each row of the table is a command line that is understood.
    for row in page.text.split_once(from).unwrap().1.split_once(to).unwrap().0.lines() {
        let Some(options) = row.strip_prefix("| ").and_then(|row| row.split('`').nth(1)) else { continue };
        if let Some(line) = options.starts_with("--").then(|| options.replace("COMMAND", "true")) {
            page.command(&format!("once run {line} -- true")).output().map(Said::from).unwrap().exits(0);
        }
    }
}

#[test]
fn the_samples_of_the_policy_page_are_policies() {
    let page = Page::open("docs/policy.md");
    let blocks = page.blocks("toml", "# The policy file", "");
    assert_eq!(blocks.len(), 3);
    for block in blocks {
        page.bench.write("sample.toml", block);
        page.command("once config check sample.toml").output().map(Said::from).unwrap().exits(0);
    }
}

#[test]
fn the_samples_of_the_section_on_holds_print_what_it_says() {
    let page = Page::open("docs/stop.md");
    assert!(page.runs_as_printed("## Hold", "### Answers to held calls") >= 5);
    assert_eq!(page.bench.read("charges").matches("alice 100").count(), 1);
    for block in page.blocks("toml", "## Hold", "### Answers to held calls") {
        page.bench.write("sample.toml", block);
        page.command("once config check sample.toml").output().map(Said::from).unwrap().exits(0);
    }
}

#[test]
fn the_samples_of_the_section_on_undo_print_what_it_says() {
    let page = Page::open("docs/stop.md");
    assert_eq!(page.runs_as_printed("## Undo", "### Commands"), 5);
    assert_eq!(page.bench.read("bookings"), "flight\nhotel\ncancel hotel-1\ncancel flight-1\n");
}

#[test]
fn the_samples_of_the_page_on_encryption_print_what_it_says() {
    let page = Page::open("docs/encryption.md");
    assert!(page.runs_as_printed("# Encryption at rest", "") >= 6);
    assert_eq!(page.bench.read("charges").matches("alice 100").count(), 1);
}

/// Whether two answers have the same fields, and what the page shows of their values.
fn same_shape(page: &Value, real: &Value, at: &str) {
    match (page, real) {
        (Value::Object(page), Value::Object(real)) => {
            let names = |object: &serde_json::Map<String, Value>| {
                let mut names: Vec<String> = object.keys().cloned().collect();
                names.sort();
                names
            };
            assert_eq!(names(page), names(real), "{at}");
            for (name, value) in page {
                same_shape(value, &real[name], &format!("{at}/{name}"));
            }
        }
        (Value::String(page), Value::String(real)) => {
            assert!(fits_line(&tidy(page.as_bytes()), &tidy(real.as_bytes())), "{at}: {page:?} {real:?}");
        }
        (page, real) => assert_eq!(page, real, "{at}"),
    }
}
