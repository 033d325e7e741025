//! The program: reads its environment, listens, serves, and shuts down on SIGTERM.

use shop_checkout::{Settings, serve};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_target(false)
        .init();
    let settings = Settings::from_environment()?;
    let http = TcpListener::bind(("0.0.0.0", settings.http_port)).await?;
    let grpc = TcpListener::bind(("0.0.0.0", settings.grpc_port)).await?;
    tracing::info!(
        http = settings.http_port,
        grpc = settings.grpc_port,
        "checkout is up"
    );

    let ending = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let guard = ending.clone().drop_guard();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        drop(guard);
    });
    serve(settings, http, grpc, ending).await
}
