//! The world of this tool: a SQLite database. Whatever changes it takes `&mut self`.

use std::path::PathBuf;

use clap::Args;
use onceward_clap::{Fault, World};
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, Transaction};
use serde::{Deserialize, Serialize};

use crate::trouble::Trouble;

const SCHEMA: &str = "
    CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, amount INTEGER, request TEXT UNIQUE);
    CREATE TABLE emails (id INTEGER PRIMARY KEY, recipient TEXT, subject TEXT);
    CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER);
    CREATE TABLE services (name TEXT PRIMARY KEY, version TEXT);
    CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT);
    INSERT INTO users (id, name) VALUES (1, 'ada'), (2, 'bob');
    PRAGMA user_version = 1;";

/// Which shop.
#[derive(Debug, Clone, Args)]
pub(crate) struct ShopOptions {
    /// The shop's database
    #[arg(long, env = "SHOP_DATABASE", default_value = "shop.db", value_name = "FILE")]
    database: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) id: i64,
    pub(crate) customer: String,
    pub(crate) amount: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) request: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Email {
    id: i64,
    to: String,
    subject: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Counter {
    pub(crate) key: String,
    value: i64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Service {
    pub(crate) service: String,
    pub(crate) current_version: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct User {
    pub(crate) id: i64,
    pub(crate) name: String,
}

/// The shop, open.
pub(crate) struct Shop {
    connection: Connection,
    trouble: Trouble,
}

impl World for Shop {
    type Options = ShopOptions;

    fn identity(options: &ShopOptions) -> String {
        onceward_clap::file_identity(&options.database)
    }

    fn open(options: &ShopOptions) -> Result<Self, Fault> {
        let trouble = Trouble::from_environment()?;
        trouble.on_open();
        let mut connection = Connection::open(&options.database)?;
        connection.busy_timeout(std::time::Duration::from_secs(30))?;
        let change = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        if change.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0))? == 0 {
            change.execute_batch(SCHEMA)?;
        }
        change.commit()?;
        Ok(Self { connection, trouble })
    }

    /// SQLite itself refuses every change. A shop that does not exist yet is an empty one in memory.
    fn open_read_only(options: &ShopOptions) -> Result<Self, Fault> {
        let trouble = Trouble::from_environment()?;
        trouble.on_open();
        let connection = if options.database.exists() {
            Connection::open_with_flags(&options.database, OpenFlags::SQLITE_OPEN_READ_ONLY)?
        } else {
            let empty = Connection::open_in_memory()?;
            empty.execute_batch(SCHEMA)?;
            empty.pragma_update(None, "query_only", true)?;
            empty
        };
        Ok(Self { connection, trouble })
    }
}

/// What can be seen.
impl Shop {
    pub(crate) fn order(&self, id: i64) -> Result<Option<Order>, Fault> {
        Ok(self.connection.query_row("SELECT * FROM orders WHERE id = ?1", [id], order).optional()?)
    }

    pub(crate) fn order_by_request(&self, request: &str) -> Result<Option<Order>, Fault> {
        Ok(self
            .connection
            .query_row("SELECT * FROM orders WHERE request = ?1", [request], order)
            .optional()?)
    }

    pub(crate) fn orders_of(&self, customer: &str) -> Result<i64, Fault> {
        let count = "SELECT count(*) FROM orders WHERE customer = ?1";
        Ok(self.connection.query_row(count, [customer], |row| row.get(0))?)
    }

    pub(crate) fn counter(&self, name: &str) -> Result<i64, Fault> {
        let value = "SELECT value FROM counters WHERE name = ?1";
        Ok(self.connection.query_row(value, [name], |row| row.get(0)).optional()?.unwrap_or(0))
    }

    pub(crate) fn version(&self, service: &str) -> Result<Option<String>, Fault> {
        let version = "SELECT version FROM services WHERE name = ?1";
        Ok(self.connection.query_row(version, [service], |row| row.get(0)).optional()?)
    }

    pub(crate) fn user(&self, id: i64) -> Result<Option<User>, Fault> {
        let user = |row: &Row<'_>| Ok(User { id: row.get(0)?, name: row.get(1)? });
        Ok(self.connection.query_row("SELECT * FROM users WHERE id = ?1", [id], user).optional()?)
    }
}

/// What can be changed.
impl Shop {
    pub(crate) fn create_order(
        &mut self,
        customer: &str,
        amount: i64,
        request: &str,
    ) -> Result<Order, Fault> {
        if self.trouble == Trouble::Third && self.orders_of(customer)? >= 2 {
            return Err(Fault::conflict(format!("{customer} has two orders, and that is enough")));
        }
        self.change(|change| {
            let insert = "INSERT INTO orders (customer, amount, request) VALUES (?1, ?2, ?3) RETURNING *";
            change.query_row(insert, (customer, amount, request), order)
        })
    }

    pub(crate) fn cancel_order(&mut self, order: &Order) -> Result<(), Fault> {
        self.change(|change| {
            let delete = "DELETE FROM orders WHERE id = ?1 AND request IS ?2";
            change.execute(delete, (order.id, &order.request)).map(drop)
        })
    }

    pub(crate) fn send_email(&mut self, to: &str, subject: &str) -> Result<Email, Fault> {
        self.change(|change| {
            change.execute("INSERT INTO emails (recipient, subject) VALUES (?1, ?2)", [to, subject])?;
            Ok(Email { id: change.last_insert_rowid(), to: to.to_owned(), subject: subject.to_owned() })
        })
    }

    pub(crate) fn increment(&mut self, name: &str) -> Result<Counter, Fault> {
        self.change(|change| {
            let add = "INSERT INTO counters (name, value) VALUES (?1, 1)
                       ON CONFLICT (name) DO UPDATE SET value = value + 1 RETURNING value";
            let value = change.query_row(add, [name], |row| row.get(0))?;
            Ok(Counter { key: name.to_owned(), value })
        })
    }

    pub(crate) fn decrement(&mut self, name: &str) -> Result<(), Fault> {
        self.change(|change| {
            change.execute("UPDATE counters SET value = value - 1 WHERE name = ?1", [name]).map(drop)
        })
    }

    pub(crate) fn deploy(&mut self, service: &Service) -> Result<(), Fault> {
        self.change(|change| {
            let replace = "INSERT OR REPLACE INTO services (name, version) VALUES (?1, ?2)";
            change.execute(replace, [&service.service, &service.current_version]).map(drop)
        })
    }

    pub(crate) fn delete_user(&mut self, user: &User) -> Result<(), Fault> {
        self.change(|change| {
            change.execute("DELETE FROM orders WHERE customer = ?1", [&user.name])?;
            change.execute("DELETE FROM users WHERE id = ?1", [user.id]).map(drop)
        })
    }

    /// One transaction. Until the commit an error is certain to leave nothing behind; the commit's own is not.
    fn change<T>(
        &mut self,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Fault> {
        self.trouble.before()?;
        let transaction = self.connection.transaction().map_err(Fault::no_effect)?;
        let value = change(&transaction).map_err(Fault::no_effect)?;
        transaction.commit()?;
        self.trouble.after()?;
        Ok(value)
    }
}

fn order(row: &Row<'_>) -> rusqlite::Result<Order> {
    Ok(Order { id: row.get(0)?, customer: row.get(1)?, amount: row.get(2)?, request: row.get(3)? })
}
