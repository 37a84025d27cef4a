//! Record and effect in one transaction: exactly one effect, whatever is interrupted and however many callers there
//! are.

use onceward::atomic::rolled_back;
use onceward::{Code, Done, Failure, Filter, Operation, Redaction, State, Store, Terms};
use onceward_store::seal::Keys;
use onceward_store::seal::new_key;

fn transfer(amount: u32) -> Operation {
    Operation::new("transfer").key("t1").input(serde_json::json!({"amount": amount}))
}

/// A transfer whose stored result must not hold a token.
fn redacted_transfer() -> Operation {
    let redact = Redaction::parse(&["re:sk_[a-z]+", "json:/token"]).unwrap();
    transfer(1).terms(Terms { redact, ..Terms::default() })
}

/// What an effect gives that returns secrets.
fn with_secrets() -> Done {
    onceward::atomic::dispatch().created(&serde_json::json!({"id": 1, "token": "hidden", "url": "?k=sk_abc"}))
}

/// The same as it is stored.
const REDACTED: &str = r#"{"id":1,"token":"[redacted]","url":"?k=[redacted]"}"#;

fn keys() -> Keys {
    Keys::parse(&new_key().unwrap()).unwrap()
}

mod sqlite {
    use super::{
        Code, Done, Failure, REDACTED, keys, redacted_transfer, rolled_back, transfer, with_secrets,
    };
    use onceward_store::sqlite::atomic::{AtomicBegun, AtomicLedger};
    use rusqlite::{Connection, Transaction, TransactionBehavior};

    struct Bank {
        folder: tempfile::TempDir,
    }

    impl Bank {
        fn new() -> Self {
            let bank = Self { folder: onceward_testkit::scratch() };
            let wal = "PRAGMA journal_mode = wal; CREATE TABLE transfer (amount INTEGER)";
            bank.connect().execute_batch(wal).unwrap();
            bank
        }

        fn connect(&self) -> Connection {
            let connection = Connection::open(self.folder.path().join("bank.db")).unwrap();
            connection.busy_timeout(std::time::Duration::from_secs(20)).unwrap();
            connection
        }

        fn transfers(&self) -> i64 {
            self.connect().query_row("SELECT count(*) FROM transfer", [], |row| row.get(0)).unwrap()
        }
    }

    fn insert(transaction: &Transaction<'_>) -> Result<Done, Failure> {
        transaction.execute("INSERT INTO transfer VALUES (1)", []).map_err(rolled_back)?;
        Ok(onceward::atomic::dispatch().created(&serde_json::json!({"id": 1})).body(*b"\0body"))
    }

    #[test]
    fn a_retry_is_replayed_and_other_inputs_are_refused() {
        let bank = Bank::new();
        let mut connection = bank.connect();
        let ledger = AtomicLedger::open(&connection).unwrap();
        let first = ledger.run(&mut connection, &transfer(1), |transaction, _| insert(transaction)).unwrap();
        let retry = ledger.run(&mut connection, &transfer(1), |_, _| panic!("it runs again")).unwrap();
        assert_eq!((first.replayed(), retry.replayed(), bank.transfers()), (false, true, 1));
        assert_eq!((retry.data(), retry.body()), (Some("{\"id\":1}"), Some(b"\0body".as_slice())));
        let reused = ledger.run(&mut connection, &transfer(2), |_, _| panic!("it runs")).unwrap_err();
        assert_eq!(reused.code(), Code::KeyReused);
    }

    #[test]
    fn a_result_is_sealed_and_without_the_key_nothing_runs() {
        let bank = Bank::new();
        let mut connection = bank.connect();
        let ledger = AtomicLedger::open(&connection).unwrap().with_keys(Some(keys()));
        ledger.run(&mut connection, &transfer(1), |transaction, _| insert(transaction)).unwrap();
        let stored =
            "SELECT record LIKE '%sealed:1:k_%' AND hex(body) LIKE hex('sealed:1:k_') || '%' FROM onceward";
        assert!(connection.query_row(stored, [], |row| row.get::<_, bool>(0)).unwrap());
        let retry = ledger.run(&mut connection, &transfer(1), |_, _| panic!("it runs again")).unwrap();
        assert_eq!((retry.data(), retry.body()), (Some("{\"id\":1}"), Some(b"\0body".as_slice())));
        for other in [None, Some(keys())] {
            let blind = ledger.clone().with_keys(other);
            let error = blind.run(&mut connection, &transfer(1), |_, _| panic!("it runs again")).unwrap_err();
            assert_eq!(error.code(), Code::ResultUnavailable);
        }
        assert_eq!(bank.transfers(), 1);
    }

    #[test]
    fn what_the_rules_find_is_not_stored() {
        let bank = Bank::new();
        let mut connection = bank.connect();
        let ledger = AtomicLedger::open(&connection).unwrap();
        ledger.run(&mut connection, &redacted_transfer(), |_, _| Ok(with_secrets())).unwrap();
        let stored = "SELECT record FROM onceward";
        let stored: String = connection.query_row(stored, [], |row| row.get(0)).unwrap();
        assert!(
            stored.contains("[redacted]") && !stored.contains("hidden") && !stored.contains("sk_abc"),
            "{stored}"
        );
        let retry =
            ledger.run(&mut connection, &redacted_transfer(), |_, _| panic!("it runs again")).unwrap();
        assert_eq!(retry.data(), Some(REDACTED));
    }

    #[test]
    fn an_interrupted_transaction_leaves_nothing() {
        let bank = Bank::new();
        let mut connection = bank.connect();
        let ledger = AtomicLedger::open(&connection).unwrap();
        let cut_off = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        assert!(matches!(ledger.begin(&cut_off, &transfer(1)).unwrap(), AtomicBegun::Execute(_)));
        insert(&cut_off).unwrap();
        drop(cut_off);
        assert_eq!(bank.transfers(), 0);
        let failed = ledger.run(&mut connection, &transfer(1), |transaction, _| {
            insert(transaction)?;
            Err(rolled_back("declined"))
        });
        assert_eq!((failed.unwrap_err().code(), bank.transfers()), (Code::Failed, 0));
        let receipt =
            ledger.run(&mut connection, &transfer(1), |transaction, _| insert(transaction)).unwrap();
        assert_eq!((receipt.record().attempt, bank.transfers()), (1, 1));
    }

    #[test]
    fn of_many_concurrent_callers_one_has_the_effect() {
        let bank = Bank::new();
        AtomicLedger::open(&bank.connect()).unwrap();
        let replayed: usize = std::thread::scope(|scope| {
            let callers: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        let mut connection = bank.connect();
                        let ledger = AtomicLedger::open(&connection).unwrap();
                        let run =
                            ledger.run(&mut connection, &transfer(1), |transaction, _| insert(transaction));
                        usize::from(run.unwrap().replayed())
                    })
                })
                .collect();
            callers.into_iter().map(|caller| caller.join().unwrap()).sum()
        });
        assert_eq!((replayed, bank.transfers()), (7, 1));
    }

    #[test]
    fn a_claim_is_valid_only_in_its_own_transaction() {
        let bank = Bank::new();
        let mut connection = bank.connect();
        let ledger = AtomicLedger::open(&connection).unwrap();
        let first = connection.transaction().unwrap();
        let AtomicBegun::Execute(claim) = ledger.begin(&first, &transfer(1)).unwrap() else {
            panic!("replayed")
        };
        drop(first);
        let second = connection.transaction().unwrap();
        let refused = ledger.finish(&second, claim, onceward::atomic::dispatch().created(&1)).unwrap_err();
        assert_eq!(refused.code(), Code::LedgerUnavailable);
    }

    #[test]
    fn results_and_tombstones_expire() {
        let bank = Bank::new();
        let mut connection = bank.connect();
        let ledger = AtomicLedger::open(&connection).unwrap();
        let terms = onceward::Terms { retention_ms: 1, tombstone_ms: 1, ..onceward::Terms::default() };
        let brief = transfer(1).terms(terms);
        ledger.run(&mut connection, &brief, |transaction, _| insert(transaction)).unwrap();
        for _ in 0..2 {
            onceward_testkit::eventually("the retention of a millisecond is over", || {
                let transaction = connection.transaction().unwrap();
                let swept = ledger.sweep(&transaction).unwrap();
                transaction.commit().unwrap();
                swept == 1
            });
        }
        let left: i64 = connection.query_row("SELECT count(*) FROM onceward", [], |row| row.get(0)).unwrap();
        assert_eq!(left, 0);
    }
}

mod postgres {
    use super::{
        Code, Done, Failure, Filter, REDACTED, State, Store, keys, redacted_transfer, rolled_back, transfer,
        with_secrets,
    };
    use onceward_store::postgres::atomic::{AtomicBegun, AtomicLedger};
    use onceward_store::postgres::{PostgresOptions, PostgresStore};
    use onceward_testkit::Postgres;
    use tokio_postgres::{Client, NoTls, Transaction};

    /// A database with a table of transfers, and the schema of a ledger in it.
    struct Bank {
        server: &'static Postgres,
        url: String,
        schema: String,
    }

    impl Bank {
        fn new() -> Self {
            let server = Postgres::shared();
            let url = server.fresh();
            let schema = url.split_once("schema=").unwrap().1.to_owned();
            drop(server.sql(&format!("create table transfer_{schema} (amount int)")));
            Self { server, url, schema }
        }

        async fn connect(&self) -> (Client, AtomicLedger) {
            let (mut client, connection) = tokio_postgres::connect(&self.server.url(), NoTls).await.unwrap();
            tokio::spawn(connection);
            let ledger = AtomicLedger::open(&mut client, &self.schema).await.unwrap();
            (client, ledger)
        }

        async fn insert(&self, transaction: &Transaction<'_>) -> Result<Done, Failure> {
            let insert = format!("insert into transfer_{} values (1)", self.schema);
            transaction.execute(&insert, &[]).await.map_err(rolled_back)?;
            Ok(onceward::atomic::dispatch().created(&serde_json::json!({"id": 1})).body(*b"\0body"))
        }

        fn transfers(&self) -> String {
            self.server.sql(&format!("select count(*) from transfer_{}", self.schema))
        }

        /// Waits until this many other transactions wait for a lock.
        fn await_waiting(&self, count: usize) {
            let waiting = "select count(distinct pid) from pg_locks where not granted";
            let count = count.to_string();
            onceward_testkit::eventually("the others wait", || self.server.sql(waiting) == count);
        }
    }

    fn on_a_runtime(work: impl AsyncFnOnce()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work());
    }

    #[test]
    fn a_retry_is_replayed_and_other_inputs_are_refused() {
        let bank = Bank::new();
        on_a_runtime(async || {
            let (mut client, ledger) = bank.connect().await;
            let insert = async |transaction: &Transaction<'_>, _: &_| bank.insert(transaction).await;
            let never = async |_: &Transaction<'_>, _: &_| panic!("it runs");
            let first = ledger.run(&mut client, &transfer(1), insert).await.unwrap();
            let retry = ledger.run(&mut client, &transfer(1), never).await.unwrap();
            assert_eq!((first.replayed(), retry.replayed()), (false, true));
            assert_eq!((retry.data(), retry.body()), (Some("{\"id\":1}"), Some(b"\0body".as_slice())));
            let reused = ledger.run(&mut client, &transfer(2), never).await.unwrap_err();
            assert_eq!(reused.code(), Code::KeyReused);
        });
        assert_eq!(bank.transfers(), "1");
    }

    #[test]
    fn a_result_is_sealed_and_without_the_key_nothing_runs() {
        let bank = Bank::new();
        on_a_runtime(async || {
            let (mut client, ledger) = bank.connect().await;
            let ledger = ledger.with_keys(Some(keys()));
            let insert = async |transaction: &Transaction<'_>, _: &_| bank.insert(transaction).await;
            let never = async |_: &Transaction<'_>, _: &_| panic!("it runs");
            ledger.run(&mut client, &transfer(1), insert).await.unwrap();
            let stored = format!("select outcome like '%\"sealed:1:k_%' from {}.operation", bank.schema);
            assert_eq!(bank.server.sql(&stored), "t");
            let retry = ledger.run(&mut client, &transfer(1), never).await.unwrap();
            assert_eq!((retry.data(), retry.body()), (Some("{\"id\":1}"), Some(b"\0body".as_slice())));
            let blind = ledger.with_keys(None);
            let error = blind.run(&mut client, &transfer(1), never).await.unwrap_err();
            assert_eq!(error.code(), Code::ResultUnavailable);
        });
        assert_eq!(bank.transfers(), "1");
    }

    #[test]
    fn what_the_rules_find_is_not_stored() {
        let bank = Bank::new();
        on_a_runtime(async || {
            let (mut client, ledger) = bank.connect().await;
            let act = async |_: &Transaction<'_>, _: &_| Ok(with_secrets());
            ledger.run(&mut client, &redacted_transfer(), act).await.unwrap();
            let never = async |_: &Transaction<'_>, _: &_| panic!("it runs again");
            let retry = ledger.run(&mut client, &redacted_transfer(), never).await.unwrap();
            assert_eq!(retry.data(), Some(REDACTED));
        });
        let stored = format!(
            "select outcome like '%hidden%' or outcome like '%sk_abc%' from {}.operation",
            bank.schema
        );
        assert_eq!(bank.server.sql(&stored), "f");
    }

    #[test]
    fn an_interrupted_transaction_leaves_nothing() {
        let bank = Bank::new();
        on_a_runtime(async || {
            let (mut unlucky, ledger) = bank.connect().await;
            let cut_off = unlucky.transaction().await.unwrap();
            let begun = ledger.begin(&cut_off, &transfer(1)).await.unwrap();
            assert!(matches!(begun, AtomicBegun::Execute(_)));
            bank.insert(&cut_off).await.unwrap();
            // The server ends the connection in the middle of the transaction.
            let pid: i32 = cut_off.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
            drop(bank.server.sql(&format!("select pg_terminate_backend({pid})")));
            drop(cut_off);
            let (mut client, ledger) = bank.connect().await;
            let declined = async |transaction: &Transaction<'_>, _: &_| {
                bank.insert(transaction).await?;
                Err(rolled_back("declined"))
            };
            let failed = ledger.run(&mut client, &transfer(1), declined).await.unwrap_err();
            assert_eq!((failed.code(), bank.transfers().as_str()), (Code::Failed, "0"));
            let insert = async |transaction: &Transaction<'_>, _: &_| bank.insert(transaction).await;
            let receipt = ledger.run(&mut client, &transfer(1), insert).await.unwrap();
            assert_eq!((receipt.replayed(), receipt.record().attempt), (false, 1));
        });
        assert_eq!(bank.transfers(), "1");
    }

    #[test]
    fn of_many_concurrent_callers_one_has_the_effect_and_the_others_wait() {
        let bank = Bank::new();
        let replayed: usize = std::thread::scope(|scope| {
            let callers: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        let mut replayed = false;
                        on_a_runtime(async || {
                            let (mut client, ledger) = bank.connect().await;
                            let insert = async |transaction: &Transaction<'_>, _: &_| {
                                let done = bank.insert(transaction).await;
                                // The others wait for this transaction.
                                bank.await_waiting(7);
                                done
                            };
                            replayed =
                                ledger.run(&mut client, &transfer(1), insert).await.unwrap().replayed();
                        });
                        usize::from(replayed)
                    })
                })
                .collect();
            callers.into_iter().map(|caller| caller.join().unwrap()).sum()
        });
        assert_eq!((replayed, bank.transfers().as_str()), (7, "1"));
    }

    #[test]
    fn the_store_lists_and_replays_atomic_operations() {
        let bank = Bank::new();
        on_a_runtime(async || {
            let (mut client, ledger) = bank.connect().await;
            let insert = async |transaction: &Transaction<'_>, _: &_| bank.insert(transaction).await;
            ledger.run(&mut client, &transfer(1), insert).await.unwrap();
        });
        let store = PostgresStore::open(PostgresOptions::parse(&bank.url).unwrap()).unwrap();
        let listed = pollster::block_on(store.list(&Filter { limit: 9, ..Filter::default() })).unwrap();
        assert_eq!(listed.first().map(|listed| listed.record.state), Some(State::Done));
        let plain = onceward::Ledger::new(store).blocking();
        assert!(plain.run(transfer(1), |_| panic!("it runs again")).unwrap().replayed());
    }

    #[test]
    fn a_claim_is_valid_only_in_its_own_transaction() {
        let bank = Bank::new();
        on_a_runtime(async || {
            let (mut client, ledger) = bank.connect().await;
            let first = client.transaction().await.unwrap();
            let AtomicBegun::Execute(claim) = ledger.begin(&first, &transfer(1)).await.unwrap() else {
                panic!("replayed")
            };
            first.rollback().await.unwrap();
            let second = client.transaction().await.unwrap();
            let refused =
                ledger.finish(&second, claim, onceward::atomic::dispatch().created(&1)).await.unwrap_err();
            assert_eq!(refused.code(), Code::LedgerUnavailable);
        });
    }
}
