//! Tests of the harness itself: servers run after a start and are gone after an end.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use onceward_testkit::{Postgres, Redis, RedisCluster, Relay, eventually};

/// Sends inline commands to Redis and reads this many lines of the reply, with a timeout.
fn ask(stream: &mut TcpStream, commands: &str, lines: usize) -> std::io::Result<String> {
    stream.set_read_timeout(Some(Duration::from_millis(300)))?;
    stream.write_all(commands.as_bytes())?;
    let mut replies = String::new();
    while replies.lines().count() < lines || !replies.ends_with('\n') {
        let mut bytes = [0; 64];
        let read = stream.read(&mut bytes)?;
        if read == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        replies.push_str(&String::from_utf8_lossy(&bytes[..read]));
    }
    Ok(replies)
}

fn ping(stream: &mut TcpStream) -> std::io::Result<String> {
    ask(stream, "PING\r\n", 1)
}

#[test]
fn a_server_that_is_started_again_has_its_port_and_data() {
    let mut server = Postgres::start_with(&[("work_mem", "5MB")]);
    assert_eq!(server.sql("show work_mem"), "5MB");
    assert_eq!(server.sql("show fsync"), "on");
    drop(server.sql("create table kept (number int); insert into kept values (1), (2)"));
    let port = server.port();
    server.stop();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    server.start_again();
    assert_eq!(server.sql("select sum(number) from kept"), "3");
    server.kill();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    server.start_again();
    assert_eq!((server.port(), server.sql("select count(*) from kept").as_str()), (port, "2"));
    let folder = server.folder().to_owned();
    drop(server);
    assert!(!folder.exists());
}

#[test]
fn each_fresh_ledger_is_another_one() {
    let server = Postgres::shared();
    assert_ne!(server.fresh(), server.fresh());
    assert!(server.fresh().starts_with(&format!("{}?schema=", server.url())));
    assert!(Redis::shared().fresh().contains("?prefix="));
}

#[test]
fn a_standby_follows_and_takes_over() {
    let mut primary = Postgres::start();
    let relay = Relay::to(primary.port());
    let mut standby = primary.standby_through(&relay, "second");
    primary.synchronous("second");
    drop(primary.sql("create table kept (number int); insert into kept values (7)"));
    eventually("the row arrives", || standby.sql("select to_regclass('kept') is not null") == "t");
    relay.stall();
    drop(primary.sql("set synchronous_commit = local; insert into kept values (8)"));
    primary.kill();
    standby.promote();
    assert_eq!(standby.sql("insert into kept values (9); select sum(number) from kept"), "16");
}

#[test]
fn a_pool_answers_for_its_server() {
    let server = Postgres::start();
    let pool = server.pgbouncer();
    assert!(pool.url().contains(&pool.port().to_string()));
    let mut stream = TcpStream::connect(("127.0.0.1", pool.port())).unwrap();
    // A request for TLS, which the server answers with one byte.
    stream.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]).unwrap();
    let mut answer = [0];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"N");
}

#[test]
fn redis_keeps_what_it_acknowledged_through_a_kill() {
    let mut server = Redis::start();
    assert_eq!(server.cli(&["SET", "a", "1"]), "OK");
    server.kill();
    assert!(TcpStream::connect(("127.0.0.1", server.port())).is_err());
    server.start_again();
    assert_eq!(server.cli(&["GET", "a"]), "1");
    server.stop();
    server.start_again();
    assert_eq!(server.cli(&["GET", "a"]), "1");
}

#[test]
fn a_replica_behind_a_partition_falls_back() {
    let mut primary = Redis::start();
    let relay = Relay::to(primary.port());
    let mut replica = primary.replica_through(&relay);
    let mut stream = TcpStream::connect(("127.0.0.1", primary.port())).unwrap();
    assert_eq!(ask(&mut stream, "SET a 1\r\nWAIT 1 200\r\n", 2).unwrap(), "+OK\r\n:1\r\n");
    relay.stall();
    assert_eq!(ask(&mut stream, "SET a 2\r\nWAIT 1 100\r\n", 2).unwrap(), "+OK\r\n:0\r\n");
    primary.kill();
    replica.promote();
    assert_eq!(replica.cli(&["GET", "a"]), "1");
    assert_eq!(replica.cli(&["SET", "a", "3"]), "OK");
}

#[test]
fn a_cluster_serves_every_slot() {
    let mut cluster = RedisCluster::start();
    assert_eq!(cluster.nodes().len(), 3);
    assert_eq!(cluster.url().matches("127.0.0.1:").count(), 3);
    for key in ["a", "b", "c", "d", "e"] {
        let set: Vec<String> = cluster.nodes().iter().map(|node| node.cli(&["SET", key, "1"])).collect();
        assert_eq!(set.iter().filter(|answer| *answer == "OK").count(), 1, "{set:?}");
    }
    let node = &mut cluster.nodes_mut()[1];
    node.kill();
    node.start_again();
    cluster.wait_until_ready();
}

#[test]
fn a_relay_is_cut_stalled_and_mended() {
    let server = Redis::shared();
    let relay = Relay::to(server.port());
    let connect = || TcpStream::connect(("127.0.0.1", relay.port()));
    let mut stream = connect().unwrap();
    assert_eq!(ping(&mut stream).unwrap(), "+PONG\r\n");
    relay.stall();
    assert_eq!(ping(&mut stream).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    relay.mend();
    assert_eq!(ping(&mut stream).unwrap().lines().next(), Some("+PONG"));
    relay.cut();
    assert_eq!(relay.connections(), 0);
    assert_eq!(ping(&mut stream).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(connect().unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    relay.mend();
    assert_eq!(ping(&mut connect().unwrap()).unwrap(), "+PONG\r\n");
}

#[test]
fn a_dropped_reply_is_one_whose_request_was_carried_out() {
    let server = Redis::start();
    let relay = Relay::to(server.port());
    let mut stream = TcpStream::connect(("127.0.0.1", relay.port())).unwrap();
    relay.drop_replies_once();
    stream.write_all(b"SET a 1\r\n").unwrap();
    assert!(
        matches!(stream.read(&mut [0; 64]), Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset)
    );
    assert_eq!((relay.replies_dropped(), server.cli(&["GET", "a"]).as_str()), (1, "1"));
    let mut stream = TcpStream::connect(("127.0.0.1", relay.port())).unwrap();
    assert_eq!(ping(&mut stream).unwrap(), "+PONG\r\n");
}

#[test]
fn nothing_is_left_of_a_test_that_was_killed() {
    if std::env::var_os("TESTKIT_VICTIM").is_some() {
        let (postgres, redis) = (Postgres::start(), Redis::start());
        println!("victim {} {} {}", postgres.port(), redis.port(), postgres.folder().display());
        // It is killed meanwhile; this ends with its parent at the latest.
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        return;
    }
    let mut victim = Command::new(std::env::current_exe().unwrap());
    victim.args(["--exact", "nothing_is_left_of_a_test_that_was_killed", "--nocapture"]);
    victim.env("TESTKIT_VICTIM", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut victim = victim.spawn().unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let said = lines.map_while(Result::ok).find_map(|line| {
        let (_, words) = line.split_once("victim ")?;
        Some(words.split(' ').map(str::to_owned).collect::<Vec<_>>())
    });
    let said = said.expect("the victim started its servers");
    victim.kill().unwrap();
    victim.wait().unwrap();
    for port in &said[..2] {
        let port: u16 = port.parse().unwrap();
        eventually("the server is gone", || TcpStream::connect(("127.0.0.1", port)).is_err());
    }
    let home = Path::new(&said[2]).parent().unwrap();
    eventually("its folder is gone", || !home.exists());
}
