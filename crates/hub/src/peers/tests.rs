use std::net::Ipv4Addr;

use authority::{Authority, PrivateKey, Profile, Usage};
use bytes::Bytes;
use http::header::UPGRADE;
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use jiff::{SignedDuration, Timestamp};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::sync::DropGuard;
use tunnel::AcceptorSettings;

use super::*;
use crate::body::full;
use crate::proxy::ProxySettings;
use crate::proxy::tests::setup::{ApiServer, CLUSTER, Setup, Tunnels, request, tunnel_to};

const VERSION_PATH: &str = "/clusters/prod/version";
const WATCH: &str = "/clusters/prod/api/v1/pods?watch=1";
const EXEC: &str = "/clusters/prod/api/v1/namespaces/shop/pods/web/exec";

/// One replica of a hub.
struct Replica {
    setup: Setup,
    peers: Peers,
    tunnels: Tunnels,
    connected: watch::Sender<Arc<Connected>>,
    draining: CancellationToken,
    stop: CancellationToken,
    _connecting: DropGuard,
}

impl Replica {
    /// Reports a tunnel to the cluster, or that there is none.
    fn report(&self, is_connected: bool) {
        let cluster = ConnectedCluster {
            number: 1,
            since: Timestamp::UNIX_EPOCH,
            agent_version: None,
            kubernetes_version: None,
            certificate_expires_at: Timestamp::UNIX_EPOCH,
        };
        let clusters = is_connected.then(|| (CLUSTER.to_owned(), cluster));
        self.connected
            .send_replace(Arc::new(clusters.into_iter().collect()));
    }

    /// Waits until the other replicas that have a tunnel to the cluster are these, the preferred one first.
    async fn sees(&self, expected: &[&str]) {
        while self.peers.0.table.lock().replicas(CLUSTER) != expected {
            tokio::task::yield_now().await;
        }
    }
}

/// Replicas with the names `0`, `1` and so on. The first one has a tunnel.
async fn replicas(number: usize) -> (Vec<Replica>, Arc<ApiServer>, Authority, Vec<SocketAddr>) {
    let now = Timestamp::now();
    let authority = Authority::generate("test", SignedDuration::from_hours(1), now).unwrap();
    let mut listeners = Vec::new();
    for _ in 0..number {
        listeners.push(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap());
    }
    let addresses: Vec<SocketAddr> = listeners
        .iter()
        .map(|listener| listener.local_addr().unwrap())
        .collect();
    let api_server = ApiServer::start().await;
    let mut replicas = Vec::new();
    for (index, listener) in listeners.into_iter().enumerate() {
        let (connected, draining) = (watch::Sender::default(), CancellationToken::new());
        let tls = PeerTls::issue(&authority, authority.certificate_pem(), now).unwrap();
        let peers = Peers::with_tls(
            index.to_string(),
            connected.subscribe(),
            tls,
            draining.clone(),
        );
        let (tunnels, stop, connecting) = (
            Tunnels::default(),
            CancellationToken::new(),
            CancellationToken::new(),
        );
        let local: Arc<dyn UpstreamSource> = Arc::new(tunnels.clone());
        tokio::spawn(
            peers
                .clone()
                .serve(listener, Arc::clone(&local), stop.clone()),
        );
        let connect = peers
            .clone()
            .connect(Discovery::Addresses(addresses.clone()));
        tokio::spawn(connecting.clone().run_until_cancelled_owned(connect));
        let upstreams = Arc::new(AllUpstreams::new(local, peers.clone()));
        let settings = ProxySettings::default();
        let setup = Setup::replica(
            settings,
            upstreams,
            tunnels.clone(),
            Arc::clone(&api_server),
            CancellationToken::new(),
        );
        replicas.push(Replica {
            setup: setup.await,
            peers,
            tunnels,
            connected,
            draining,
            stop,
            _connecting: connecting.drop_guard(),
        });
    }
    let session = tunnel_to(
        &api_server,
        AcceptorSettings::default(),
        &CancellationToken::new(),
    )
    .await;
    replicas[0].tunnels.insert(CLUSTER, session);
    replicas[0].report(true);
    for replica in &replicas[1..] {
        replica.sees(&["0"]).await;
    }
    (replicas, api_server, authority, addresses)
}

#[tokio::test]
async fn any_replica_serves_any_cluster() {
    let (replicas, api_server, ..) = replicas(3).await;
    for replica in &replicas {
        let (status, received) = replica.setup.get(VERSION_PATH).await;
        assert_eq!(
            (status, received["target"].as_str()),
            (200, Some("/version")),
            "{received}"
        );
        let headers = received["headers"].to_string();
        assert!(headers.contains("impersonate-user: anna"), "{headers}");
        assert!(!headers.contains("standin"), "{headers}");
        // The replica that the client has chosen writes the row, and no other one.
        assert_eq!(replica.setup.audited(1).await.status, 200);
        assert_eq!(
            replica.peers.tunnels(CLUSTER).len(),
            usize::from(replica.peers.0.replica != "0")
        );
    }
    let remote = &replicas[1];
    // A client that disconnects cancels its stream behind the other replica.
    let mut open = api_server.open.subscribe();
    let mut client = remote.setup.connect_http1().await;
    let watch = client
        .send_request(request("GET", WATCH).body(full(Bytes::new())).unwrap())
        .await
        .unwrap();
    open.wait_for(|open| *open == 1).await.unwrap();
    drop((watch, client));
    open.wait_for(|open| *open == 0).await.unwrap();
    // Upgrades
    let upgrade = request("POST", EXEC)
        .header("connection", "Upgrade")
        .header(UPGRADE, "SPDY/3.1");
    let mut client = remote.setup.connect_http1().await;
    let response = client
        .send_request(upgrade.body(full(Bytes::new())).unwrap())
        .await
        .unwrap();
    assert_eq!(response.status(), 101);
    let mut stream = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    stream.write_all(b"hello").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, b"hellobye");
}

#[tokio::test]
async fn a_request_has_one_hop_only() {
    let (replicas, ..) = replicas(2).await;
    // Each replica believes that the other one has the tunnel.
    replicas[0].tunnels.remove(CLUSTER);
    replicas[1].report(true);
    replicas[0].sees(&["1"]).await;
    for replica in &replicas {
        let (status, body) = replica.setup.get(VERSION_PATH).await;
        assert_eq!(
            (status, body["details"]["retryAfterSeconds"].as_u64()),
            (503, Some(1)),
            "{body}"
        );
    }
}

#[tokio::test]
async fn drains_and_revocations_are_seen_at_once() {
    let (replicas, ..) = replicas(3).await;
    replicas[1].report(true);
    replicas[2].sees(&["0", "1"]).await;
    replicas[0].draining.cancel();
    replicas[2].sees(&["1", "0"]).await;
    let (sender, mut revoked) = tokio::sync::mpsc::unbounded_channel();
    let end_tunnels = move |cluster: &str| sender.send(cluster.to_owned()).unwrap();
    tokio::spawn(replicas[1].peers.clone().on_revoked(end_tunnels));
    replicas[0].peers.notify_revoked(CLUSTER);
    assert_eq!(revoked.recv().await.unwrap(), CLUSTER);
    replicas[2].sees(&["1"]).await;
    replicas[1].report(false);
    replicas[2].sees(&[]).await;
}

#[tokio::test]
async fn a_replica_that_shuts_down_gets_no_more_requests_and_ends_those_it_has() {
    let (replicas, ..) = replicas(2).await;
    let mut client = replicas[1].setup.connect_http1().await;
    let watch = request("GET", WATCH).body(full(Bytes::new())).unwrap();
    let mut watch = client.send_request(watch).await.unwrap().into_body();
    replicas[0].stop.cancel();
    replicas[1].sees(&[]).await;
    assert_eq!(replicas[1].setup.get(VERSION_PATH).await.0, 503);
    // It ends as if the API server had ended it, and its client starts another one.
    assert!(watch.frame().await.is_none());
    assert_eq!(replicas[1].peers.number(), 0);
}

/// An agent has a certificate of the same authority.
#[tokio::test]
async fn an_agent_is_no_peer() {
    let (_replicas, _, authority, addresses) = replicas(1).await;
    let key = PrivateKey::generate().unwrap();
    let profile = Profile {
        common_name: CLUSTER.to_owned(),
        names: Vec::new(),
        usage: Usage::Client,
        lifetime: SignedDuration::from_hours(1),
    };
    let issued = authority.issue(&key, &profile, Timestamp::now()).unwrap();
    let certificate = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate(authority.certificate_pem())).unwrap();
    let config = || {
        ClientConfig::builder_with_provider(crate::tls::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots.clone())
    };
    let key = PrivateKeyDer::from_pem_slice(key.to_pem().as_bytes()).unwrap();
    let agent = config()
        .with_client_auth_cert(vec![certificate(&issued.certificate_pem)], key)
        .unwrap();
    for config in [agent, config().with_no_client_auth()] {
        let stream = TcpStream::connect(addresses[0]).await.unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let name = trust::server_name().unwrap();
        let Ok(mut stream) = connector.connect(name, stream).await else {
            continue;
        };
        let _ = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        let mut received = Vec::new();
        let _ = stream.read_to_end(&mut received).await;
        assert!(received.is_empty(), "{received:?}");
    }
}
