//! The PostgreSQL store over TLS: what is encrypted, and which servers it trusts.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use onceward::{Ledger, Operation};
use onceward_store::postgres::{PostgresOptions, PostgresStore};
use onceward_testkit::Postgres;

/// Creates a certificate authority, and a certificate for this machine.
fn certificates(folder: &Path) {
    let make = |words: &str| {
        let output = Command::new("openssl").args(words.split(' ')).current_dir(folder).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    make("req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem");
    make(
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext basicConstraints=critical,CA:FALSE \
         -addext subjectAltName=DNS:localhost -CA ca.pem -CAkey ca.key -keyout server.key -out server.pem",
    );
    make("req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=stranger -keyout other.key -out other.pem");
}

/// A server that speaks TLS with a certificate for `localhost`, and the folder of certificates.
fn server() -> (Postgres, tempfile::TempDir) {
    let server = Postgres::start();
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let data = server.sql("show data_directory");
    let owner = std::fs::metadata(&data).unwrap();
    for file in ["server.key", "server.pem"] {
        let there = Path::new(&data).join(file);
        std::fs::copy(folder.path().join(file), &there).unwrap();
        std::os::unix::fs::chown(&there, Some(owner.uid()), Some(owner.gid())).unwrap();
        std::fs::set_permissions(&there, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    for setting in ["ssl_cert_file = 'server.pem'", "ssl_key_file = 'server.key'", "ssl = on"] {
        drop(server.sql(&format!("alter system set {setting}")));
    }
    drop(server.sql("select pg_reload_conf()"));
    // Connections opened after the server has read the certificates.
    onceward_testkit::eventually("the server takes its certificate", || server.sql("show ssl") == "on");
    (server, folder)
}

#[test]
fn a_server_is_checked_by_its_certificate_and_its_name() {
    let (server, folder) = server();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let open = |host: &str, more: &str| {
        let url = server.fresh().replace("127.0.0.1", host);
        PostgresStore::open(PostgresOptions::parse(&format!("{url}&timeout=60s&{more}")).unwrap())
    };
    let refused =
        |host: &str, more: &str| open(host, more).err().map(|error| error.to_string()).unwrap_or_default();
    let by_name = format!("sslmode=verify-full&sslrootcert={}", file("ca.pem"));
    let ledger = Ledger::new(open("localhost", &by_name).unwrap()).blocking();
    ledger.run(Operation::new("pay").key("a"), |attempt| Ok(attempt.dispatch()?.created(&1))).unwrap();
    let encrypted = "select count(*) > 0 from pg_stat_ssl join pg_stat_activity using (pid) \
                     where ssl and application_name = 'onceward'";
    assert_eq!(server.sql(encrypted), "t");

    let another_name = refused("127.0.0.1", &by_name);
    assert!(another_name.contains("certificate"), "{another_name}");
    let stranger = refused("localhost", &format!("sslmode=verify-full&sslrootcert={}", file("other.pem")));
    assert!(stranger.contains("certificate"), "{stranger}");
    let unknown = refused("localhost", "sslmode=verify-full");
    assert!(unknown.contains("certificate") || unknown.contains("trust"), "{unknown}");
    let missing = refused("localhost", "sslmode=require&sslrootcert=/nothing.pem");
    assert!(missing.contains("/nothing.pem"), "{missing}");
    // As with PostgreSQL's own client: encrypted, without checking the certificate.
    open("127.0.0.1", "sslmode=require").unwrap();
}

#[test]
fn a_server_without_tls_is_refused_if_tls_is_required() {
    let url = format!("{}&sslmode=require", Postgres::shared().fresh());
    let refused = PostgresStore::open(PostgresOptions::parse(&url).unwrap()).err().unwrap().to_string();
    assert!(refused.contains("TLS"), "{refused}");
}
