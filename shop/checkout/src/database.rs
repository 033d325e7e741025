//! The orders in PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use serde::Serialize;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_postgres::{Client, Config, NoTls, Row};

use crate::error::Error;
use crate::proto::Identity;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const ORDERS_SHOWN: i64 = 20;

// Two replicas may start at once, and `IF NOT EXISTS` alone does not keep them apart.
const CREATE_TABLE: &str = "
    SET client_min_messages = warning;
    BEGIN;
    SELECT pg_advisory_xact_lock(8080);
    CREATE TABLE IF NOT EXISTS orders (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        item text NOT NULL,
        quantity bigint NOT NULL,
        total_cents bigint NOT NULL,
        currency text NOT NULL,
        cluster text NOT NULL,
        pod text NOT NULL,
        placed_at timestamptz NOT NULL DEFAULT now()
    );
    COMMIT";

const INSERT: &str = "
    INSERT INTO orders (item, quantity, total_cents, currency, cluster, pod)
    VALUES ($1, $2, $3, $4, $5, $6)
    RETURNING id, host(inet_server_addr()), current_database()::text";

const LATEST: &str = "
    SELECT id, item, quantity, total_cents, currency, cluster, pod
    FROM orders ORDER BY id DESC LIMIT $1";

pub(crate) struct Database {
    config: Config,
    address: String,
    client: Mutex<Option<Arc<Client>>>,
}

pub(crate) struct NewOrder<'a> {
    pub(crate) item: &'a str,
    pub(crate) quantity: u32,
    pub(crate) total_cents: i64,
    pub(crate) currency: &'a str,
    pub(crate) placed_by: &'a Identity,
}

/// The number an order got, and which database gave it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Stored {
    #[serde(skip)]
    pub(crate) id: i64,
    server: Option<String>,
    database: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct StoredOrder {
    id: i64,
    item: String,
    quantity: i64,
    total_cents: i64,
    currency: String,
    cluster: String,
    pod: String,
}

impl Database {
    pub(crate) fn new(url: &str) -> anyhow::Result<Self> {
        // The text may hold a password, so it is not repeated.
        let mut config: Config = url
            .parse()
            .context("DATABASE_URL is not a PostgreSQL URL")?;
        config.connect_timeout(CONNECT_TIMEOUT);
        Ok(Self {
            address: address(&config),
            config,
            client: Mutex::new(None),
        })
    }

    pub(crate) async fn insert(&self, order: NewOrder<'_>) -> Result<Stored, Error> {
        self.with_timeout(async |client| {
            let NewOrder { placed_by, .. } = order;
            let row = client
                .query_one(
                    INSERT,
                    &[
                        &order.item,
                        &i64::from(order.quantity),
                        &order.total_cents,
                        &order.currency,
                        &placed_by.cluster,
                        &placed_by.pod,
                    ],
                )
                .await?;
            Ok(Stored {
                id: row.try_get(0)?,
                server: row.try_get(1)?,
                database: row.try_get(2)?,
            })
        })
        .await
    }

    /// The latest orders, newest first.
    pub(crate) async fn latest(&self) -> Result<Vec<StoredOrder>, Error> {
        self.with_timeout(async |client| {
            let rows = client.query(LATEST, &[&ORDERS_SHOWN]).await?;
            rows.iter().map(stored_order).collect()
        })
        .await
    }

    /// Runs `work` with an open connection. After a failure the connection is dropped, unless PostgreSQL itself returned
    /// the error: a connection to a server that vanished does not look closed.
    async fn with_timeout<T>(
        &self,
        work: impl AsyncFnOnce(&Client) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, Error> {
        let done = timeout(REQUEST_TIMEOUT, async {
            work(&*self.connected().await?).await
        })
        .await;
        let source = match done {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) if error.as_db_error().is_some() => anyhow::Error::from(error),
            Ok(Err(error)) => {
                self.client.lock().await.take();
                anyhow::Error::from(error)
            }
            Err(_elapsed) => {
                self.client.lock().await.take();
                anyhow!("timed out after {REQUEST_TIMEOUT:?}")
            }
        };
        Err(Error::failed("database", &self.address, source))
    }

    async fn connected(&self) -> Result<Arc<Client>, tokio_postgres::Error> {
        let mut slot = self.client.lock().await;
        if let Some(client) = slot.as_ref().filter(|client| !client.is_closed()) {
            return Ok(client.clone());
        }
        let (client, connection) = self.config.connect(NoTls).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await.context("the database hung up") {
                tracing::warn!("{error:#}");
            }
        });
        client.batch_execute(CREATE_TABLE).await?;
        Ok(slot.insert(Arc::new(client)).clone())
    }
}

fn stored_order(row: &Row) -> Result<StoredOrder, tokio_postgres::Error> {
    Ok(StoredOrder {
        id: row.try_get(0)?,
        item: row.try_get(1)?,
        quantity: row.try_get(2)?,
        total_cents: row.try_get(3)?,
        currency: row.try_get(4)?,
        cluster: row.try_get(5)?,
        pod: row.try_get(6)?,
    })
}

fn address(config: &Config) -> String {
    let host = match config.get_hosts().first() {
        Some(tokio_postgres::config::Host::Tcp(host)) => host.clone(),
        Some(tokio_postgres::config::Host::Unix(path)) => path.display().to_string(),
        None => String::new(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    format!("{host}:{port}")
}
