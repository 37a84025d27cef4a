//! The store on a ledger's server: beside processes that have the file open, while the server dies and comes back, and
//! with servers that refuse.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use crate::served::{Files, Over, Served, open};
use crate::watch::patient;
use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use onceward::{
    Begun, Blocking, Class, Code, Ending, Error, Ledger, Operation, Outcome, ProbeAnswer, State, Store, Terms,
};
use onceward_store::sqlite::{SqliteOptions, SqliteStore};
use onceward_store::{Backend, HttpOptions, HttpStore, IfMissing, Overwrite, StoreUrl, Verdict};
use onceward_testkit::{Relay, eventually};

fn pay() -> Operation {
    Operation::new("pay").key("order-7")
}

/// The operation with a short lease.
fn pay_soon(lease_ms: u64) -> Operation {
    pay().terms(Terms { lease_ms, wait_ms: 10_000, ..Terms::default() })
}

/// The file itself, and the same ledger through its server.
fn both(files: &Files, over: Over) -> (SqliteOptions, Ledger, Ledger) {
    let options = files.fresh();
    let url = files.serve(SqliteStore::open(options.clone()).unwrap(), over);
    let local = Ledger::new(SqliteStore::open(options.clone()).unwrap());
    (options, local, Ledger::new(open(&patient(&url))))
}

/// Begins an attempt and leaves it running.
fn begin(ledger: &Ledger, operation: Operation) -> onceward::Claim {
    let begun = ledger.blocking().wait_for(ledger.begin(&ledger.intent(operation).unwrap()));
    match begun.unwrap() {
        Begun::Execute(claim) => claim,
        Begun::Replay(_) => panic!("it is done already"),
    }
}

fn done() -> Ending {
    Ending::Done(Outcome::with_effect(onceward::Effect::Created))
}

fn state(ledger: &Ledger) -> State {
    let id = ledger.intent(pay()).unwrap().id;
    ledger.blocking().wait_for(ledger.find(&id)).unwrap().1
}

#[test]
fn callers_that_wait_together_get_their_own_answers() {
    const KEYS: usize = 100;
    let files = Files::default();
    for over in [Over::Unix, Over::Tcp] {
        let (_, local, remote) = both(&files, over);
        let effects: Vec<AtomicUsize> = (0..KEYS).map(|_| AtomicUsize::new(0)).collect();
        // Two callers for each key, all at once.
        let calls = (0..2 * KEYS).map(|call| {
            let key = call % KEYS;
            remote.run(Operation::new("pay").key(format!("order-{key}")), {
                let effects = &effects;
                move |attempt| {
                    effects[key].fetch_add(1, Ordering::Relaxed);
                    async move { Ok(attempt.dispatch()?.created(&key)) }
                }
            })
        });
        let receipts = remote.blocking().wait_for(futures_util::future::join_all(calls));
        for (call, receipt) in receipts.iter().enumerate() {
            assert_eq!(receipt.as_ref().unwrap().data(), Some((call % KEYS).to_string().as_str()));
        }
        assert!(effects.iter().all(|effects| effects.load(Ordering::Relaxed) == 1));
        let counts = local.blocking().wait_for(local.admin().counts()).unwrap();
        assert_eq!(counts.get(&State::Done), Some(&(KEYS as u64)));
    }
}

/// Runs the operation, which must not have an effect.
fn run_nothing(ledger: &Blocking, operation: Operation) -> Result<onceward::Receipt, Error> {
    ledger.run(operation, |_| panic!("it ran a second time"))
}

#[test]
fn a_process_with_the_file_open_waits_for_a_client_of_the_server_and_the_other_way_round() {
    let files = Files::default();
    for first_is_remote in [true, false] {
        let (_, local, remote) = both(&files, Over::Unix);
        let (first, second) = if first_is_remote { (&remote, &local) } else { (&local, &remote) };
        let effects = AtomicUsize::new(0);
        let (begun, has_begun) = mpsc::channel();
        let end = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                first.blocking().run(pay(), |attempt| {
                    begun.send(()).unwrap();
                    end.wait();
                    effects.fetch_add(1, Ordering::SeqCst);
                    Ok(attempt.dispatch()?.created(&1))
                })
            });
            has_begun.recv().unwrap();
            let waiting = scope.spawn(|| run_nothing(&second.blocking(), pay()));
            let impatient = pay().terms(Terms { wait_ms: 1, ..Terms::default() });
            let refused = run_nothing(&second.blocking(), impatient).unwrap_err();
            assert_eq!(refused.code(), Code::InProgress, "{refused}");
            end.wait();
            assert!(waiting.join().unwrap().unwrap().replayed(), "the second caller waits for the first");
        });
        assert_eq!(effects.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn the_death_of_a_process_with_the_file_open_is_noticed_at_once() {
    let files = Files::default();
    let (_, local, remote) = both(&files, Over::Unix);
    // The lease is longer than a caller waits, so only the lock can tell.
    let leased = || pay().terms(Terms { lease_ms: 3_600_000, ..Terms::default() });
    let claim = begin(&local, leased());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| run_nothing(&remote.blocking(), leased()).unwrap_err().code());
        assert_eq!(state(&remote), State::Running, "its lock is held");
        // The lock is free, as after the death of its process.
        drop(claim);
        assert_eq!(waiter.join().unwrap(), Code::InDoubt);
    });
}

#[test]
fn a_client_that_is_silent_for_longer_than_its_lease_is_in_doubt_and_takes_its_operation_back() {
    let files = Files::default();
    let (_, local, remote) = both(&files, Over::Tcp);
    let claim = begin(&remote, pay_soon(400));
    // Only the lease tells.
    eventually("its lease is over", || (state(&local), state(&remote)) == (State::InDoubt, State::InDoubt));
    let refused = run_nothing(&local.blocking(), pay()).unwrap_err();
    assert_eq!(refused.code(), Code::InDoubt, "{refused}");
    // It was only slow. Its lease is renewed, and nothing has been done about the doubt.
    let lease = remote.attempts().lease(&claim.attempt(), 10_000).unwrap();
    remote.blocking().wait_for(lease.renew());
    assert_eq!(state(&local), State::Running);
    remote.blocking().wait_for(claim.finish(done())).unwrap();
    assert!(run_nothing(&local.blocking(), pay()).unwrap().replayed());
}

#[test]
fn a_late_ending_of_a_client_settles_the_doubt() {
    let files = Files::default();
    let (_, local, remote) = both(&files, Over::Unix);
    let claim = begin(&remote, pay_soon(100));
    eventually("its lease is over", || state(&local) == State::InDoubt);
    assert_eq!(run_nothing(&local.blocking(), pay()).unwrap_err().code(), Code::InDoubt);
    remote.blocking().wait_for(claim.finish(done())).unwrap();
    assert!(run_nothing(&local.blocking(), pay()).unwrap().replayed());
}

#[test]
fn an_attempt_outlives_the_server() {
    let files = Files::default();
    let options = files.fresh();
    let folder = onceward_testkit::scratch();
    let socket = folder.path().join("once.sock");
    let first = Served::at(SqliteStore::open(options.clone()).unwrap(), &socket);
    let remote = Ledger::new(open(&first.url));
    let local = Ledger::new(SqliteStore::open(options.clone()).unwrap());
    let claim = begin(&remote, pay());
    // The server dies with everything that it has in memory.
    drop(first);
    assert_eq!(state(&local), State::Running, "no process with the file open takes the client for dead");
    std::thread::scope(|scope| {
        // What it meets instead closes its connection.
        std::fs::remove_file(&socket).unwrap();
        let other = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let ending = scope.spawn(|| remote.blocking().wait_for(claim.finish(done())));
        drop(other.accept().unwrap());
        drop(other);
        let _second = Served::at(SqliteStore::open(options.clone()).unwrap(), &socket);
        ending.join().unwrap().unwrap();
        assert!(run_nothing(&remote.blocking(), pay()).unwrap().replayed());
    });
    assert!(run_nothing(&local.blocking(), pay()).unwrap().replayed());
}

#[test]
fn a_lost_reply_is_no_conflict_and_no_second_effect() {
    let files = Files::default();
    let url = files.served(Over::Tcp);
    let port = url.rsplit_once(':').unwrap().1.parse().unwrap();
    let relay = Relay::to(port);
    let ledger = Ledger::new(open(&format!("http://127.0.0.1:{}", relay.port()))).blocking();
    for key in 0..30 {
        // Of the intent in one round, of the ending in the next.
        let lost_at = key % 2;
        if lost_at == 0 {
            relay.drop_replies_once();
        }
        let mut effects = 0;
        let operation = Operation::new("pay").key(key.to_string());
        let receipt = ledger.run(operation, |attempt| {
            effects += 1;
            if lost_at == 1 {
                relay.drop_replies_once();
            }
            Ok(attempt.dispatch()?.created(&key))
        });
        assert!(!receipt.unwrap().replayed(), "the caller's own write is not another caller's");
        assert_eq!(effects, 1, "of {key}");
    }
    assert_eq!(relay.replies_dropped(), 30);
}

#[test]
fn an_intent_whose_reply_came_too_late_is_not_executed() {
    let files = Files::default();
    let options = files.fresh();
    let server = Served::start(SqliteStore::open(options.clone()).unwrap(), Over::Tcp);
    let port = server.url.rsplit_once(':').unwrap().1.parse().unwrap();
    let relay = Relay::to(port);
    let remote = Ledger::new(open(&format!("http://127.0.0.1:{}?timeout=60s", relay.port()))).blocking();
    let local = Ledger::new(SqliteStore::open(options).unwrap());
    let probed = || {
        let terms = Terms { lease_ms: 100, wait_ms: 10_000, quarantine_ms: 0, ..Terms::default() };
        pay().with_probe().terms(Terms { class: Class::Probed, ..terms })
    };
    let effects = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        relay.drop_reply_and_stall();
        let caller = scope.spawn(|| {
            remote.run(probed(), |attempt| {
                effects.fetch_add(1, Ordering::SeqCst);
                Ok(attempt.dispatch()?.created(&"remote"))
            })
        });
        // The intent is written, its reply is lost, and the network stays silent for longer than the lease.
        eventually("the reply is lost", || relay.replies_dropped() > 0);
        let id = local.intent(probed()).unwrap().id;
        eventually("the lease is over", || {
            local.blocking().wait_for(local.find(&id)).unwrap().1 == State::InDoubt
        });
        let intent = local.intent(probed()).unwrap();
        let asked = local.blocking().wait_for(
            local.call(intent).probe(|_| std::future::ready(ProbeAnswer::No)).run(|attempt| {
                effects.fetch_add(1, Ordering::SeqCst);
                std::future::ready(attempt.dispatch().map(|sent| sent.created(&"local")))
            }),
        );
        assert!(asked.is_ok(), "{asked:?}");
        relay.mend();
        let receipt = caller.join().unwrap().unwrap();
        assert!(receipt.replayed(), "the other caller acted on the doubt");
    });
    assert_eq!(effects.load(Ordering::SeqCst), 1);
}

#[test]
fn an_intent_that_was_put_in_doubt_before_its_reply_is_withdrawn_and_begun_again() {
    let files = Files::default();
    let options = files.fresh();
    let server = Served::start(SqliteStore::open(options.clone()).unwrap(), Over::Tcp);
    let relay = Relay::to(server.url.rsplit_once(':').unwrap().1.parse().unwrap());
    let remote = Ledger::new(open(&format!("http://127.0.0.1:{}?timeout=10s", relay.port()))).blocking();
    let local = Ledger::new(SqliteStore::open(options).unwrap());
    std::thread::scope(|scope| {
        relay.drop_reply_and_stall();
        let caller = scope.spawn(|| {
            remote.run(pay_soon(100), |attempt| Ok(attempt.dispatch()?.created(&attempt.number())))
        });
        eventually("the reply is lost", || relay.replies_dropped() > 0);
        eventually("the lease is over", || state(&local) == State::InDoubt);
        assert_eq!(run_nothing(&local.blocking(), pay()).unwrap_err().code(), Code::InDoubt);
        relay.mend();
        let receipt = caller.join().unwrap().unwrap();
        assert_eq!((receipt.data(), receipt.replayed()), (Some("2"), false), "the first attempt ran nothing");
        let history = &receipt.record().detail.history;
        assert_eq!(history.iter().map(|past| past.ended).collect::<Vec<_>>(), [State::Failed]);
    });
}

#[test]
fn another_ledger_behind_the_same_address_is_noticed() {
    let files = Files::default();
    let folder = onceward_testkit::scratch();
    let socket = folder.path().join("once.sock");
    let first = Served::at(SqliteStore::open(files.fresh()).unwrap(), &socket);
    let ledger = Ledger::new(open(&first.url));
    ledger.blocking().run(pay(), |attempt| Ok(attempt.dispatch()?.created(&1))).unwrap();
    drop(first);
    let _second = Served::at(SqliteStore::open(files.fresh()).unwrap(), &socket);
    let refused = run_nothing(&ledger.blocking(), pay()).unwrap_err();
    assert_eq!(refused.code(), Code::LedgerReplaced, "{refused}");
    let read = ledger.blocking().wait_for(ledger.find(&ledger.intent(pay()).unwrap().id));
    assert_eq!(read.map(|_| ()).unwrap_err().code(), Code::LedgerReplaced);
}

#[test]
fn nothing_runs_while_the_server_is_gone() {
    let files = Files::default();
    let server = Served::start(SqliteStore::open(files.fresh()).unwrap(), Over::Unix);
    let ledger = Ledger::new(open(&format!("{}?timeout=10s", server.url))).blocking();
    drop(server);
    let refused = run_nothing(&ledger, pay()).unwrap_err();
    assert_eq!(refused.code(), Code::LedgerUnavailable);
    assert!(refused.to_string().contains("once serve"), "{refused}");
}

/// A server that gives every request the same answer.
fn answering(answer: impl Fn(&Request) -> Response + Clone + Send + Sync + 'static) -> Served {
    let routes = Router::new().fallback(move |request: Request| {
        let answer = answer.clone();
        async move { answer(&request) }
    });
    Served::of(routes, Over::Tcp)
}

fn refusal(url: &str) -> String {
    let opened = StoreUrl::parse(url).unwrap().open(IfMissing::Create);
    opened.map(|_| ()).unwrap_err().to_string()
}

#[test]
fn a_refusal_says_what_to_do() {
    let status = |status: StatusCode| answering(move |_| status.into_response());
    for (code, words) in [
        (StatusCode::UNAUTHORIZED, "ONCE_TOKEN"),
        (StatusCode::FORBIDDEN, "does not allow"),
        (StatusCode::NOT_FOUND, "another program"),
        (StatusCode::OK, "not a ledger's server"),
        (StatusCode::TOO_MANY_REQUESTS, "too many requests"),
        (StatusCode::SERVICE_UNAVAILABLE, "503"),
    ] {
        let server = status(code);
        let said = refusal(&format!("{}?timeout=10s", server.url));
        assert!(said.contains(words) && said.contains(&server.url), "{code}: {said}");
    }
    let newer = answering(|_| (StatusCode::BAD_REQUEST, [("once-store", "99")]).into_response());
    let said = refusal(&newer.url);
    assert!(said.contains("version 99") && said.contains("version 2"), "{said}");
    let gone = refusal("unix:/nothing/once.sock?timeout=50ms");
    assert!(gone.contains("/nothing/once.sock") && gone.contains("once serve"), "{gone}");
}

#[test]
fn a_token_is_sent_and_never_shown() {
    let (sent, seen) = mpsc::channel();
    let server = answering(move |request| {
        let token = request.headers().get("authorization").cloned();
        sent.send(token.map(|token| token.to_str().unwrap().to_owned())).unwrap();
        StatusCode::UNAUTHORIZED.into_response()
    });
    let folder = onceward_testkit::scratch();
    let file = folder.path().join("token");
    std::fs::write(&file, "S3CRET-2\n").unwrap();
    let place = server.url.strip_prefix("http://").unwrap();
    for (url, token) in [
        (format!("http://:S3CRET-1@{place}"), "Bearer S3CRET-1"),
        (format!("http://{place}?token_file={}", file.display()), "Bearer S3CRET-2"),
    ] {
        let said = refusal(&url);
        assert!(said.contains("does not accept the token") && !said.contains("S3CRET"), "{said}");
        assert_eq!(seen.recv().unwrap().as_deref(), Some(token));
        assert!(!format!("{:?}", HttpOptions::parse(&url).unwrap()).contains("S3CRET"));
    }
}

#[test]
fn a_server_refuses_another_version_and_a_request_for_no_ledger() {
    let files = Files::default();
    let url = files.served(Over::Tcp);
    let address = url.strip_prefix("http://").unwrap();
    let post = |headers: &str| {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let request = format!(
            "POST /v1/store/load HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: 0\r\n{headers}\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    };
    for (headers, words) in [
        ("", "once-store"),
        ("once-store: 99\r\n", "same version"),
        ("once-store: 2\r\n", "once-ledger"),
        ("once-store: 2\r\nonce-ledger: l_another 1\r\n", "replaced"),
    ] {
        let reply = post(headers);
        assert!(reply.contains("once-store: 2") && reply.contains("application/problem+json"), "{reply}");
        assert!(reply.contains(words), "{headers}: {reply}");
    }
}

#[test]
fn doctor_and_backup_say_where_the_ledger_is() {
    let files = Files::default();
    let store = open(&files.served(Over::Unix));
    let findings = store.health().unwrap();
    assert!(findings.iter().all(|finding| finding.verdict != Verdict::Bad), "{findings:?}");
    assert!(findings.iter().any(|finding| finding.found.contains(&store.identity().name)), "{findings:?}");
    let refused = store.backup(std::path::Path::new("/nothing"), Overwrite::No).unwrap_err().to_string();
    assert!(refused.contains("where the server"), "{refused}");
}

#[test]
fn long_listings_come_in_pages() {
    let files = Files::default();
    let (_, local, remote) = both(&files, Over::Unix);
    let blocking = local.blocking();
    for key in 0..1_203 {
        let operation = Operation::new("pay").key(key.to_string());
        drop(blocking.run(operation, |attempt| Ok(attempt.dispatch()?.created(&key))).unwrap());
    }
    let filter = |limit| onceward::Filter { limit, ..onceward::Filter::default() };
    let listed = |limit| remote.blocking().wait_for(remote.list(&filter(limit))).unwrap();
    let all = listed(5_000);
    assert_eq!(all.len(), 1_203);
    assert_eq!(all[0].0.record.key.text, "1202");
    assert_eq!(all[1_202].0.record.key.text, "0");
    assert_eq!((listed(7).len(), listed(1_001).len()), (7, 1_001));
}

#[test]
fn large_results_and_replay_counts_arrive() {
    let files = Files::default();
    let store = open(&files.served(Over::Unix));
    let ledger = Ledger::new(Arc::<HttpStore>::clone(&store)).blocking();
    let large = "x".repeat(15 * 1024 * 1024);
    ledger.run(pay(), |attempt| Ok(attempt.dispatch()?.created(&large))).unwrap();
    let receipt = run_nothing(&ledger, pay()).unwrap();
    assert_eq!(receipt.data().map(str::len), Some(large.len() + 2));
    let small = || Operation::new("pay").key("small");
    ledger.run(small(), |attempt| Ok(attempt.dispatch()?.created(&1))).unwrap();
    run_nothing(&ledger, small()).unwrap();
    let filter = onceward::Filter { limit: 1, ..onceward::Filter::default() };
    eventually("the count arrives", || {
        pollster::block_on(store.list(&filter)).unwrap()[0].record.replays > 0
    });
}

/// A listener that speaks TLS.
struct TlsListener {
    tcp: tokio::net::TcpListener,
    acceptor: tokio_rustls::TlsAcceptor,
}

impl axum::serve::Listener for TlsListener {
    type Io = tokio_rustls::server::TlsStream<tokio::net::TcpStream>;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = self.tcp.accept().await.unwrap();
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.tcp.local_addr()
    }
}

#[test]
fn a_server_is_checked_by_its_certificate_and_its_name() {
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use tokio_rustls::rustls::{ServerConfig, crypto::ring};
    let (folder, certificates) = (onceward_testkit::scratch(), crate::served::certificates());
    let file = |name: &str| certificates.join(name);
    let store = SqliteStore::open(SqliteOptions::new(folder.path().join("once.db"))).unwrap();
    let app = onceward_http::App::new(store, onceward_http::Config::default()).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let serve = |name: &str| {
        let pem = file(&format!("{name}.pem"));
        let chain = CertificateDer::pem_file_iter(pem).unwrap().map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_file(file(&format!("{name}.key"))).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let tcp = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let port = tcp.local_addr().unwrap().port();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let router = onceward_http::server::router(Arc::clone(&app));
        runtime.spawn(async move { axum::serve(TlsListener { tcp, acceptor }, router).await.unwrap() });
        port
    };
    let port = serve("server");
    let url = |host: &str, ca: &str| format!("https://{host}:{port}?timeout=10s&ca={}", file(ca).display());
    let ledger = Ledger::new(open(&url("localhost", "ca.pem"))).blocking();
    ledger.run(pay(), |attempt| Ok(attempt.dispatch()?.created(&1))).unwrap();
    assert!(run_nothing(&ledger, pay()).unwrap().replayed());
    for (host, ca) in [("localhost", "other.pem"), ("127.0.0.1", "ca.pem")] {
        let said = refusal(&url(host, ca));
        assert!(said.contains("certificate"), "{host}, {ca}: {said}");
    }
    // The certificate of an authority is not that of a server.
    let port = serve("other");
    let said = refusal(&format!("https://localhost:{port}?timeout=10s&ca={}", file("other.pem").display()));
    assert!(said.contains("(CA:TRUE)") && said.contains("CA:FALSE"), "{said}");
    assert!(!said.contains("is running"), "{said}");
    let missing = refusal(&format!("https://localhost:{port}?ca=/nothing.pem"));
    assert!(missing.contains("/nothing.pem"), "{missing}");
    runtime.shutdown_background();
}
