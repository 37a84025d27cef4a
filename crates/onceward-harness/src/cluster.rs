//! A Redis cluster of three masters.

use crate::Redis;
use crate::home::{self, must};

/// Which slots each of the three has.
const SLOTS: [(u16, u16); 3] = [(0, 5_460), (5_461, 10_922), (10_923, 16_383)];

/// Three masters that share the slots among them, each on a free port of 127.0.0.1.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Redis>,
}

impl RedisCluster {
    /// A cluster that is ready.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// A cluster whose nodes have further settings, as they stand in `redis.conf`.
    #[must_use]
    pub fn start_with(settings: &[(&str, &str)]) -> Self {
        let mut all = vec![("cluster-enabled", "yes"), ("cluster-node-timeout", "2000")];
        all.extend_from_slice(settings);
        let nodes: Vec<Redis> = SLOTS.iter().map(|_| Redis::start_with(&all)).collect();
        for (number, (node, (first, last))) in nodes.iter().zip(SLOTS).enumerate() {
            said_ok(node, &["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
            said_ok(node, &["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
        }
        for node in nodes.iter().skip(1) {
            let first = nodes.first().map_or(0, Redis::port).to_string();
            said_ok(node, &["CLUSTER", "MEET", "127.0.0.1", &first]);
        }
        let cluster = Self { nodes };
        cluster.wait_until_ready();
        cluster
    }

    /// The cluster that all tests of this process share.
    #[must_use]
    pub fn shared() -> &'static Self {
        static SHARED: std::sync::OnceLock<RedisCluster> = std::sync::OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// Waits until each node knows the others and all slots are served: after a node was started again, too.
    pub fn wait_until_ready(&self) {
        home::wait_until("the cluster is ready", || self.nodes.iter().all(is_ready));
    }

    /// Its URL, which names every node.
    #[must_use]
    pub fn url(&self) -> String {
        let nodes: Vec<String> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis+cluster://{}", nodes.join(","))
    }

    /// The URL of an empty ledger of its own.
    #[must_use]
    pub fn fresh(&self) -> String {
        format!("{}?prefix={}", self.url(), home::unique())
    }

    /// Its nodes.
    #[must_use]
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// Its nodes, to stop, kill and start them again.
    #[must_use]
    pub fn nodes_mut(&mut self) -> &mut [Redis] {
        &mut self.nodes
    }
}

fn is_ready(node: &Redis) -> bool {
    let info = node.cli(&["CLUSTER", "INFO"]);
    let says = |line: &str| info.lines().any(|said| said == line);
    says("cluster_state:ok") && says("cluster_known_nodes:3") && says("cluster_slots_ok:16384")
}

#[track_caller]
fn said_ok(node: &Redis, words: &[&str]) {
    let answer = node.cli(words);
    must(if answer == "OK" { Ok(()) } else { Err(answer) }, &words.join(" "));
}
