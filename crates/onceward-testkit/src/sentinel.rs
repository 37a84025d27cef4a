//! Sentinels that watch a Redis server and its replicas.

use crate::Redis;
use crate::home::{self, RunAs, must};
use crate::server::Server;

/// The number of sentinels, and how many of them must agree.
const COUNT: usize = 3;
const QUORUM: usize = 2;

/// Three sentinels that monitor a server under the name `main`, each on a free port of 127.0.0.1.
#[derive(Debug)]
pub struct Sentinels {
    all: Vec<Server>,
}

impl Sentinels {
    /// Starts sentinels and waits until they know each other, the server and its `replicas`.
    #[must_use]
    pub fn start(primary: &Redis, replicas: usize) -> Self {
        let sentinels = Self { all: (0..COUNT).map(|_| sentinel(primary.port())).collect() };
        let others = format!("num-other-sentinels\n{}", COUNT - 1);
        let followers = format!("num-slaves\n{replicas}");
        home::eventually("the sentinels know each other", || {
            sentinels.all.iter().all(|sentinel| {
                let said = ask(sentinel.port(), &["SENTINEL", "MASTER", "main"]);
                said.contains(&others) && said.contains(&followers)
            })
        });
        sentinels
    }

    /// The URL of a ledger with this prefix.
    #[must_use]
    pub fn url(&self, prefix: &str) -> String {
        let hosts: Vec<String> =
            self.all.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port())).collect();
        format!("redis+sentinel://{}?service=main&prefix={prefix}", hosts.join(","))
    }

    /// The port of the server that they report as the primary.
    #[must_use]
    pub fn primary(&self) -> u16 {
        let said = self
            .all
            .first()
            .map(|sentinel| ask(sentinel.port(), &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]));
        said.and_then(|said| said.lines().nth(1)?.parse().ok()).unwrap_or_default()
    }
}

fn sentinel(primary: u16) -> Server {
    let folder = home::folder("sentinel");
    home::make_folder(&folder);
    let command = |port| {
        let lines = [
            format!("port {port}"),
            "bind 127.0.0.1".to_owned(),
            "protected-mode no".to_owned(),
            format!("dir {}", folder.display()),
            format!("sentinel monitor main 127.0.0.1 {primary} {QUORUM}"),
            "sentinel down-after-milliseconds main 5000".to_owned(),
            "sentinel failover-timeout main 30000".to_owned(),
        ];
        let file = folder.join("sentinel.conf");
        must(std::fs::write(&file, lines.join("\n") + "\n"), "cannot write sentinel.conf");
        let mut command = home::command("redis-server", "redis-server", RunAs::CurrentUser);
        command.arg(&file).arg("--sentinel");
        command
    };
    Server::start("a sentinel", &folder, command, |_, port| ask(port, &["PING"]) == "PONG")
}

fn ask(port: u16, words: &[&str]) -> String {
    let mut command = home::command("redis-cli", "redis-server", RunAs::CurrentUser);
    command.args(["-h", "127.0.0.1", "-p", &port.to_string()]).args(words);
    let output = must(command.output(), "cannot run redis-cli");
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}
