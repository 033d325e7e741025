//! A plain relay: each incoming connection is forwarded on one upstream connection, byte for byte.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use link::Dial as _;
use link::tls::rustls::pki_types::ServerName;
use link::tls::{Fingerprint, Identity, TlsDialer, Trust};
use link::{Pipe, TcpDialer};
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The size of the copy buffers.
const BUFFER: usize = 256 * 1024;

#[derive(Debug, Args)]
pub(crate) struct RelayArguments {
    #[arg(long)]
    listen: SocketAddr,
    #[arg(long)]
    to: SocketAddr,
    /// Accept TLS; the certificate's SHA-256 is printed
    #[arg(long)]
    tls: bool,
    /// Connect with TLS to an upstream that has this certificate
    #[arg(long)]
    certificate: Option<Fingerprint>,
    /// Reset all connections at this interval, in milliseconds
    #[arg(long)]
    cut_every: Option<u64>,
}

pub(crate) fn run(arguments: RelayArguments) -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let cut = Arc::new(AtomicU64::new(0));
    let result = runtime.block_on(async {
        // Until the parent process closes our standard input.
        let ended = tokio::task::spawn_blocking(|| io::copy(&mut io::stdin(), &mut io::sink()));
        tokio::select! {
            result = serve(arguments, &cut) => result,
            _ = ended => Ok(()),
        }
    });
    println!("{} cut", cut.load(Ordering::Relaxed));
    // A task that still reads standard input is not awaited.
    runtime.shutdown_background();
    result
}

async fn serve(arguments: RelayArguments, count: &Arc<AtomicU64>) -> Result<()> {
    let listener = TcpListener::bind(arguments.listen)
        .await
        .with_context(|| format!("cannot listen on {}", arguments.listen))?;
    let tls = arguments.tls.then(certificate).transpose()?;
    match &tls {
        None => println!("listening"),
        Some((_, certificate)) => println!("listening with certificate {certificate}"),
    }
    let tcp = TcpDialer::new(arguments.to);
    let tls_dialer = arguments.certificate.map(|certificate| {
        let name = ServerName::try_from("relay")?;
        anyhow::Ok(TlsDialer::new(
            tcp.clone(),
            name,
            Trust::Pinned(certificate),
        )?)
    });
    let tls_dialer = tls_dialer.transpose()?;
    let cuts = cuts(arguments.cut_every);
    loop {
        let (downstream, _) = listener.accept().await?;
        downstream.set_nodelay(true)?;
        let (tcp, tls_dialer, cut) = (tcp.clone(), tls_dialer.clone(), cuts.subscribe());
        let count = Arc::clone(count);
        let acceptor = tls.as_ref().map(|(acceptor, _)| acceptor.clone());
        tokio::spawn(async move {
            match (acceptor, tls_dialer) {
                (Some(acceptor), _) => {
                    let downstream = acceptor.accept(downstream).await?;
                    forward(downstream, tcp.dial().await?, cut).await
                }
                (None, Some(dialer)) => forward(downstream, dialer.dial().await?, cut).await,
                (None, None) => forward_or_reset(downstream, tcp.dial().await?, cut, &count).await,
            }
        });
    }
}

async fn forward(
    mut downstream: impl Pipe,
    mut upstream: impl Pipe,
    mut cut: watch::Receiver<()>,
) -> io::Result<()> {
    let copy = copy_bidirectional_with_sizes(&mut downstream, &mut upstream, BUFFER, BUFFER);
    until_cut(copy, &mut cut).await.map(drop)
}

/// A cut is a reset, so that neither side sees an orderly shutdown.
async fn forward_or_reset(
    mut downstream: TcpStream,
    mut upstream: TcpStream,
    mut cut: watch::Receiver<()>,
    count: &AtomicU64,
) -> io::Result<()> {
    let copy = copy_bidirectional_with_sizes(&mut downstream, &mut upstream, BUFFER, BUFFER);
    if until_cut(copy, &mut cut).await?.is_none() {
        count.fetch_add(1, Ordering::Relaxed);
        downstream.set_zero_linger()?;
        upstream.set_zero_linger()?;
    }
    Ok(())
}

async fn until_cut<T>(
    work: impl Future<Output = io::Result<T>>,
    cut: &mut watch::Receiver<()>,
) -> io::Result<Option<T>> {
    tokio::select! {
        done = work => done.map(Some),
        Ok(()) = cut.changed() => Ok(None),
    }
}

/// From the timer to every connection.
fn cuts(every: Option<u64>) -> watch::Sender<()> {
    let cuts = watch::Sender::new(());
    if let Some(every) = every {
        let cuts = cuts.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(every)).await;
                cuts.send_replace(());
            }
        });
    }
    cuts
}

fn certificate() -> Result<(link::tls::TlsAcceptor, Fingerprint)> {
    let identity = Identity::generate()?;
    let acceptor = link::tls::acceptor(&identity)?;
    Ok((acceptor, identity.fingerprint()))
}
