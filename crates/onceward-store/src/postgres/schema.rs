//! The tables: made once, under a lock, however many processes start at once.

use onceward::StoreError;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient};

use super::fault::explain;
use super::options::PostgresOptions;
use crate::{Missing, no_ledger};

/// The version of the tables that this build writes.
pub const SCHEMA_VERSION: i64 = 1;

/// What takes a ledger from each version to the next.
const MIGRATIONS: [&str; SCHEMA_VERSION as usize] = [include_str!("schema.sql")];

/// One lock for all who make or change a ledger in this database: `once` in ASCII.
const SETUP_LOCK: i64 = 0x6f6e_6365;

/// How every function of the ledger is planned: by index whatever the statistics of a young table say, once, and
/// without compiling what takes microseconds.
const SETTINGS: &str = "SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off \
                        SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan";

/// How full pages are made, and how soon dead versions are cleared away.
const STORAGE: &str = "WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, \
                       autovacuum_vacuum_insert_scale_factor = 0.1)";

/// Whether a schema is there, or has our table. Asked of the catalogue itself: names that were looked up before are
/// remembered, and the lock below does not end that.
const SCHEMA: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)";
const META: &str =
    "SELECT EXISTS (SELECT FROM pg_catalog.pg_tables WHERE schemaname = $1 AND tablename = 'meta')";

/// Brings the ledger to this version, and makes it where there is none. Others who come at the same time wait.
pub(super) async fn prepare(client: &mut Client, options: &PostgresOptions) -> Result<(), StoreError> {
    if version(client, options).await? == Some(SCHEMA_VERSION) {
        return check_partitions(client, options).await;
    }
    if options.missing == Missing::Refuse && version(client, options).await?.is_none() {
        return Err(no_ledger(&format!("in the schema {:?}", options.schema)));
    }
    let transaction = client.transaction().await.map_err(explain)?;
    let lock = format!("SET LOCAL lock_timeout = '60s'; SELECT pg_advisory_xact_lock({SETUP_LOCK})");
    transaction.batch_execute(&lock).await.map_err(explain)?;
    let found = version(&transaction, options).await?;
    let schema = &options.schema;
    if found.is_none() {
        let there = exists(&transaction, SCHEMA, schema).await?;
        if !there {
            let create = format!("CREATE SCHEMA \"{schema}\"");
            transaction.batch_execute(&create).await.map_err(explain)?;
        }
    }
    for migration in MIGRATIONS.iter().skip(usize::try_from(found.unwrap_or(0)).unwrap_or(0)) {
        transaction.batch_execute(&fill_in(migration, options)).await.map_err(explain)?;
    }
    let partitions = options.partitions.unwrap_or(0);
    let note = match found {
        None => format!(
            "INSERT INTO \"{schema}\".meta VALUES ('schema', '{SCHEMA_VERSION}'), ('partitions', '{partitions}')"
        ),
        Some(_) => format!("UPDATE \"{schema}\".meta SET value = '{SCHEMA_VERSION}' WHERE name = 'schema'"),
    };
    transaction.batch_execute(&note).await.map_err(explain)?;
    transaction.commit().await.map_err(explain)?;
    check_partitions(client, options).await
}

/// The version of the ledger that is there; refuses a newer one.
async fn version(client: &impl GenericClient, options: &PostgresOptions) -> Result<Option<i64>, StoreError> {
    let schema = &options.schema;
    let found = exists(client, META, schema).await?;
    if !found {
        return Ok(None);
    }
    let text = note_of(client, schema, "schema").await?;
    match text.as_deref().map(str::parse) {
        Some(Ok(version)) if version <= SCHEMA_VERSION => Ok(Some(version)),
        Some(Ok(newer)) => Err(StoreError::Unusable {
            what: format!(
                "the schema {schema:?} was written by a newer version of Onceward (schema {newer}, this one knows \
                 {SCHEMA_VERSION}); use that version"
            ),
        }),
        Some(Err(_)) | None => Err(StoreError::Unusable {
            what: format!(
                "the schema {schema:?} is another program's; give the ledger one of its own (schema=NAME)"
            ),
        }),
    }
}

async fn check_partitions(client: &impl GenericClient, options: &PostgresOptions) -> Result<(), StoreError> {
    let Some(wanted) = options.partitions else { return Ok(()) };
    let found = note_of(client, &options.schema, "partitions").await?.unwrap_or_default();
    if found == wanted.to_string() {
        return Ok(());
    }
    let what = format!(
        "the ledger was made with {found} partitions, and the URL says {wanted}; leave partitions= away, or move \
         to a new schema"
    );
    Err(StoreError::Unusable { what })
}

async fn note_of(
    client: &impl GenericClient,
    schema: &str,
    name: &str,
) -> Result<Option<String>, StoreError> {
    let question = format!("SELECT value FROM \"{schema}\".meta WHERE name = $1");
    let rows = client.query_typed(&question, &[(&name, Type::TEXT)]).await.map_err(explain)?;
    rows.first().map(|row| row.try_get(0)).transpose().map_err(explain)
}

/// Whether keys are indexed: not in ledgers that an older build made.
pub(super) async fn has_key_index(client: &impl GenericClient, schema: &str) -> Result<bool, StoreError> {
    const INDEX: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_indexes WHERE schemaname = $1 AND indexname = \
                         'operation_key_idx')";
    exists(client, INDEX, schema).await
}

async fn exists(client: &impl GenericClient, question: &str, name: &str) -> Result<bool, StoreError> {
    let rows = client.query_typed(question, &[(&name, Type::TEXT)]).await.map_err(explain)?;
    rows.first().map_or(Ok(false), |row| row.try_get(0)).map_err(explain)
}

fn fill_in(migration: &str, options: &PostgresOptions) -> String {
    let schema = format!("\"{}\"", options.schema);
    let (shape, partitions) = match options.partitions {
        None => (STORAGE.to_owned(), String::new()),
        Some(count) => {
            let partition = |number| {
                format!(
                    "CREATE TABLE {schema}.operation_{number} PARTITION OF {schema}.operation \
                     FOR VALUES WITH (MODULUS {count}, REMAINDER {number}) {STORAGE};\n"
                )
            };
            ("PARTITION BY HASH (id)".to_owned(), (0..count).map(partition).collect())
        }
    };
    migration
        .replace("{shape}", &shape)
        .replace("{partitions}", &partitions)
        .replace("{settings}", SETTINGS)
        .replace("{channel}", &options.channel())
        .replace("{schema}", &schema)
}
