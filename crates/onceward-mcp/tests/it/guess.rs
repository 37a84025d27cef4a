//! Compares the guesses for the tools of real servers (`tools.jsonl`, collected by `tests/mcp/collect`) with labels
//! made by hand (`labels.txt`). No tool that changes something may count as a read, and few reads may be guarded
//! as if they changed something.
//!
//! `cargo test -p onceward-mcp --test guess -- --nocapture` prints the figures.

use std::collections::{BTreeMap, BTreeSet};

use onceward::{Class, Policy};
use onceward_mcp::{Ruling, explain};
use serde_json::{Map, Value, json};

const TOOLS: &str = include_str!("tools.jsonl");
const LABELS: &str = include_str!("labels.txt");
/// The highest share of reads that may be guarded.
const GUARDED_PERCENT: usize = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Label {
    Read,
    Changes,
}

/// The tools and labels of a server.
#[derive(Default)]
struct Server {
    tools: Vec<Value>,
    labels: BTreeMap<String, Label>,
    /// Whether the server was not looked at while the word lists were made.
    held_out: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Hints {
    AsListed,
    TakenOff,
}

#[test]
fn no_change_is_taken_for_a_read_and_few_reads_are_guarded() {
    let servers = servers();
    assert!(servers.len() >= 40, "{} servers", servers.len());
    let mut faults = Vec::new();
    for hints in [Hints::TakenOff, Hints::AsListed] {
        println!("\n{}", if hints == Hints::AsListed { "with annotations" } else { "without annotations" });
        println!("{:<46} {:>6} {:>6} {:>8}", "server", "tools", "reads", "guarded");
        let mut sums = [Figures::default(), Figures::default()];
        for (name, server) in &servers {
            let figures = judged(server, hints);
            println!("{}", figures.row(&format!("{}{name}", if server.held_out { "* " } else { "" })));
            faults.extend(figures.missed.iter().map(|tool| format!("{name}: {tool} changes something")));
            for tool in &figures.server_says {
                println!("  its server says that it only reads: {tool}");
            }
            for tool in &figures.guarded {
                println!("  guarded: {tool}");
            }
            sums[usize::from(server.held_out)].add(figures);
        }
        let [tuned, held_out] = sums;
        println!("{}\n{}", tuned.row("looked at while tuning"), held_out.row("* held out"));
        let mut all = tuned;
        all.add(held_out);
        println!("{}", all.row("all"));
        if all.guarded.len() * 100 > all.reads * GUARDED_PERCENT {
            faults.push(format!("{} of {} reads are guarded", all.guarded.len(), all.reads));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[derive(Default)]
struct Figures {
    tools: usize,
    reads: usize,
    /// Reads that are guarded as `once`.
    guarded: Vec<String>,
    /// Tools that change something and are guessed to be read-only.
    missed: Vec<String>,
    /// Tools that change something although they have a `readOnlyHint`.
    server_says: Vec<String>,
}

impl Figures {
    fn add(&mut self, other: Self) {
        self.tools += other.tools;
        self.reads += other.reads;
        self.guarded.extend(other.guarded);
        self.missed.extend(other.missed);
        self.server_says.extend(other.server_says);
    }

    fn row(&self, name: &str) -> String {
        let Self { tools, reads, guarded, missed, .. } = self;
        let percent = guarded.len() as f64 * 100.0 / (*reads).max(1) as f64;
        let missed = if missed.is_empty() { String::new() } else { format!(", missed {}", missed.len()) };
        format!("{name:<46} {tools:>6} {reads:>6} {:>4} {percent:>4.1}%{missed}", guarded.len())
    }
}

fn judged(server: &Server, hints: Hints) -> Figures {
    let mut figures = Figures::default();
    for tool in explained(&server.tools, hints) {
        let label = server.labels[&tool.tool];
        figures.tools += 1;
        figures.reads += usize::from(label == Label::Read);
        match (label, tool.class) {
            (Label::Read, Class::Once) => figures.guarded.push(format!("{} ({})", tool.tool, tool.why)),
            (Label::Changes, Class::Read) => figures.server_says.push(tool.tool),
            (Label::Changes, Class::Idempotent) if tool.guessed => figures.missed.push(tool.tool),
            (Label::Read | Label::Changes, _) => {}
        }
    }
    figures
}

/// What `once mcp --explain` reports for these tools.
fn explained(tools: &[Value], hints: Hints) -> Vec<onceward_mcp::Explained> {
    let mut tools = tools.to_vec();
    if hints == Hints::TakenOff {
        tools.iter_mut().for_each(|tool| tool["annotations"] = json!({}));
    }
    let answers = [json!({"protocolVersion": "2025-11-25", "capabilities": {}}), json!({"tools": tools})];
    let lines = (1..)
        .zip(answers)
        .map(|(id, result)| json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string());
    let text = lines.collect::<Vec<_>>().join("\n") + "\n";
    explain(Ruling::new(Policy::default(), "s"), Vec::new(), text.as_bytes()).expect("the list can be read")
}

fn servers() -> BTreeMap<String, Server> {
    let mut servers = labelled();
    let mut package = String::new();
    for line in TOOLS.lines() {
        let mut line: Value = serde_json::from_str(line).expect("each line is an object");
        if let Some(name) = line["package"].as_str() {
            package = name.to_owned();
            continue;
        }
        let names = line["arguments"].as_array().into_iter().flatten();
        let properties: Map<String, Value> =
            names.map(|name| (name.as_str().expect("a name").to_owned(), json!({}))).collect();
        let server = servers.get_mut(&package).unwrap_or_else(|| panic!("{package} has no labels"));
        server.tools.push(json!({"name": line["tool"].take(), "description": line["description"].take(),
            "inputSchema": {"type": "object", "properties": properties}, "annotations": line["annotations"].take()}));
    }
    for (name, server) in &servers {
        let listed: BTreeSet<&str> = server.tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
        let labelled: BTreeSet<&str> = server.labels.keys().map(String::as_str).collect();
        assert_eq!(listed, labelled, "{name}: each tool has one label");
    }
    servers
}

/// Parses the labels: a line with a package (after a star: held out), then lines that start with `read` or `changes`
/// and name tools. Text after `#` is a comment.
fn labelled() -> BTreeMap<String, Server> {
    let mut servers: BTreeMap<String, Server> = BTreeMap::new();
    let mut package = String::new();
    for line in LABELS.lines() {
        let line = line.split(" #").next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let label = match words.next() {
            None | Some("#") => continue,
            Some("read") => Label::Read,
            Some("changes") => Label::Changes,
            Some(word) => {
                let held_out = word == "*";
                package = if held_out { words.next().unwrap_or_default() } else { word }.to_owned();
                servers.insert(package.clone(), Server { held_out, ..Server::default() });
                continue;
            }
        };
        let labels = &mut servers.get_mut(&package).expect("a package comes first").labels;
        for tool in words {
            assert_eq!(labels.insert(tool.to_owned(), label), None, "{package}: {tool} has two labels");
        }
    }
    servers
}
