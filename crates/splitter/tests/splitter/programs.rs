use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use splitter::{
    BoxFuture, BoxStream, ClaimGuard, ConnectionMeta, Destination, Filter, Mode, OnConflict, Port,
    Settings,
};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

use super::fixture::{claim, read_until};

/// A running server program that has printed its port. It is killed when the test ends.
struct Program {
    address: SocketAddr,
    _child: Child,
}

impl Program {
    async fn start(interpreter: &str, file: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new(interpreter)
            .arg(folder().join(file))
            .args(arguments)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("{interpreter} is needed: {error}"));
        let mut line = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        lines.read_line(&mut line).await.unwrap();
        let port: u16 = line.trim().parse().unwrap();
        Self {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            _child: child,
        }
    }
}

/// The shop's inventory, which is a gRPC server in Go.
async fn inventory(binary: &Path, name: &str) -> Program {
    let mut child = Command::new(binary)
        .env("GRPC_PORT", "0")
        .env("HTTP_PORT", "0")
        .env("POD_NAME", name)
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    lines.read_line(&mut line).await.unwrap();
    let port = line.split("grpc=[::]:").nth(1).unwrap().split(' ').next();
    let port: u16 = port.unwrap().parse().unwrap();
    Program {
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        _child: child,
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/splitter/programs")
}

impl Destination for Program {
    fn open<'a>(&'a self, _: &'a ConnectionMeta) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async { Ok(Box::new(TcpStream::connect(self.address).await?) as BoxStream) })
    }
}

/// An application and a session of the same kind, and a port in front of them.
struct Front {
    url: String,
    address: SocketAddr,
    _guard: ClaimGuard,
}

async fn front(interpreter: &str, file: &str, argument: &str) -> Front {
    let application = Program::start(interpreter, file, &["application", argument]).await;
    let alice = Program::start(interpreter, file, &["alice", argument]).await;
    front_of(application, alice).await
}

async fn front_of(application: Program, alice: Program) -> Front {
    let port = Arc::new(Port::new(Arc::new(application), Settings::default()));
    let filter = Filter::header("^x-for: alice$").unwrap();
    let alices = claim("alice", Mode::Steal, Some(filter), Arc::new(alice));
    let guard = port.claims().claim(alices, OnConflict::Abort).unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, client)) = listener.accept().await {
            let port = port.clone();
            let meta = ConnectionMeta {
                client,
                server: address,
                tls: None,
            };
            tokio::spawn(async move { port.serve(Box::new(stream), meta).await });
        }
    });
    Front {
        url: format!("http://{address}"),
        address,
        _guard: guard,
    }
}

async fn curl(arguments: &[&str]) -> String {
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "60"])
        .args(arguments)
        .output()
        .await
        .unwrap_or_else(|error| panic!("curl is needed: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "curl {arguments:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const FOR_ALICE: &str = "X-For: alice";

#[tokio::test(flavor = "multi_thread")]
async fn curl_and_python() {
    for version in ["HTTP/1.0", "HTTP/1.1"] {
        let front = front("python3", "server.py", version).await;
        let url = &front.url;
        let (one, two) = (format!("{url}/1"), format!("{url}/2?q"));
        assert_eq!(
            curl(&[&one, &two]).await,
            "application GET /1 0\napplication GET /2?q 0\n"
        );
        assert_eq!(
            curl(&["-H", FOR_ALICE, &one, &two]).await,
            "alice GET /1 0\nalice GET /2?q 0\n"
        );
        assert!(curl(&["-I", &one]).await.contains("Content-Length: 22"));
        // A body of this size makes curl send `Expect: 100-continue`.
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(2_000_000).unwrap();
        let body = format!("@{}", file.path().display());
        for (header, who) in [("X-For: x", "application"), (FOR_ALICE, "alice")] {
            let sent = curl(&["-H", header, "--data-binary", &body, &one]).await;
            assert_eq!(sent, format!("{who} POST /1 2000000\n"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_and_node() {
    let front = front("node", "server.mjs", "http").await;
    let (one, events) = (format!("{}/1", front.url), format!("{}/events", front.url));
    for (header, who) in [("X-For: x", "application"), (FOR_ALICE, "alice")] {
        let responses = curl(&["-H", header, &one, &events, &one]).await;
        let stream: String = (0..3)
            .map(|count| format!("data: {who} {count}\n\n"))
            .collect();
        assert_eq!(
            responses,
            format!("{who} GET /1 0\n{stream}{who} GET /1 0\n")
        );
        let chunked = [
            "-H",
            header,
            "-H",
            "Transfer-Encoding: chunked",
            "-d",
            "hello",
            &one,
        ];
        assert_eq!(curl(&chunked).await, format!("{who} POST /1 5\n"));
        let mut client = TcpStream::connect(front.address).await.unwrap();
        let upgrade = format!(
            "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n{header}\r\n\r\n"
        );
        client.write_all(upgrade.as_bytes()).await.unwrap();
        read_until(&mut client, &format!("\r\n\r\n{who}:")).await;
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        read_until(&mut client, "GET / HTTP/1.1\r\n\r\n").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_and_node_with_http2() {
    let front = front("node", "server.mjs", "http2").await;
    let (one, events) = (format!("{}/1", front.url), format!("{}/events", front.url));
    for (header, who) in [("X-For: x", "application"), (FOR_ALICE, "alice")] {
        let arguments = ["--http2-prior-knowledge", "-H", header, "-d", "hello", &one];
        assert_eq!(curl(&arguments).await, format!("{who} POST /1 5\n"));
        let stream: String = (0..3)
            .map(|count| format!("data: {who} {count}\n\n"))
            .collect();
        assert_eq!(
            curl(&["--http2-prior-knowledge", "-H", header, &events]).await,
            stream
        );
    }
}

/// A gRPC message with one text, as field 1.
fn message(text: &str) -> bytes::Bytes {
    let length = u8::try_from(text.len()).unwrap();
    let mut message = vec![0, 0, 0, 0, length + 2, 0x0a, length];
    message.extend_from_slice(text.as_bytes());
    message.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_and_go() {
    let folder = tempfile::tempdir().unwrap();
    let binary = folder.path().join("inventory");
    let built = Command::new("go")
        .args(["build", "-o"])
        .arg(&binary)
        .arg(".")
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shop/inventory"))
        .status()
        .await
        .unwrap_or_else(|error| panic!("go is needed: {error}"));
    assert!(built.success());
    let application = inventory(&binary, "application").await;
    let front = front_of(application, inventory(&binary, "alice").await).await;
    let stream = TcpStream::connect(front.address).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    for (session, who) in [
        ("x", "application"),
        ("alice", "alice"),
        ("x", "application"),
    ] {
        let call = |method: &str| {
            http::Request::post(format!("http://inventory/shop.v1.Inventory/{method}"))
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .header("x-for", session)
                .body(())
                .unwrap()
        };
        // Each response message is received before the next request message is sent.
        let (response, mut requests) = client.send_request(call("Scan"), false).unwrap();
        requests.send_data(message("book"), false).unwrap();
        let mut responses = response.await.unwrap().into_body();
        for next in ["lamp", "mug"] {
            let response = responses.data().await.unwrap().unwrap();
            assert!(
                String::from_utf8_lossy(&response).contains(who),
                "{response:?}"
            );
            requests.send_data(message(next), false).unwrap();
        }
        responses.data().await.unwrap().unwrap();
        requests.send_data(bytes::Bytes::new(), true).unwrap();
        assert!(responses.data().await.is_none());
        let trailers = responses.trailers().await.unwrap().unwrap();
        assert_eq!(trailers["grpc-status"], "0");
        // A unary call that fails.
        let (response, mut request) = client.send_request(call("Reserve"), false).unwrap();
        request.send_data(message("nothing"), true).unwrap();
        let (head, mut body) = response.await.unwrap().into_parts();
        assert!(body.data().await.is_none());
        let trailers = body.trailers().await.unwrap().unwrap_or(head.headers);
        assert_eq!(trailers["grpc-status"], "5");
    }
}
