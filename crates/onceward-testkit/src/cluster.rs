//! A Redis cluster, by default of three masters, with or without replicas.

use crate::Redis;
use crate::home::{self, must};

/// The number of slots, and the default number of masters.
const SLOTS: usize = 16_384;
const MASTERS: usize = 3;

/// The masters of a cluster, each on a free port of 127.0.0.1, followed by their replicas.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Redis>,
    masters: usize,
}

impl RedisCluster {
    /// Starts a cluster and waits until it is ready.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a cluster whose nodes have additional settings, in the form of `redis.conf`.
    #[must_use]
    pub fn start_with(settings: &[(&str, &str)]) -> Self {
        Self::start_of(MASTERS, settings)
    }

    /// Starts a cluster with this many masters.
    #[must_use]
    pub fn start_of(masters: usize, settings: &[(&str, &str)]) -> Self {
        let mut all = vec![("cluster-enabled", "yes"), ("cluster-node-timeout", "15000")];
        all.extend_from_slice(settings);
        let nodes: Vec<Redis> = (0..masters).map(|_| Redis::start_with(&all)).collect();
        for (number, node) in nodes.iter().enumerate() {
            let (first, last) = (SLOTS * number / masters, SLOTS * (number + 1) / masters - 1);
            expect_ok(node, &["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
            expect_ok(node, &["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
        }
        for node in nodes.iter().skip(1) {
            let first = nodes.first().map_or(0, |node| node.port()).to_string();
            expect_ok(node, &["CLUSTER", "MEET", "127.0.0.1", &first]);
        }
        let cluster = Self { nodes, masters };
        cluster.wait_until_ready();
        cluster
    }

    /// Starts a cluster of six nodes: each master has a replica that takes over when the master is gone.
    #[must_use]
    pub fn start_with_replicas() -> Self {
        let settings = [("cluster-node-timeout", "5000"), ("cluster-allow-replica-migration", "no")];
        let mut cluster = Self::start_with(&settings);
        let mut all = vec![("cluster-enabled", "yes")];
        all.extend_from_slice(&settings);
        for master in 0..cluster.masters {
            let replica = Redis::start_with(&all);
            let (port, id) =
                (cluster.nodes[master].port().to_string(), cluster.nodes[master].cli(&["CLUSTER", "MYID"]));
            expect_ok(&replica, &["CLUSTER", "MEET", "127.0.0.1", &port]);
            home::eventually("the replica knows its master", || {
                replica.cli(&["CLUSTER", "REPLICATE", &id]) == "OK"
            });
            cluster.nodes.push(replica);
        }
        cluster.wait_until_ready();
        cluster
    }

    /// The numbers of the current masters, each with the number of its replica.
    #[must_use]
    pub fn pairs(&self) -> Vec<(usize, Option<usize>)> {
        let ids: Vec<String> = self.nodes.iter().map(|node| node.cli(&["CLUSTER", "MYID"])).collect();
        let roles: Vec<String> = self.nodes.iter().map(|node| node.cli(&["CLUSTER", "NODES"])).collect();
        // Each node describes itself: `ID ADDRESS myself,master …` or `ID ADDRESS myself,slave MASTER …`.
        let own: Vec<Vec<&str>> = roles
            .iter()
            .map(|said| {
                said.lines().find(|line| line.contains("myself")).unwrap_or_default().split(' ').collect()
            })
            .collect();
        let is_master = |number: &usize| own[*number].get(2).is_some_and(|flags| flags.contains("master"));
        (0..self.nodes.len())
            .filter(is_master)
            .map(|master| {
                let follows = |words: &Vec<&str>| words.get(3) == Some(&ids[master].as_str());
                (master, own.iter().position(follows))
            })
            .collect()
    }

    /// The number of the master that had the slot of a key when the cluster was started.
    #[must_use]
    pub fn node_of(&self, key: &str) -> usize {
        let answer =
            self.nodes.first().map_or_else(String::new, |node| node.cli(&["CLUSTER", "KEYSLOT", key]));
        let slot: usize = must(answer.parse(), "CLUSTER KEYSLOT");
        let ends = |number: usize| SLOTS * (number + 1) / self.masters;
        (0..self.masters).find(|number| slot < ends(*number)).unwrap_or_default()
    }

    /// Moves the slot of a key from one node to another in small steps, as an operator does.
    pub fn move_slot_of(&self, key: &str, from: usize, to: usize) {
        let (from, to) = (&self.nodes[from], &self.nodes[to]);
        let slot = from.cli(&["CLUSTER", "KEYSLOT", key]);
        let (from_id, to_id) = (from.cli(&["CLUSTER", "MYID"]), to.cli(&["CLUSTER", "MYID"]));
        expect_ok(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
        expect_ok(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
        let port = to.port().to_string();
        loop {
            let keys = from.cli(&["CLUSTER", "GETKEYSINSLOT", &slot, "20"]);
            if keys.is_empty() {
                break;
            }
            let words = ["MIGRATE", "127.0.0.1", &port, "", "0", "10000", "KEYS"];
            let answer = from.cli(&words.into_iter().chain(keys.lines()).collect::<Vec<_>>());
            assert!(["OK", "NOKEY"].contains(&answer.as_str()), "keys could not be moved: {answer}");
        }
        for node in [to, from] {
            expect_ok(node, &["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]);
        }
    }

    /// The cluster that all tests of this process share.
    #[must_use]
    pub fn shared() -> &'static Self {
        static SHARED: std::sync::OnceLock<RedisCluster> = std::sync::OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// Waits until all nodes know each other and all slots are served. Also needed after a node was restarted.
    pub fn wait_until_ready(&self) {
        home::eventually("the cluster is ready", || self.nodes.iter().all(|node| self.is_ready(node)));
    }

    fn is_ready(&self, node: &Redis) -> bool {
        let (info, replication) = (node.cli(&["CLUSTER", "INFO"]), node.cli(&["INFO", "replication"]));
        let says = |line: String| info.lines().any(|said| said == line);
        let is_master = replication.contains("role:master");
        // If there are replicas, each master must have one.
        let followed = self.nodes.len() == self.masters || !replication.contains("connected_slaves:0");
        says("cluster_state:ok".to_owned())
            && says(format!("cluster_known_nodes:{}", self.nodes.len()))
            && says(format!("cluster_slots_ok:{SLOTS}"))
            && if is_master { followed } else { replication.contains("master_link_status:up") }
    }

    /// Its URL, which names every node.
    #[must_use]
    pub fn url(&self) -> String {
        let nodes: Vec<String> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis+cluster://{}", nodes.join(","))
    }

    /// The URL of a new, empty ledger.
    #[must_use]
    pub fn fresh(&self) -> String {
        format!("{}?prefix={}", self.url(), home::unique())
    }

    /// Its nodes.
    #[must_use]
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// Its nodes, to stop, kill and restart them.
    #[must_use]
    pub fn nodes_mut(&mut self) -> &mut [Redis] {
        &mut self.nodes
    }
}

#[track_caller]
fn expect_ok(node: &Redis, words: &[&str]) {
    let answer = node.cli(words);
    must(if answer == "OK" { Ok(()) } else { Err(answer) }, &words.join(" "));
}
