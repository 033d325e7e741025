//! Tests of the node agent over real connections, with real target processes.

use std::net::Ipv4Addr;

use api::node::ServeRequest;
use link::tls::rustls::pki_types::ServerName;
use link::tls::{FirstSeen, TlsDialer, Trust};
use link::{Dial as _, Link, Settings, TcpDialer};
use tokio::io::AsyncReadExt as _;

use super::*;

struct Node {
    address: SocketAddr,
    operator: Identity,
    certificate: Fingerprint,
}

impl Node {
    async fn start() -> Self {
        let (node, operator) = (Identity::generate().unwrap(), Identity::generate().unwrap());
        let acceptor = acceptor_for_clients(&node, &[operator.fingerprint()]).unwrap();
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        let listener = OperatorListener::bind(listen, acceptor).await.unwrap();
        let address = listener.address().unwrap();
        tokio::spawn(async move {
            let served = ServedTargets::at(address.ip(), Memory::default());
            serve(&listener, &served).await;
        });
        Self {
            address,
            operator,
            certificate: node.fingerprint(),
        }
    }

    async fn request_as(&self, identity: &Identity, request: &NodeRequest) -> Result<NodeResponse> {
        let name = ServerName::try_from("node-agent")?;
        let trust = Trust::Pinned(self.certificate);
        let dialer = TlsDialer::with_identity(TcpDialer::new(self.address), name, trust, identity)?;
        let mut pipe = dialer.dial().await?;
        pipe.write_all(&encode_message(request)?).await?;
        let mut response = vec![0; usize::try_from(pipe.read_u32().await?)?];
        pipe.read_exact(&mut response).await?;
        Ok(serde_json::from_slice(&response)?)
    }

    async fn request(&self, request: &NodeRequest) -> NodeResponse {
        self.request_as(&self.operator, request).await.unwrap()
    }
}

fn list_all() -> NodeRequest {
    NodeRequest::List {
        prefix: String::new(),
    }
}

#[tokio::test]
async fn unauthenticated_peers_are_rejected() {
    let node = Node::start().await;
    let other_identity = Identity::generate().unwrap();
    assert!(node.request_as(&other_identity, &list_all()).await.is_err());
    assert_eq!(node.request(&list_all()).await, NodeResponse::default());
}

#[tokio::test]
async fn a_failed_request_returns_the_reason() {
    let node = Node::start().await;
    let serve = ServeRequest {
        name: "a-1".to_owned(),
        container: "missing-container".to_owned(),
        client_certificate: Identity::generate().unwrap().fingerprint().to_string(),
        ..ServeRequest::default()
    };
    let response = node.request(&NodeRequest::Serve(serve.clone())).await;
    let error = response.error.unwrap();
    assert!(error.contains("missing-container"), "{error}");
    // A rule that only a newer agent knows must not be ignored.
    let serve = ServeRequest {
        grant: Some(serde_json::json!({"noSinging": true})),
        ..serve
    };
    let response = node.request(&NodeRequest::Serve(serve)).await;
    let error = response.error.unwrap();
    assert!(error.contains("noSinging"), "{error}");
    assert_eq!(node.request(&list_all()).await.served, []);
}

/// A process in a control group with a container's id as its name looks like a container.
#[tokio::test]
#[ignore = "needs root"]
async fn a_container_is_served_only_to_its_client_until_the_operator_ends_it() {
    let id = "0123456789abcdef0123456789abcdef";
    let group = Group::make(id);
    let target = std::process::Command::new("sleep")
        .arg("600")
        .spawn()
        .unwrap();
    let target = KillOnDrop(target);
    group.add(target.0.id());
    let node = Node::start().await;
    let client = Identity::generate().unwrap();
    let serve = ServeRequest {
        name: "a-1".to_owned(),
        pod: "uid".to_owned(),
        container: id.to_owned(),
        client_certificate: client.fingerprint().to_string(),
        resume_window_secs: 60,
        connect_timeout_secs: 60,
        port: 21_000,
        grant: None,
    };
    let request = NodeRequest::Serve(serve);
    let response = node.request(&request).await;
    let [served] = response.served.as_slice() else {
        panic!("{response:?}");
    };
    // A repeated request returns the same target.
    assert_eq!(
        node.request(&request).await.served,
        std::slice::from_ref(served)
    );
    assert_eq!(
        node.request(&list_all()).await.served,
        std::slice::from_ref(served)
    );

    let link = |identity: &Identity, trust: Trust| {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, served.port));
        let name = ServerName::try_from("agent").unwrap();
        let dialer =
            TlsDialer::with_identity(TcpDialer::new(address), name, trust, identity).unwrap();
        let mut settings = Settings::default();
        settings.redial.first_connection_timeout = Duration::from_secs(1);
        Link::connect(dialer, settings)
    };
    let pinned = Trust::Pinned(served.certificate.parse().unwrap());
    let other_identity = Identity::generate().unwrap();
    let first_seen = Trust::FirstSeen(FirstSeen::default());
    assert!(link(&other_identity, first_seen).await.is_err());
    let linked = link(&client, pinned.clone()).await.unwrap();

    let name = served.name.clone();
    node.request(&NodeRequest::End { name }).await;
    let mut status = linked.status();
    let ended = status.wait_for(|status| matches!(status, link::Status::Failed(_)));
    let ended = format!("{:?}", *ended.await.unwrap());
    assert!(ended.contains("the operator ended it"), "{ended}");
    let served = &node.request(&list_all()).await.served[0];
    assert_eq!(
        served.ended.as_ref().unwrap().reason,
        "the operator ended it"
    );
    assert!(link(&client, pinned).await.is_err());
}

/// A control group with a container's id as its name. It is removed on drop.
struct Group(PathBuf);

impl Group {
    fn make(id: &str) -> Self {
        // With cgroup v1, each controller has its own hierarchy.
        let trees = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(Path::new);
        let mut trees = trees.into_iter();
        let tree = trees.find(|tree| tree.join("cgroup.procs").exists());
        let path = tree.unwrap().join(format!("standin-test-{id}"));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn add(&self, process: u32) {
        std::fs::write(self.0.join("cgroup.procs"), process.to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A group can be removed a moment after its last process has ended.
        for _ in 0..1000 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

struct KillOnDrop(std::process::Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
