//! Creating the tables. An advisory lock serializes processes that start at the same time.

use onceward::{Identity, RANDOM_BYTES, StoreError};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, GenericClient};

use super::fault::explain;
use super::options::PostgresOptions;

/// The schema version that this build writes.
pub const SCHEMA_VERSION: i64 = 4;

/// The tables and functions.
const TABLES: &str = include_str!("schema.sql");

/// The advisory lock for creating a ledger in this database: `once` in ASCII.
const SETUP_LOCK: i64 = 0x6f6e_6365;

/// The class of the advisory locks that a begin shares and a stop waits for: `stop` in ASCII.
pub(super) const STOP_LOCK: i32 = 0x7374_6f70;

/// The planner settings of every function: use indexes whatever the statistics of a new table say, plan once, and do
/// not use JIT for queries that take microseconds.
const SETTINGS: &str = "SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off \
                        SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan";

/// The fill factor of pages, and how soon dead row versions are vacuumed.
const STORAGE: &str = "WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, \
                       autovacuum_vacuum_insert_scale_factor = 0.1)";

/// Whether a schema exists, or has our table. Queries the catalogue directly: name look-ups are cached, and the lock
/// below does not invalidate them.
const SCHEMA: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)";
const META: &str =
    "SELECT EXISTS (SELECT FROM pg_catalog.pg_tables WHERE schemaname = $1 AND tablename = 'meta')";

const OPERATION: &str =
    "SELECT EXISTS (SELECT FROM pg_catalog.pg_tables WHERE schemaname = $1 AND tablename = 'operation')";

/// Creates the ledger if there is none, and refuses one that cannot be used. Concurrent callers wait.
pub(super) async fn prepare(client: &mut Client, options: &PostgresOptions) -> Result<(), StoreError> {
    let found = version(client, options).await?;
    if found.is_none() {
        options.refuse_missing()?;
    }
    if found.is_some() {
        refuse_owner(client, options).await?;
    }
    if found.is_none() {
        create(client, options).await?;
        refuse_owner(client, options).await?;
    }
    check_partitions(client, options).await
}

/// Creates the ledger in one transaction.
async fn create(client: &mut Client, options: &PostgresOptions) -> Result<(), StoreError> {
    let transaction = client.transaction().await.map_err(explain)?;
    let lock = format!("SET LOCAL lock_timeout = '60s'; SELECT pg_advisory_xact_lock({SETUP_LOCK})");
    transaction.batch_execute(&lock).await.map_err(explain)?;
    if version(&transaction, options).await?.is_some() {
        // Another process was faster.
        return Ok(());
    }
    let schema = &options.schema;
    let there = exists(&transaction, SCHEMA, schema).await?;
    if !there {
        let create = format!("CREATE SCHEMA \"{schema}\"");
        transaction.batch_execute(&create).await.map_err(explain)?;
    }
    transaction.batch_execute(&fill_in(TABLES, options)).await.map_err(explain)?;
    let partitions = options.partitions.unwrap_or(0).to_string();
    note(&transaction, schema, "partitions", &partitions).await?;
    note(&transaction, schema, "schema", &SCHEMA_VERSION.to_string()).await?;
    let mut random = [0; RANDOM_BYTES];
    getrandom::fill(&mut random).map_err(|error| StoreError::because("no random numbers", error))?;
    note_identity(&transaction, schema, &Identity::fresh(&random)).await?;
    transaction.commit().await.map_err(explain)
}

async fn note_identity(
    client: &impl GenericClient,
    schema: &str,
    identity: &Identity,
) -> Result<(), StoreError> {
    let text = serde_json::to_string(identity)
        .map_err(|error| StoreError::because("an identity cannot be written as JSON", error))?;
    note(client, schema, "identity", &text).await?;
    note(client, schema, "ledger", &identity.mark()).await?;
    note_birth(client, schema).await?;
    // Inserted now, so that later writers only need to update them.
    note(client, schema, "clock", "0 0 -").await?;
    note(client, schema, "server", "0 0").await
}

/// Writes a row of `meta`.
pub(super) async fn note(
    client: &impl GenericClient,
    schema: &str,
    name: &str,
    value: &str,
) -> Result<(), StoreError> {
    let values: [(&(dyn ToSql + Sync), Type); 2] = [(&name, Type::TEXT), (&value, Type::TEXT)];
    // An update does not need the INSERT privilege.
    let update = format!("UPDATE \"{schema}\".meta SET value = $2 WHERE name = $1 RETURNING name");
    if client.query_typed(&update, &values).await.map_err(explain)?.is_empty() {
        let insert = format!("INSERT INTO \"{schema}\".meta VALUES ($1, $2)");
        client.query_typed(&insert, &values).await.map_err(explain)?;
    }
    Ok(())
}

/// Records the table and the transaction in which the row `ledger` was written, which is the current one.
pub(super) async fn note_birth(client: &impl GenericClient, schema: &str) -> Result<(), StoreError> {
    let question = format!(
        "SELECT m.tableoid::text || ' ' || m.xmin::text FROM \"{schema}\".meta AS m WHERE m.name = 'ledger'"
    );
    let rows = client.query_typed(&question, &[]).await.map_err(explain)?;
    let birth: String =
        rows.first().map(|row| row.try_get(0)).transpose().map_err(explain)?.unwrap_or_default();
    note(client, schema, "birth", &birth).await
}

/// Refuses a ledger whose tables or functions belong to an untrusted role, whose code would run with this role's
/// privileges.
async fn refuse_owner(client: &impl GenericClient, options: &PostgresOptions) -> Result<(), StoreError> {
    const OWNERS: &str = "SELECT DISTINCT r.rolname::text FROM ( \
        SELECT n.nspowner AS owner FROM pg_catalog.pg_namespace n WHERE n.nspname = $1 \
        UNION SELECT c.relowner FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
          WHERE n.nspname = $1 \
        UNION SELECT p.proowner FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace \
          WHERE n.nspname = $1) AS o JOIN pg_catalog.pg_roles r ON r.oid = o.owner \
        WHERE NOT r.rolsuper AND r.rolname <> current_user AND r.rolname <> $2 \
          AND r.oid <> (SELECT d.datdba FROM pg_catalog.pg_database d WHERE d.datname = current_database())";
    let (schema, trusted) = (&options.schema, options.owner.as_deref().unwrap_or_default());
    let values: [(&(dyn ToSql + Sync), Type); 2] = [(schema, Type::TEXT), (&trusted, Type::TEXT)];
    let rows = client.query_typed(OWNERS, &values).await.map_err(explain)?;
    let Some(row) = rows.first() else { return Ok(()) };
    let owner: String = row.try_get(0).map_err(explain)?;
    Err(StoreError::Unusable {
        what: format!(
            "the ledger in the schema {schema:?} has parts that belong to the role {owner:?}, which is neither this \
             role, nor the database's owner, nor a superuser: its functions would run with this role's \
             privileges. Give \
             the schema and everything in it to one of these, or add owner={owner} to the URL to trust that role"
        ),
    })
}

/// The version of the existing ledger. Refuses another one.
async fn version(client: &impl GenericClient, options: &PostgresOptions) -> Result<Option<i64>, StoreError> {
    let schema = &options.schema;
    let found = exists(client, META, schema).await?;
    if !found {
        return Ok(None);
    }
    let text = note_of(client, schema, "schema").await?;
    match text.as_deref().map(str::parse) {
        Some(Ok(SCHEMA_VERSION)) => Ok(Some(SCHEMA_VERSION)),
        Some(Ok(version)) => Err(another_version(schema, version)),
        None if exists(client, OPERATION, schema).await? => {
            Err(StoreError::replaced("its table meta was emptied"))
        }
        Some(Err(_)) | None => Err(StoreError::Unusable {
            what: format!(
                "the schema {schema:?} belongs to another program; choose another one for the ledger (schema=NAME)"
            ),
        }),
    }
}

/// The error for a ledger of another version.
pub(super) fn another_version(schema: &str, version: i64) -> StoreError {
    StoreError::Unusable {
        what: format!(
            "the schema {schema:?} was written by another version of Onceward (schema {version}, this version has \
             {SCHEMA_VERSION}). Use that version; or take its records over: `once export` there, `once import` here \
             into a new ledger (schema=NAME)"
        ),
    }
}

async fn check_partitions(client: &impl GenericClient, options: &PostgresOptions) -> Result<(), StoreError> {
    let Some(wanted) = options.partitions else { return Ok(()) };
    let found = note_of(client, &options.schema, "partitions").await?.unwrap_or_default();
    if found == wanted.to_string() {
        return Ok(());
    }
    let what = format!(
        "the ledger was created with {found} partitions, but the URL says {wanted}; remove partitions=, or use \
         a new schema"
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

async fn exists(client: &impl GenericClient, question: &str, name: &str) -> Result<bool, StoreError> {
    let rows = client.query_typed(question, &[(&name, Type::TEXT)]).await.map_err(explain)?;
    rows.first().map_or(Ok(false), |row| row.try_get(0)).map_err(explain)
}

fn fill_in(tables: &str, options: &PostgresOptions) -> String {
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
    tables
        .replace("{shape}", &shape)
        .replace("{partitions}", &partitions)
        .replace("{settings}", SETTINGS)
        .replace("{stop_lock}", &STOP_LOCK.to_string())
        .replace("{channel}", &options.channel())
        .replace("{schema}", &schema)
}
