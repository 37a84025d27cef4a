//! The samples of `docs/serve.md`, run as they are printed.

use std::path::Path;

use serde_json::Value;

use crate::common::Bench;
use crate::serve::rig::Server;

/// A sample: a line that is typed, and what it prints.
pub(crate) struct Sample {
    pub(crate) line: String,
    pub(crate) prints: Vec<String>,
}

#[test]
fn the_samples_of_the_guide_print_what_the_guide_says() {
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/serve.md")).unwrap();
    let bench = Bench::new();
    let mut server: Option<(Server, String)> = None;
    let (mut id, mut token) = (String::new(), String::new());
    let mut count = 0;
    for sample in
        text.split("```console\n").skip(1).flat_map(|block| samples(block.split("```").next().unwrap()))
    {
        count += 1;
        let printed = if sample.line == "once serve" {
            // The guide's port may be in use on this machine.
            let started = Server::start(&bench, &["--listen", "127.0.0.1:0"]);
            crate::common::eventually("it says how to try it", || started.said().len() >= 2);
            let address = started.url().trim_start_matches("http://").to_owned();
            let said = started.said().join("\n").replace(&address, "127.0.0.1:6270");
            server = Some((started, address));
            said
        } else {
            let address = server.as_ref().map_or("127.0.0.1:6270", |(_, address)| address.as_str());
            let mut command = bench.shell_command(&sample.line.replace("127.0.0.1:6270", address));
            command.env("ID", &id).env("TOKEN", &token);
            let output = command.output().unwrap();
            String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
        };
        if let Ok(answer) = serde_json::from_str::<Value>(&printed)
            && let (Some(new_id), Some(new_token)) =
                (answer["operation"]["id"].as_str(), answer["token"].as_str())
        {
            (id, token) = (new_id.to_owned(), new_token.to_owned());
        }
        assert!(
            fits(&sample.prints, &printed),
            "$ {}\n{printed}\nthe page says:\n{:#?}",
            sample.line,
            sample.prints
        );
    }
    assert!(count >= 13, "{count} samples");
    let kinds = text.lines().filter(|line| line.len() > 3 && line.starts_with("```"));
    let known = ["```console", "```ini", "```dockerfile", "```sh"];
    assert!(kinds.clone().all(|line| known.contains(&line)), "{:?}", kinds.collect::<Vec<_>>());
}

pub(crate) fn samples(block: &str) -> Vec<Sample> {
    let mut samples: Vec<Sample> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), samples.last_mut()) {
            (Some(line), _) => samples.push(Sample { line: line.to_owned(), prints: Vec::new() }),
            (None, Some(sample)) => sample.prints.push(line.to_owned()),
            (None, None) => panic!("a block begins with a line that is typed: {line}"),
        }
    }
    samples
}

/// Whether the page's lines fit what was printed. `…` stands for any text within a line.
pub(crate) fn fits(page: &[String], printed: &str) -> bool {
    let printed: Vec<&str> = printed.lines().collect();
    page.len() == printed.len() && page.iter().zip(printed).all(|(page, printed)| fits_line(page, printed))
}

fn fits_line(page: &str, printed: &str) -> bool {
    let parts: Vec<&str> = page.split('…').collect();
    let [first, middle @ .., last] = parts.as_slice() else { return page == printed };
    let Some(mut rest) = printed.strip_prefix(first) else { return false };
    for part in middle {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

/// The settings that the page lists are those that the server reads.
#[test]
fn the_settings_of_the_page_are_accepted() {
    let bench = Bench::new();
    bench.policy(
        "[serve]\nmetrics = \"token\"\n\
         metrics_tokens = [\"sha256:0000000000000000000000000000000000000000000000000000000000000000\"]\n\
         listen = [\"127.0.0.1:0\"]\nsocket = \"once.sock\"\nmax_body = 67108864\nmax_bodies = 268435456\n\
         max_connections = 1024\nheader_timeout = \"30s\"\nbody_timeout = \"15s\"\ndrain_timeout = \"30s\"\n\
         [tenant.acme]\nrate = 10\nburst = 20\nmax_body = 1024\n\
         tokens = [\"sha256:0000000000000000000000000000000000000000000000000000000000000000\"]\n",
    );
    drop(Server::start(&bench, &[]));
}
