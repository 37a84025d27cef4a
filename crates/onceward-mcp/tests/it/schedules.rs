//! Seeded schedules of calls, cancellations, answers, reconnects, errors after the effect and settlements, checked
//! against a model of what the client wanted: no unwanted effect, and no wanted effect that is dropped without a true
//! text that says what to do.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onceward::{Ledger, MemoryStore, Policy};
use onceward_mcp::{Asking, Exposure, Guess, HostScope, Options, Proxy, Slow, Streams, Trust};
use onceward_testkit::Stepped;
use serde_json::{Value, json};

/// How many schedules are followed, unless `ONCE_SCHEDULES` says otherwise.
const SCHEDULES: u64 = 1_000;
const STEPS: usize = 8;
/// How many schedules are followed at once: each passes its steps from thread to thread, and mostly waits for a turn.
const AT_ONCE: usize = 16;
const PATIENCE: Duration = Duration::from_secs(120);
const ABORT: &str = "AbortError: This operation was aborted";
const TIMEOUT: &str = "McpError: MCP error -32001: Request timed out";

/// A small seeded generator: the same seed gives the same schedule.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

enum Event {
    ToServer(Value),
    ToClient(Value),
}

/// A stream whose lines become events.
struct Lines {
    events: Sender<Event>,
    rest: Vec<u8>,
    event: fn(Value) -> Event,
    /// Whether the stream is still read.
    is_read: Arc<AtomicBool>,
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_read.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        for byte in bytes {
            if *byte == b'\n' {
                let line = std::mem::take(&mut self.rest);
                drop(self.events.send((self.event)(serde_json::from_slice(&line).unwrap())));
            } else {
                self.rest.push(*byte);
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A stream of lines from a channel, which ends with its sender. It tells when a line has been processed.
struct Feed {
    lines: Receiver<Vec<u8>>,
    asked: Sender<()>,
    rest: Vec<u8>,
}

impl Read for Feed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.rest.is_empty() {
            self.asked.send(()).unwrap_or_default();
            match self.lines.recv() {
                Ok(line) => self.rest = line,
                Err(_) => return Ok(0),
            }
        }
        let length = buffer.len().min(self.rest.len());
        buffer[..length].copy_from_slice(&self.rest[..length]);
        self.rest.drain(..length);
        Ok(length)
    }
}

/// One connection: a client, a proxy, and a server that the schedule simulates.
struct Line {
    to_proxy: Option<Sender<Vec<u8>>>,
    is_processed: Receiver<()>,
    from_server: Option<Sender<Vec<u8>>>,
    events: Receiver<Event>,
    is_read: Arc<AtomicBool>,
    proxy: Arc<Proxy>,
    pumps: Vec<std::thread::JoinHandle<()>>,
}

impl Line {
    fn connect(ledger: &Ledger, runtime: &tokio::runtime::Handle) -> Self {
        let (sender, events) = mpsc::channel();
        let is_read = Arc::new(AtomicBool::new(true));
        let lines = |event: fn(Value) -> Event, is_read: &Arc<AtomicBool>| {
            Box::new(Lines { events: sender.clone(), rest: Vec::new(), event, is_read: Arc::clone(is_read) })
        };
        let always = Arc::new(AtomicBool::new(true));
        let streams =
            Streams { client: lines(Event::ToClient, &is_read), server: lines(Event::ToServer, &always) };
        let proxy = Proxy::new(ledger.clone(), options(), streams, runtime.clone());
        let feed = || {
            let ((sender, lines), (asked, is_processed)) = (mpsc::channel(), mpsc::channel());
            (sender, is_processed, Feed { lines, asked, rest: Vec::new() })
        };
        let ((to_proxy, is_processed, client), (from_server, _, server)) = (feed(), feed());
        let (one, other) = (Arc::clone(&proxy), Arc::clone(&proxy));
        let pumps = vec![
            std::thread::spawn(move || one.pump_client(client)),
            std::thread::spawn(move || other.pump_server(server)),
        ];
        is_processed.recv_timeout(PATIENCE).expect("the proxy reads");
        let (to_proxy, from_server) = (Some(to_proxy), Some(from_server));
        Self { to_proxy, is_processed, from_server, events, is_read, proxy, pumps }
    }

    /// The client sends a message. When this returns, the proxy has processed it: the clock may be stepped.
    fn client_says(&self, message: &Value) {
        self.to_proxy.as_ref().unwrap().send(format!("{message}\n").into_bytes()).unwrap();
        self.is_processed.recv_timeout(PATIENCE).expect("the proxy reads");
    }

    fn server_says(&self, message: &Value) {
        drop(self.from_server.as_ref().unwrap().send(format!("{message}\n").into_bytes()));
    }

    /// The client leaves, then the server ends.
    fn close(mut self, dies: bool) {
        if dies {
            drop(self.from_server.take());
            self.pumps.pop().unwrap().join().unwrap();
            self.proxy.server_gone("the server ended");
        }
        drop(self.to_proxy.take());
        drop(self.from_server.take());
        self.pumps.into_iter().for_each(|pump| pump.join().unwrap());
        self.proxy.server_gone("the connection ended");
    }
}

fn options() -> Options {
    Options {
        server: "s".to_owned(),
        identity: "s".to_owned(),
        policy: Policy::parse("[defaults]\nagents_settle = true\nattempts = 1000").unwrap(),
        scope: HostScope::Chosen("s".to_owned()),
        keys: None,
        trust: Trust::Annotations,
        guess: Guess::Reads,
        on_tool_error: None,
        program: "once".to_owned(),
        exposure: Exposure::Hidden,
        dry_run: false,
        slow: Slow { ms: 4_000, every_client: false },
        wait_ms: 60_000,
        drain_ms: 5_000,
        asking: Asking::Nobody,
        notice: Box::new(|_| {}),
    }
}

/// What the schedule knows: the real effects, and what the client wants.
struct World {
    seed: u64,
    clock: Arc<Stepped>,
    ledger: Ledger,
    runtime: tokio::runtime::Handle,
    line: Option<Line>,
    next_id: u64,
    effects: HashMap<u64, usize>,
    wanted: HashMap<u64, usize>,
    /// Calls that the server has not answered yet.
    held: Vec<(Value, u64)>,
    /// Answers that the client has not processed yet.
    answers: HashMap<u64, Value>,
    trace: Arc<Mutex<Vec<String>>>,
}

impl World {
    fn note(&self, what: impl Into<String>) {
        self.trace.lock().unwrap().push(what.into());
    }

    /// The seed and what happened, for a message.
    fn failed(&self) -> String {
        format!("{}:\n{}\n", self.seed, self.trace.lock().unwrap().join("\n"))
    }

    #[track_caller]
    fn check(&self, action: u64) {
        let (effects, wanted) = (self.effects.get(&action).copied().unwrap_or(0), self.wanted[&action]);
        assert!(
            effects <= wanted,
            "seed {}: {effects} effects, {wanted} wanted: {:#?}",
            self.seed,
            self.trace.lock().unwrap()
        );
    }

    fn line(&self) -> &Line {
        self.line.as_ref().unwrap()
    }

    fn call(&mut self, tool: &str, arguments: &Value) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        self.note(format!("call {id}: {tool} {arguments}"));
        let params = json!({"name": tool, "arguments": arguments});
        self.line()
            .client_says(&json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}));
        id
    }

    fn cancel(&mut self, id: u64, reason: Option<&str>) {
        self.note(format!("cancel {id} {reason:?}"));
        let mut params = json!({"requestId": id});
        if let Some(reason) = reason {
            params["reason"] = json!(reason);
        }
        self.line()
            .client_says(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}));
    }

    /// Handles one event. A call that reaches the server takes effect at once.
    #[track_caller]
    fn step(&mut self) {
        let event = self.line().events.recv_timeout(PATIENCE);
        match event.unwrap_or_else(|_| {
            panic!("seed {}: nothing comes: {:#?}", self.seed, self.trace.lock().unwrap())
        }) {
            Event::ToClient(message) => {
                if let Some(id) = message["id"].as_u64() {
                    self.note(format!("answer {id}: {}", message["result"]["content"][0]["text"]));
                    self.answers.insert(id, message);
                }
            }
            Event::ToServer(message) => match message["method"].as_str() {
                Some("tools/list") => {
                    let read = json!({"name": "look", "annotations": {"readOnlyHint": true}});
                    let tools = json!([{"name": "count"}, read]);
                    let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": {"tools": tools}});
                    self.line().server_says(&answer);
                }
                Some("tools/call") if message["params"]["name"] == "count" => {
                    let action = message["params"]["arguments"]["n"].as_u64().unwrap();
                    *self.effects.entry(action).or_default() += 1;
                    self.note(format!("effect of {action}"));
                    self.held.push((message["id"].clone(), action));
                    self.check(action);
                }
                Some("tools/call") => {
                    let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": {"content": []}});
                    self.line().server_says(&answer);
                }
                Some(_) | None => {}
            },
        }
    }

    /// The server answers one of its calls.
    fn serve(&mut self, is_error: bool) {
        let (id, action) = self.held.remove(0);
        let run = self.effects[&action];
        let text = if is_error { "read timed out".to_owned() } else { format!("run {run}") };
        let result = json!({"content": [{"type": "text", "text": text}], "isError": is_error});
        self.line().server_says(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
    }

    /// Waits until the server has the call or the client has its answer.
    fn until_sent(&mut self, id: u64) {
        let before = self.held.len();
        while self.held.len() == before && !self.answers.contains_key(&id) {
            self.step();
        }
    }

    /// Waits for the answer while the server answers all its calls.
    fn answer(&mut self, id: u64, is_error: bool) -> Value {
        loop {
            if let Some(answer) = self.answers.remove(&id) {
                return answer;
            }
            if self.held.is_empty() { self.step() } else { self.serve(is_error) }
        }
    }

    /// Waits until the proxy has read the client's messages, which it does in order.
    fn let_it_read(&mut self) {
        let id = self.call("look", &json!({}));
        while self.answers.remove(&id).is_none() {
            self.step();
        }
    }

    fn look(&mut self) {
        let id = self.call("look", &json!({}));
        self.answer(id, false);
    }

    fn reconnect(&mut self, dies: bool) {
        self.note(format!("reconnect, dies: {dies}"));
        self.line().is_read.store(false, Ordering::SeqCst);
        if !dies {
            // The server finishes its calls; the client that left does not see the answers.
            while !self.held.is_empty() {
                self.serve(false);
            }
        }
        self.held.clear();
        self.answers.clear();
        self.line.take().unwrap().close(dies);
        self.line = Some(Line::connect(&self.ledger, &self.runtime));
    }

    /// The client repeats a call, following the answers, until it knows that its action happened once more.
    fn insist(&mut self, action: u64, mut last: Option<Value>) {
        for _ in 0..4 {
            let answer = match last.take() {
                Some(answer) => answer,
                None => {
                    let id = self.call("count", &json!({"n": action}));
                    self.answer(id, false)
                }
            };
            let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_default().to_owned();
            let about = &answer["result"]["_meta"]["dev.onceward/effect"];
            if about["error"]["code"] == "IN_DOUBT" {
                self.settle(action, about["operation"]["id"].as_str().unwrap());
                continue;
            }
            if self.effects[&action] == self.wanted[&action] {
                assert!(answer["result"]["isError"] != json!(true), "seed {}: {answer}", self.seed);
                return;
            }
            // The repeat was not run. Then the text must say what to do, and that must be true.
            if text.contains("make the same call after") {
                self.clock.step(121_000);
            } else {
                assert!(text.contains("make the same call once more"), "seed {}: {answer}", self.failed());
            }
        }
        panic!("seed {}: a wanted call of {action} never ran: {:#?}", self.seed, self.trace.lock().unwrap());
    }

    /// The model checks the world and reports what it saw.
    fn settle(&mut self, action: u64, operation: &str) {
        let happened = self.effects[&action] == self.wanted[&action];
        let verdict = if happened { "done" } else { "failed" };
        let arguments =
            json!({"operation": operation, "verdict": verdict, "evidence": "I looked at the world"});
        let id = self.call("once_settle", &arguments);
        let told = self.answer(id, false);
        assert_eq!(told["result"]["isError"], json!(false), "seed {}: {told}", self.seed);
    }
}

/// One action of a client, and how it fails.
fn step(world: &mut World, dice: &mut Dice) {
    let action = dice.roll(2);
    *world.wanted.entry(action).or_default() += 1;
    world.effects.entry(action).or_default();
    if dice.roll(3) == 0 {
        world.look();
    }
    if dice.roll(2) == 0 {
        // A model takes a while between two calls.
        world.clock.step(3_000);
    }
    match dice.roll(11) {
        0 => world.insist(action, None),
        1 => world.cleans_up(action, dice),
        2 => world.gives_up(action, dice),
        3 => world.crosses(action),
        4 => world.raises(action),
        5 => world.breaks_off(action, dice),
        6 => {
            world.insist(action, None);
            world.reconnect(false);
        }
        7 => world.at_once(action, dice),
        8 => world.gives_up_in_parallel(action, dice),
        9 => world.raises_in_parallel(action, dice),
        _ => world.repeats_in_silence(action),
    }
    world.check(action);
}

impl World {
    /// Makes a call and waits until the server has it. If it is answered at once, the client continues from that
    /// answer.
    fn under_way(&mut self, action: u64) -> Option<u64> {
        let id = self.call("count", &json!({"n": action}));
        self.until_sent(id);
        if self.answers.contains_key(&id) {
            let answer = self.answer(id, false);
            self.insist(action, Some(answer));
            return None;
        }
        Some(id)
    }

    /// The client cleans up after the answer, at once or later.
    fn cleans_up(&mut self, action: u64, dice: &mut Dice) {
        let id = self.call("count", &json!({"n": action}));
        let answer = self.answer(id, false);
        let late = dice.roll(2) == 0;
        if late {
            self.clock.step(1_500);
        }
        self.cancel(id, if late { None } else { Some(ABORT) });
        self.insist(action, Some(answer));
    }

    /// The client gives up while the call runs, and retries.
    fn gives_up(&mut self, action: u64, dice: &mut Dice) {
        let Some(id) = self.under_way(action) else { return };
        let reason = [None, Some(ABORT), Some(TIMEOUT)][dice.roll(3) as usize];
        self.cancel(id, reason);
        if reason != Some(TIMEOUT) {
            // If a client cleans up with the same reason, a crossing cancellation looks the same.
            self.let_it_read();
        }
        if dice.roll(2) == 0 {
            self.look();
        }
        self.insist(action, None);
    }

    /// The client times out just as the answer arrives.
    fn crosses(&mut self, action: u64) {
        let id = self.call("count", &json!({"n": action}));
        let answer = self.answer(id, false);
        if answer["result"]["_meta"].is_null() {
            self.cancel(id, Some(TIMEOUT));
            self.insist(action, None);
        } else {
            self.insist(action, Some(answer));
        }
    }

    /// The tool raises after its effect. The client retries in vain, then settles it.
    fn raises(&mut self, action: u64) {
        let id = self.call("count", &json!({"n": action}));
        let answer = self.answer(id, true);
        let is_own = answer["result"]["_meta"].is_null();
        self.insist(action, if is_own { None } else { Some(answer) });
    }

    /// The connection breaks while the call runs, with or without the server.
    fn breaks_off(&mut self, action: u64, dice: &mut Dice) {
        if self.under_way(action).is_some() {
            self.reconnect(dice.roll(2) == 0);
            self.insist(action, None);
        }
    }

    /// A model makes several calls in parallel.
    fn at_once(&mut self, action: u64, dice: &mut Dice) {
        let more = 1 + dice.roll(2) as usize;
        *self.wanted.get_mut(&action).unwrap() += more;
        let ids: Vec<u64> = (0..=more).map(|_| self.call("count", &json!({"n": action}))).collect();
        ids.iter().for_each(|id| drop(self.answer(*id, false)));
        // Earlier answers may be replayed first: each further call adds one effect, until all are there.
        let all = self.wanted[&action];
        while self.effects[&action] < all {
            let next = self.effects[&action] + 1;
            self.wanted.insert(action, next);
            self.insist(action, None);
            self.wanted.insert(action, all);
        }
    }

    /// A model makes two calls in parallel, gives up some of them while they run or as they end, and retries those.
    fn gives_up_in_parallel(&mut self, action: u64, dice: &mut Dice) {
        let Some(ids) = self.in_parallel(action) else { return };
        let given_up: Vec<u64> = match dice.roll(3) {
            0 => vec![ids[0]],
            1 => vec![ids[1]],
            _ => ids.to_vec(),
        };
        given_up.iter().for_each(|id| self.cancel(*id, Some(TIMEOUT)));
        if dice.roll(2) == 0 {
            self.let_it_read();
        } else {
            for id in ids.iter().filter(|id| !given_up.contains(id)) {
                self.answer(*id, false);
            }
        }
        // A retry runs nothing.
        for _ in &given_up {
            let id = self.call("count", &json!({"n": action}));
            let answer = self.answer(id, false);
            assert!(!answer["result"]["_meta"].is_null(), "seed {}: {answer}", self.seed);
            self.check(action);
        }
    }

    /// A model makes two calls in parallel, one of them raises after its effect, and the model retries that one.
    fn raises_in_parallel(&mut self, action: u64, dice: &mut Dice) {
        let Some(ids) = self.in_parallel(action) else { return };
        let fails = dice.roll(2) == 0;
        self.serve(fails);
        self.serve(!fails);
        ids.iter().for_each(|id| drop(self.answer(*id, false)));
        if dice.roll(3) == 0 {
            self.reconnect(false);
        }
        let id = self.call("count", &json!({"n": action}));
        let answer = self.answer(id, false);
        let about = &answer["result"]["_meta"]["dev.onceward/effect"];
        assert_eq!(about["error"]["code"], "IN_DOUBT", "seed {}: {answer}", self.failed());
        self.settle(action, about["operation"]["id"].as_str().unwrap());
        // It is closed for a while; after that, a call is a new action.
        self.insist(action, None);
    }

    /// Two calls that reach the server in parallel. If an earlier answer comes first, the client continues from there.
    fn in_parallel(&mut self, action: u64) -> Option<[u64; 2]> {
        let first = self.under_way(action)?;
        *self.wanted.get_mut(&action).unwrap() += 1;
        let second = self.call("count", &json!({"n": action}));
        self.until_sent(second);
        Some([first, second])
    }

    /// The client repeats the call silently while it runs: that is a retry.
    fn repeats_in_silence(&mut self, action: u64) {
        let Some(id) = self.under_way(action) else { return };
        self.clock.step(3_000);
        let again = self.call("count", &json!({"n": action}));
        self.let_it_read();
        self.answer(id, false);
        let answer = self.answer(again, false);
        self.insist(action, Some(answer));
    }
}

/// Follows one schedule.
fn follow(seed: u64, runtime: &tokio::runtime::Handle) {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let clock = Stepped::at(1_000_000);
    let ledger = Ledger::new(Arc::new(MemoryStore::new(Arc::clone(&clock))));
    let line = Some(Line::connect(&ledger, runtime));
    let mut world = World {
        seed,
        clock,
        ledger,
        runtime: runtime.clone(),
        line,
        next_id: 0,
        effects: HashMap::new(),
        wanted: HashMap::new(),
        held: Vec::new(),
        answers: HashMap::new(),
        trace: Arc::default(),
    };
    for _ in 0..STEPS {
        step(&mut world, &mut dice);
    }
    for (action, wanted) in &world.wanted {
        assert_eq!(world.effects[action], *wanted, "seed {seed}: {:#?}", world.trace.lock().unwrap());
    }
    world.line.take().unwrap().close(false);
}

#[test]
fn no_unwanted_effect_and_no_wanted_one_lost() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let last = std::env::var("ONCE_SCHEDULES").map_or(SCHEDULES, |last| last.parse().unwrap());
    let next = AtomicU64::new(1);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(seed) = Some(next.fetch_add(1, Ordering::SeqCst)).filter(|seed| *seed <= last)
                {
                    follow(seed, runtime.handle());
                }
            });
        }
    });
}
