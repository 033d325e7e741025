//! The addresses of the other replicas: those of a headless Service, or a list.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use error_chain::error_chain;
use tokio::net::lookup_host;
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Addresses, Peers, connection};

/// The cluster's DNS servers keep a response for some seconds anyway.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// How replicas are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Discovery {
    /// The DNS name of a headless Service, which also has the addresses of replicas that are not ready.
    Service {
        host: String,
        port: u16,
    },
    Addresses(Vec<SocketAddr>),
}

impl Discovery {
    async fn find(&self) -> std::io::Result<Addresses> {
        match self {
            Self::Service { host, port } => {
                Ok(lookup_host((host.as_str(), *port)).await?.collect())
            }
            Self::Addresses(addresses) => Ok(addresses.iter().copied().collect()),
        }
    }
}

/// Connects to each address for as long as it is found.
pub(super) async fn run(peers: Peers, discovery: Discovery) {
    let mut connecting: HashMap<SocketAddr, DropGuard> = HashMap::new();
    loop {
        match discovery.find().await {
            Ok(found) => {
                connecting.retain(|address, _| found.contains(address));
                for address in found {
                    connecting.entry(address).or_insert_with(|| {
                        let stop = CancellationToken::new();
                        let run = connection::run(peers.clone(), address);
                        tokio::spawn(stop.clone().run_until_cancelled_owned(run));
                        stop.drop_guard()
                    });
                }
            }
            // A failed lookup changes nothing. It also fails while no replica has an address.
            Err(error) => {
                let error = error_chain(&error);
                tracing::debug!(error, "lookup of other replicas failed");
            }
        }
        sleep(POLL_INTERVAL).await;
    }
}
