//! A server's settings are weakened under open handles: each handle stops with the reason, and continues when the
//! setting is repaired.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use onceward_testkit::{Postgres, Redis, Relay};

use super::{in_parallel, wait_until_online};
use crate::Trouble;
use crate::args::{Args, BackEnd};
use crate::bench::{Bench, Case};
use crate::crew::{Crew, Outcome, judge, labels};
use crate::process::PATIENCE;
use crate::report::{Rule, Tally};

const PROCESSES: usize = 3;
const LABELS: usize = 100;
/// How long nothing may run after all processes got the error.
const STOPPED: Duration = Duration::from_millis(500);
const UNAVAILABLE: &str = "LEDGER_UNAVAILABLE";

pub(super) fn run(bench: &Bench, args: &Args, tally: &Tally) -> Result<(), Trouble> {
    let back_ends = args.back_ends(&[BackEnd::Postgres, BackEnd::Redis]);
    let rows = Mutex::new(Vec::new());
    in_parallel("settings", &back_ends, 2, |back_end| {
        let case = bench.case()?;
        let mut bad =
            WeakenedServer { bench, case: &case, tally, name: back_end.name(), rows: &rows, crew: None };
        match back_end {
            BackEnd::Postgres => bad.postgres(args.not_safe),
            BackEnd::Redis => bad.redis(args.not_safe),
            BackEnd::Sqlite | BackEnd::RedisCluster | BackEnd::Http => Ok(()),
        }
    })?;
    rows.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().for_each(|row| tally.note(row));
    Ok(())
}

/// A server under load whose settings are weakened and repaired.
struct WeakenedServer<'a> {
    bench: &'a Bench,
    case: &'a Case,
    tally: &'a Tally,
    name: &'static str,
    rows: &'a Mutex<Vec<String>>,
    crew: Option<Crew>,
}

impl WeakenedServer<'_> {
    fn start(&mut self, url: &str) -> Result<(), Trouble> {
        let crew = Crew::start(self.bench, self.case, url, &labels("once", LABELS), PROCESSES)?;
        crew.wait_for_effects(self.case, 20)?;
        self.crew = Some(crew);
        Ok(())
    }

    fn postgres(&mut self, not_safe: bool) -> Result<(), Trouble> {
        let server = Postgres::start();
        // An asynchronous standby must be requested explicitly and is unsafe. The other checks cannot be switched
        // off.
        let allow = if not_safe { "&standby=async" } else { "" };
        self.start(&format!("{}{allow}", server.fresh()))?;
        let set = |setting: &str| {
            drop(server.sql(&format!("alter system set {setting}")));
            drop(server.sql("select pg_reload_conf()"));
        };
        let settings: &[&str] = match (not_safe, self.bench.short) {
            (true, _) => &[],
            (false, true) => &["fsync"],
            (false, false) => &["fsync", "full_page_writes"],
        };
        for name in settings {
            let advice = "fsync or full_page_writes off";
            self.one(name, advice, || set(&format!("{name} = off")), || set(&format!("{name} = on")))?;
        }
        let standby = Mutex::new(None);
        if !self.bench.short {
            let appears = || {
                let second = server.standby("second");
                *standby.lock().unwrap_or_else(PoisonError::into_inner) = Some(second);
            };
            self.one("asynchronous standby", "asynchronous standby", appears, || {
                server.synchronous("second")
            })?;
        }
        self.finish()
    }

    fn redis(&mut self, not_safe: bool) -> Result<(), Trouble> {
        let server = Redis::start_with(&[("maxmemory", "1gb")]);
        let allow = if not_safe { "&durability=none&wait=0" } else { "" };
        self.start(&format!("{}&timeout=2s&wait_timeout=500ms{allow}", server.fresh()))?;
        let table = [
            ("appendfsync", "everysec", "always"),
            ("no-appendfsync-on-rewrite", "yes", "no"),
            ("appendonly", "no", "yes"),
            ("maxmemory-policy", "allkeys-lru", "noeviction"),
        ];
        // If the settings are allowed explicitly, one of them is enough to show it.
        let some = if self.bench.short || not_safe { 1 } else { table.len() };
        for (name, worse, better) in table.into_iter().take(some) {
            let set = |value: &str| drop(server.cli(&["CONFIG", "SET", name, value]));
            let advice = if name == "maxmemory-policy" { better } else { name };
            self.one(name, advice, || set(worse), || set(better))?;
        }
        let relay = Relay::to(server.port());
        let replica = Mutex::new(None);
        if !self.bench.short {
            let appears = || {
                let primary = format!("127.0.0.1 {}", relay.port());
                let second = Redis::start_with(&[("replicaof", &primary)]);
                wait_until_online(&server);
                *replica.lock().unwrap_or_else(PoisonError::into_inner) = Some(second);
                relay.stall();
            };
            self.one("replica that is silent", "replicas", appears, || relay.mend())?;
        }
        self.finish()
    }

    /// Weakens one setting until all processes have stopped, and repairs it until all continue.
    fn one(
        &mut self,
        what: &str,
        advice: &str,
        worse: impl FnOnce(),
        better: impl FnOnce(),
    ) -> Result<(), Trouble> {
        let Some(crew) = &self.crew else { return Err("there is no crew".into()) };
        let (name, tally) = (self.name, self.tally);
        let moment = |when: &str| format!("{what}, {when}");
        worse();
        let begun = Instant::now();
        crew.moment(&moment("worse"))?;
        tally.faults(1);
        let is_told = |words: &str, code: &str| code == UNAVAILABLE && words.contains(advice);
        let told = crew.wait_within(PATIENCE, |said| {
            said.moment == moment("worse") && is_told(&said.words, &said.code)
        })?;
        let told_after = begun.elapsed();
        tally.expect(told, || format!("{name}: {what}: not every process stopped with the reason"));
        crew.moment(&moment("stopped"))?;
        std::thread::sleep(STOPPED);
        better();
        crew.moment(&moment("mended"))?;
        let begun = Instant::now();
        let on = crew.wait_within(PATIENCE, |said| said.moment == moment("mended") && said.ran)?;
        let on_after = begun.elapsed();
        tally.expect(on, || format!("{name}: {what}: not every process continued"));
        let said = crew.said()?;
        let count = |when: &str, ran: bool| {
            said.iter().filter(|said| said.moment == moment(when) && said.ran == ran).count()
        };
        let ran = count("stopped", true);
        if told && ran > 0 {
            tally.violated(Rule::NoIntent, format!("{name}: {what}: {ran} ran after all had stopped"));
        }
        let row = format!(
            "{name}, {what}: stopped after {:.1} s, {} ran before, {} refused, {ran} ran after; resumed after {:.1} s",
            told_after.as_secs_f64(),
            count("worse", true),
            said.iter().filter(|said| said.moment.starts_with(what) && said.code == UNAVAILABLE).count(),
            on_after.as_secs_f64()
        );
        self.rows.lock().unwrap_or_else(PoisonError::into_inner).push(row);
        Ok(())
    }

    /// Ends the crew while its server and replicas are still there, and checks its results.
    fn finish(&mut self) -> Result<(), Trouble> {
        let Some(crew) = self.crew.take() else { return Ok(()) };
        let outcome = judge(&self.case.effects, &crew.end()?, self.name, self.tally)?;
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.push(Outcome::head());
        rows.push(outcome.row(self.name));
        Ok(())
    }
}
