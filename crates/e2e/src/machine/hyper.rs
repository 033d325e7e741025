//! A server in Rust that replaces the target, like those of `fixtures/servers`.

use std::ffi::OsString;
use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::extract::ConnectInfo;
use tokio::net::TcpListener;

use super::role::Role;

/// The program and its arguments. The caller appends the port.
pub fn command() -> Result<Vec<OsString>> {
    let command = Role::Hyper.command()?;
    let arguments = command.get_args().map(ToOwned::to_owned);
    Ok([command.get_program().to_owned()]
        .into_iter()
        .chain(arguments)
        .collect())
}

pub(super) fn main(port: Option<String>) -> Result<()> {
    let port: u16 = port.context("the port is missing")?.parse()?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let router = Router::new().fallback(respond);
        let router = router.into_make_service_with_connect_info::<SocketAddr>();
        let listener = TcpListener::bind(("0.0.0.0", port)).await?;
        Ok(axum::serve(listener, router).await?)
    })
}

async fn respond(ConnectInfo(client): ConnectInfo<SocketAddr>) -> String {
    format!("rust-hyper serves {}\n", client.ip())
}
