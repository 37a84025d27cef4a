//! Many processes on the same keys of one ledger: one effect per key, and one result for all.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use onceward_testkit::{LedgerServer, Postgres, Redis, RedisCluster};

use crate::Trouble;
use crate::args::{Args, BackEnd};
use crate::bench::{Bench, Case, progress};
use crate::downstream;
use crate::fleet::{id_of, patient};
use crate::member;
use crate::report::{Rule, Tally};

const KEYS: u64 = 2_000;
const SHORT_KEYS: u64 = 50;
const ALL: [BackEnd; 5] =
    [BackEnd::Sqlite, BackEnd::Postgres, BackEnd::Redis, BackEnd::RedisCluster, BackEnd::Http];

pub(super) fn run(bench: &Bench, args: &Args, tally: &Tally) -> Result<(), Trouble> {
    let keys = args.keys.unwrap_or(if bench.short { SHORT_KEYS } else { KEYS });
    tally.note(format!(
        "{:<14} {:>8} {:>7} {:>8} {:>8} {:>8}",
        "", "calls", "keys", "effects", "same", "seconds"
    ));
    for back_end in args.back_ends(&ALL) {
        let case = bench.case()?;
        let storm = Storm { bench, tally, case: &case, back_end, keys, processes: args.processes };
        // The server lives until the end of its match arm.
        match back_end {
            BackEnd::Sqlite => storm.run(&case.url())?,
            BackEnd::Postgres => storm.run(&Postgres::start_with(&[("max_connections", "300")]).fresh())?,
            BackEnd::Redis => storm.run(&Redis::start().fresh())?,
            BackEnd::RedisCluster => storm.run(&RedisCluster::start_with_replicas().fresh())?,
            BackEnd::Http => storm.run(&LedgerServer::start(&bench.once).url())?,
        }
    }
    Ok(())
}

struct Storm<'a> {
    bench: &'a Bench,
    tally: &'a Tally,
    case: &'a Case,
    back_end: BackEnd,
    keys: u64,
    processes: u64,
}

impl Storm<'_> {
    fn run(&self, url: &str) -> Result<(), Trouble> {
        let (begun, url) = (Instant::now(), &patient(url));
        progress(&format!("fleet-storm on {}", self.back_end.name()));
        let started: Result<Vec<(Child, PathBuf)>, Trouble> =
            (0..self.processes).map(|number| self.start(url, number)).collect();
        let mut said = Vec::new();
        for (mut process, file) in started? {
            let status = process.wait()?;
            self.tally.expect(status.success(), || {
                let words = std::fs::read_to_string(file.with_extension("err")).unwrap_or_default();
                format!("{}: a process ended with {status}: {words}", self.back_end.name())
            });
            said.push(std::fs::read_to_string(file)?);
        }
        let seconds = begun.elapsed().as_secs_f64();
        self.judge(&said, seconds)
    }

    fn start(&self, url: &str, number: u64) -> Result<(Child, PathBuf), Trouble> {
        let file = self.case.folder.join(format!("member-{number}.out"));
        let mut command = Command::new(&self.bench.torture);
        command.args([member::ROLE, url]).arg(&self.case.effects);
        command.args([self.keys.to_string(), number.to_string()]);
        command.stdin(Stdio::null()).stdout(File::create(&file)?).stderr(errors(&file)?);
        Ok((command.spawn()?, file))
    }

    /// Every process has one answer for every key, and it is the line that the downstream counted.
    fn judge(&self, said: &[String], seconds: f64) -> Result<(), Trouble> {
        let name = self.back_end.name();
        let effects = downstream::lines(&self.case.effects)?;
        let count: usize = effects.values().map(Vec::len).sum();
        let mut lines: BTreeMap<String, &Vec<String>> = BTreeMap::new();
        for number in 0..self.keys {
            let key = format!("key-{number}");
            let of_key = effects.get(id_of(&key)?.as_str());
            let effects = of_key.map_or(0, Vec::len);
            match (effects, of_key) {
                (1, Some(line)) => drop(lines.insert(key, line)),
                (0, _) => self.tally.violated(Rule::Lost, format!("{name}: {key} had no effect")),
                (_, _) => self.tally.violated(Rule::Duplicate, format!("{name}: {key}: {of_key:?}")),
            }
        }
        let mut same = 0;
        for line in said.iter().flat_map(|said| said.lines()) {
            let words: Vec<&str> = line.split('\t').collect();
            match words[..] {
                ["done", key, _, result]
                    if lines.get(key).is_some_and(|lines| lines.contains(&result.to_owned())) =>
                {
                    same += 1;
                }
                ["done", key, _, result] => {
                    self.tally.violated(Rule::FalseDone, format!("{name}: {key} got {result:?}"));
                }
                _ => self.tally.violated(Rule::Unexpected, format!("{name}: {line}")),
            }
        }
        let calls = self.keys * self.processes;
        self.tally.expect(same == calls, || format!("{name}: {same} of {calls} callers got the result"));
        self.tally.cases(calls);
        self.tally.effects(count);
        self.tally
            .note(format!("{name:<14} {calls:>8} {:>7} {count:>8} {same:>8} {seconds:>8.1}", self.keys));
        Ok(())
    }
}

fn errors(file: &Path) -> Result<File, Trouble> {
    Ok(File::create(file.with_extension("err"))?)
}
