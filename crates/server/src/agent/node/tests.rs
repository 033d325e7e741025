//! The node's agent over real connections, beside real processes of this machine.

use std::net::Ipv4Addr;

use api::node::NodeOrder;
use link::tls::rustls::pki_types::ServerName;
use link::tls::{FirstSeen, TlsDialer, Trust};
use link::{Dial as _, Link, Settings, TcpDialer};

use super::*;

struct Node {
    address: SocketAddr,
    operator: Identity,
    known: Fingerprint,
}

impl Node {
    async fn start() -> Self {
        let (node, operator) = (Identity::generate().unwrap(), Identity::generate().unwrap());
        let acceptor = acceptor_for_clients(&node, &[operator.fingerprint()]).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            serve(&listener, &acceptor, &ServedTargets::at(address.ip())).await;
        });
        Self {
            address,
            operator,
            known: node.fingerprint(),
        }
    }

    async fn ask_as(&self, who: &Identity, request: &NodeRequest) -> Result<NodeAnswer> {
        let name = ServerName::try_from("node-agent")?;
        let trust = Trust::Pinned(self.known);
        let dialer = TlsDialer::with_identity(TcpDialer::new(self.address), name, trust, who)?;
        let mut pipe = dialer.dial().await?;
        pipe.write_all(&message(request)?).await?;
        let mut answer = vec![0; usize::try_from(pipe.read_u32().await?)?];
        pipe.read_exact(&mut answer).await?;
        Ok(serde_json::from_slice(&answer)?)
    }

    async fn ask(&self, request: &NodeRequest) -> NodeAnswer {
        self.ask_as(&self.operator, request).await.unwrap()
    }
}

fn everything() -> NodeRequest {
    NodeRequest::List {
        prefix: String::new(),
    }
}

#[tokio::test]
async fn strangers_are_not_answered() {
    let node = Node::start().await;
    let stranger = Identity::generate().unwrap();
    assert!(node.ask_as(&stranger, &everything()).await.is_err());
    assert_eq!(node.ask(&everything()).await, NodeAnswer::default());
}

#[tokio::test]
async fn what_cannot_be_served_says_why() {
    let node = Node::start().await;
    let order = NodeOrder {
        name: "a-1".to_owned(),
        container: "there-is-none".to_owned(),
        client_certificate: Identity::generate().unwrap().fingerprint().to_string(),
        ..NodeOrder::default()
    };
    let answer = node.ask(&NodeRequest::Serve(order.clone())).await;
    let error = answer.error.unwrap();
    assert!(error.contains("there-is-none"), "{error}");
    // A rule that only a newer agent knows must not be overlooked.
    let order = NodeOrder {
        grant: Some(serde_json::json!({"noSinging": true})),
        ..order
    };
    let answer = node.ask(&NodeRequest::Serve(order)).await;
    let error = answer.error.unwrap();
    assert!(error.contains("noSinging"), "{error}");
    assert_eq!(node.ask(&everything()).await.served, []);
}

/// A process in a control group that is named like a container is one, as far as the kernel knows.
#[tokio::test]
#[ignore = "needs root"]
async fn a_container_is_served_to_its_client_alone_until_told_to_end() {
    let id = "0123456789abcdef0123456789abcdef";
    let group = Group::make(id);
    let target = std::process::Command::new("sleep")
        .arg("600")
        .spawn()
        .unwrap();
    let target = Killed(target);
    group.add(target.0.id());
    let node = Node::start().await;
    let client = Identity::generate().unwrap();
    let order = NodeOrder {
        name: "a-1".to_owned(),
        pod: "uid".to_owned(),
        container: id.to_owned(),
        client_certificate: client.fingerprint().to_string(),
        resume_window_secs: 60,
        patience_secs: 60,
        port: 21_000,
        grant: None,
    };
    let request = NodeRequest::Serve(order);
    let answer = node.ask(&request).await;
    let [served] = answer.served.as_slice() else {
        panic!("{answer:?}");
    };
    // Asked again, it is the same.
    assert_eq!(
        node.ask(&request).await.served,
        std::slice::from_ref(served)
    );
    assert_eq!(
        node.ask(&everything()).await.served,
        std::slice::from_ref(served)
    );

    let link = |identity: &Identity, trust: Trust| {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, served.port));
        let name = ServerName::try_from("agent").unwrap();
        let dialer =
            TlsDialer::with_identity(TcpDialer::new(address), name, trust, identity).unwrap();
        let mut settings = Settings::default();
        settings.redial.first_connection = Duration::from_secs(1);
        Link::connect(dialer, settings)
    };
    let pinned = Trust::Pinned(served.certificate.parse().unwrap());
    let stranger = Identity::generate().unwrap();
    let first_seen = Trust::FirstSeen(FirstSeen::default());
    assert!(link(&stranger, first_seen).await.is_err());
    let linked = link(&client, pinned.clone()).await.unwrap();

    let name = served.name.clone();
    node.ask(&NodeRequest::End { name }).await;
    let mut status = linked.status();
    let ended = status.wait_for(|status| matches!(status, link::Status::Failed(_)));
    let ended = format!("{:?}", *ended.await.unwrap());
    assert!(ended.contains("it was told to end"), "{ended}");
    let served = &node.ask(&everything()).await.served[0];
    assert_eq!(served.ended.as_ref().unwrap().why, "it was told to end");
    assert!(link(&client, pinned).await.is_err());
}

/// A control group whose name is a container's id. It goes with its last process.
struct Group(PathBuf);

impl Group {
    fn make(id: &str) -> Self {
        // Where the older layout is, each controller has a tree of its own.
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
        // The kernel lets a group go a moment after its last process.
        for _ in 0..1000 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
