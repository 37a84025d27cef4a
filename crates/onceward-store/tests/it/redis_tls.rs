//! The Redis store over TLS: which servers it trusts.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use onceward::{Ledger, Operation};
use onceward_store::redis::{RedisOptions, RedisStore};
use onceward_testkit::Redis;

/// Creates a certificate authority, and a certificate for this machine.
fn certificates(folder: &Path) {
    let make = |words: &str| {
        let output = Command::new("openssl").args(words.split(' ')).current_dir(folder).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    make("req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem");
    make(
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext basicConstraints=critical,CA:FALSE \
         -addext subjectAltName=IP:127.0.0.1 -CA ca.pem -CAkey ca.key -keyout server.key -out server.pem",
    );
    make("req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=stranger -keyout other.key -out other.pem");
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn a_server_is_trusted_only_with_a_valid_certificate() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let file = |name: &str| folder.path().join(name).display().to_string();
    let port = free_port();
    let _server = Redis::start_with(&[
        ("tls-port", &port.to_string()),
        ("tls-cert-file", &file("server.pem")),
        ("tls-key-file", &file("server.key")),
        ("tls-ca-cert-file", &file("ca.pem")),
        ("tls-auth-clients", "no"),
    ]);
    let options = |cacert: &str| {
        let url = format!("rediss://127.0.0.1:{port}?prefix=tls&timeout=60s&cacert={}", file(cacert));
        RedisOptions::parse(&url).unwrap()
    };
    let ledger = Ledger::new(RedisStore::open(options("ca.pem")).unwrap()).blocking();
    let receipt =
        ledger.run(Operation::new("pay").key("a"), |attempt| Ok(attempt.dispatch()?.created(&1))).unwrap();
    assert_eq!(receipt.data(), Some("1"));

    let stranger = RedisStore::open(options("other.pem")).err().unwrap().to_string();
    assert!(stranger.contains("certificate"), "{stranger}");
    let missing = RedisStore::open(options("nothing.pem")).err().unwrap().to_string();
    assert!(missing.contains("cannot read the certificates"), "{missing}");
}
