//! The server on real sockets: protocols, limits and its end.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use onceward::Policy;
use onceward_http::server::{Listener, Tls, UnixSocket, serve_all};
use onceward_http::{App, Config};
use onceward_testkit::Stepped;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::process::Command;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::common::{soon, until};

/// A server on a clock that the test steps. Its connections keep the machine's time.
struct Running {
    clock: Arc<Stepped>,
    address: std::net::SocketAddr,
    folder: tempfile::TempDir,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<()>,
}

impl Running {
    async fn start(policy: &str) -> Self {
        Self::start_with(policy, Duration::from_secs(30), |_| None, |_| None).await
    }

    async fn start_with(
        policy: &str,
        drain: Duration,
        tls: impl FnOnce(&std::path::Path) -> Option<Tls>,
        socket: impl FnOnce(&std::path::Path) -> Option<UnixSocket>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("once.db").display());
        let config = Config::from_policy(&Policy::parse(policy).unwrap()).unwrap();
        let clock = Stepped::new();
        let app = App::new(clock.on(onceward_store::open(&url).unwrap()), config).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut listeners = vec![Listener::tcp(listener, tls(folder.path()).as_ref()).unwrap()];
        listeners.extend(socket(folder.path()).map(Listener::unix));
        let (stop, stopped) = oneshot::channel();
        let served = tokio::spawn(serve_all(listeners, Arc::clone(&app), drain, async {
            drop(stopped.await);
        }));
        Self { clock, address, folder, stop: Some(stop), served }
    }

    fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// Sends bytes on a connection of its own, and reads until the server closes it.
    async fn raw(&self, bytes: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // It may also reset the connection.
        drop(soon(stream.read_to_end(&mut answer)).await);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn get(&self, path: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address)
    }
}

fn begin(host: std::net::SocketAddr, body: &str) -> String {
    let length = body.len();
    format!(
        "POST /v1/operations HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
}

async fn curl(args: &[&str]) -> (bool, String) {
    let output = Command::new("curl")
        .args(["-sS", "-m", "120"])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[tokio::test]
async fn both_versions_of_http_are_served() {
    let server = Running::start("").await;
    let url = format!("http://{}/v1/report", server.address);
    let (ok, text) = curl(&["--http1.1", "-w", "%{http_version}", &url]).await;
    assert!(ok && text.ends_with("}1.1"), "{text}");
    let (ok, text) = curl(&["--http2-prior-knowledge", "-w", "%{http_version}", &url]).await;
    assert!(ok && text.ends_with("}2"), "{text}");
}

#[tokio::test]
async fn tls_is_served_from_files() {
    let certificate = |folder: &std::path::Path| {
        let made = std::process::Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-days",
                "2",
            ])
            .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem"])
            .args(["-out", "cert.pem"])
            .current_dir(folder)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
        assert!(Tls::read(&key, &cert).is_err(), "the files are swapped");
        assert!(Tls::read(&folder.join("nope"), &key).is_err());
        Some(Tls::read(&cert, &key).unwrap())
    };
    let server = Running::start_with("", Duration::from_secs(30), certificate, |_| None).await;
    let url = format!("https://{}/v1/report", server.address);
    let authority = server.folder.path().join("cert.pem");
    let (ok, text) = curl(&["--cacert", authority.to_str().unwrap(), "-w", "%{http_version}", &url]).await;
    assert!(ok && text.ends_with("}2"), "{text}");
    let plain = server.raw(&server.get("/v1/report")).await;
    assert!(!plain.contains("200 OK"), "{plain}");
}

#[tokio::test]
async fn a_unix_socket_is_private_and_a_stale_one_is_replaced() {
    let bound = |folder: &std::path::Path| {
        let path = folder.join("once.sock");
        // A server that was killed leaves its file behind.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let socket = UnixSocket::bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let second = UnixSocket::bind(&path).err().unwrap();
        assert_eq!(second.kind(), std::io::ErrorKind::AddrInUse, "{second}");
        std::fs::write(folder.join("file"), "mine").unwrap();
        assert!(UnixSocket::bind(&folder.join("file")).is_err());
        assert_eq!(std::fs::read_to_string(folder.join("file")).unwrap(), "mine");
        let other = std::os::unix::net::UnixListener::bind(folder.join("other")).unwrap();
        assert!(UnixSocket::bind(&folder.join("other")).is_err(), "another program listens there");
        drop(other);
        Some(socket)
    };
    let mut server = Running::start_with("", Duration::from_secs(30), |_| None, bound).await;
    let path = server.folder.path().join("once.sock");
    let mut stream = UnixStream::connect(&path).await.unwrap();
    stream
        .write_all(b"GET /v1/report HTTP/1.1\r\nHost: anything\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    server.stop();
    (&mut server.served).await.unwrap();
    assert!(!path.exists(), "a server that ends removes its socket");
}

#[tokio::test]
async fn pages_from_elsewhere_are_refused() {
    let server = Running::start("").await;
    let port = server.address.port();
    for (headers, status) in [
        (format!("Host: 127.0.0.1:{port}"), 200),
        (format!("Host: localhost:{port}"), 200),
        (format!("Host: stripe.localhost:{port}"), 200),
        (format!("Host: localhost:{port}\r\nOrigin: http://localhost:5173"), 200),
        ("Host: evil.example".to_owned(), 403),
        (format!("Host: evil.example:{port}"), 403),
        (format!("Host: localhost:{port}\r\nOrigin: https://evil.example"), 403),
        (format!("Host: localhost:{port}\r\nOrigin: null"), 403),
    ] {
        let request = format!("GET /v1/report HTTP/1.1\r\n{headers}\r\nConnection: close\r\n\r\n");
        let answer = server.raw(&request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{headers}: {answer}");
    }
}

/// Requests that two parsers could read differently are refused, and never answered twice.
#[tokio::test]
async fn smuggled_requests_are_refused() {
    let server = Running::start("").await;
    let host = server.address;
    let inner = server.get("/v1/report");
    for head in [
        format!("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{inner}"),
        format!("Content-Length: 0\r\nContent-Length: {}\r\n\r\n{inner}", inner.len()),
        format!("Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{inner}"),
        format!("Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n{inner}"),
        format!("Content-Length: +0\r\n\r\n{inner}"),
        format!("Content-Length : 0\r\n\r\n{inner}"),
    ] {
        let request = format!("POST /v1/operations HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{head}");
        let answer = server.raw(&request).await;
        assert!(!answer.contains("\"settled\""), "the inner request was answered: {head:?}: {answer}");
        assert!(answer.matches("HTTP/1.1").count() <= 1, "{head:?}: {answer}");
        assert!(!answer.contains(" 200 ") && !answer.contains(" 201 "), "{head:?}: {answer}");
    }
}

#[tokio::test]
async fn silent_and_slow_clients_are_closed() {
    let server = Running::start("[serve]\nheader_timeout = \"300ms\"\nbody_timeout = \"300ms\"\n").await;
    for bytes in
        ["", "GET", "GET /v1/report HTTP/1.1\r\nHost: localhost\r\nX-", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
    {
        server.raw(bytes).await;
    }
    let head =
        format!("POST /v1/operations HTTP/1.1\r\nHost: {}\r\nContent-Length: 9999\r\n\r\n{{", server.address);
    let answer = server.raw(&head).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}

#[tokio::test]
async fn a_new_client_takes_the_place_of_the_longest_silent_one() {
    let server = Running::start("[serve]\nmax_connections = 4\n").await;
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    let answer = server.raw(&server.get("/v1/report")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let mut byte = [0];
    let closed = soon(silent[0].read(&mut byte)).await;
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
}

#[tokio::test]
async fn a_long_body_is_refused_without_being_read() {
    let server = Running::start("[serve]\nmax_body = 1000\n").await;
    let host = server.address;
    let head = format!(
        "POST /v1/operations HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 99999999999\r\n\r\n"
    );
    assert!(server.raw(&head).await.starts_with("HTTP/1.1 413"));
    let chunk = format!("3e9\r\n{}\r\n", " ".repeat(1001));
    let head = format!(
        "POST /v1/operations HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}0\r\n\r\n"
    );
    assert!(server.raw(&head).await.starts_with("HTTP/1.1 413"));
}

/// A request that is being answered when the server is asked to end is answered; new connections are not accepted.
#[tokio::test]
async fn a_server_that_ends_answers_what_it_has_begun() {
    let mut server = Running::start("").await;
    let begun = server.raw(&begin(server.address, r#"{"name":"pay","key":"1","lease_ms":3000}"#)).await;
    assert!(begun.starts_with("HTTP/1.1 201"), "{begun}");
    let id = begun.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let waiting = server.get(&format!("/v1/operations/{id}/wait?timeout=300"));
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(waiting.as_bytes()).await.unwrap();
    // An idle connection does not hold up the end.
    let _idle = TcpStream::connect(server.address).await.unwrap();
    until("the server answers the request", async || server.clock.sleepers(20) == 1).await;
    server.stop();
    server.clock.step(3_000);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("\"state\":\"in_doubt\""), "{answer}");
    soon(&mut server.served).await.unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn a_server_does_not_wait_longer_than_it_may() {
    let mut server = Running::start_with("", Duration::from_millis(300), |_| None, |_| None).await;
    let begun = server.raw(&begin(server.address, r#"{"name":"pay","key":"1"}"#)).await;
    let id = begun.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let waiting = server.get(&format!("/v1/operations/{id}/wait?timeout=300"));
    stream.write_all(waiting.as_bytes()).await.unwrap();
    until("the server answers the request", async || server.clock.sleepers(20) == 1).await;
    server.stop();
    soon(&mut server.served).await.unwrap();
}

/// A caller that disconnects before it is given its attempt has run nothing, so its retry may run.
#[tokio::test]
async fn an_attempt_that_was_never_given_is_not_a_doubt() {
    let server = Running::start("").await;
    let first = server.raw(&begin(server.address, r#"{"name":"pay","key":"1"}"#)).await;
    let (id, token) = (
        first.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap(),
        first.split("\"token\":\"").nth(1).unwrap().split('"').next().unwrap(),
    );
    // The second caller waits for the first, and disconnects.
    let mut second = TcpStream::connect(server.address).await.unwrap();
    second.write_all(begin(server.address, r#"{"name":"pay","key":"1"}"#).as_bytes()).await.unwrap();
    until("the second caller waits", async || server.clock.sleepers(20) == 1).await;
    drop(second);
    let body =
        format!("{{\"attempt\":1,\"token\":\"{token}\",\"reason\":\"declined\",\"evidence\":\"refused\"}}");
    let url = format!("http://{}/v1/operations/{id}", server.address);
    let (ok, failed) = curl(&["--json", &body, &format!("{url}/fail")]).await;
    assert!(ok && failed.contains("\"state\":\"failed\""), "{failed}");
    until("the attempt is withdrawn", async || {
        let (_, shown) = curl(&[&url]).await;
        shown.contains("disconnected before it was given") && shown.contains("\"state\":\"failed\"")
    })
    .await;
    let third = server.raw(&begin(server.address, r#"{"name":"pay","key":"1"}"#)).await;
    assert!(third.starts_with("HTTP/1.1 201") && third.contains("\"attempt\":3"), "{third}");
}
