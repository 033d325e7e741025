//! Servers, whose clients are the target's.

/// What a program sees of its clients, in every way to accept them.
mod accepting;

/// Datagrams.
mod datagrams;

/// Where a program listens, and where it really does.
mod ports;

/// Servers in many languages.
mod servers;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use interceptor::{Delivery, DeliveryRegistration, Listener, Supervised, Transport};

use crate::programs;
use crate::target::{Target, shell, wait_until};

const CLIENT: &str = "203.0.113.9:4711";
const CLIENT6: &str = "[2001:db8:1::9]:4712";
const SERVER: &str = "10.1.2.3:8080";

/// What the Python program says about a connection from [`CLIENT`].
const NAMES: &str = "('203.0.113.9', 4711) ('203.0.113.9', 4711) ('10.1.2.3', 8080)\n";

/// A program that runs and listens for the target.
struct Server {
    target: Arc<Target>,
    supervised: Supervised,
    folder: tempfile::TempDir,
}

/// A client of the target, as far as the program can see.
struct Client {
    stream: TcpStream,
    _registration: DeliveryRegistration,
}

impl Server {
    fn start(script: &str) -> Self {
        Self::start_on(true, script)
    }

    /// `signals_wait` is false for what happens on kernels that cannot do that.
    fn start_on(signals_wait: bool, script: &str) -> Self {
        let target = Target::new();
        target.takes_listeners.store(true, Ordering::SeqCst);
        let folder = tempfile::tempdir().unwrap();
        let go_on = folder.path().join("go-on");
        let script = format!("export GO_ON='{}'\n{script}", go_on.display());
        let supervised = shell(&script, &folder.path().join("output"))
            .let_signals_wait(signals_wait)
            .start(Arc::clone(&target) as _)
            .unwrap();
        Self {
            target,
            supervised,
            folder,
        }
    }

    /// A function of the Python program; `None`, said aloud, without Python.
    fn python(function: &str) -> Option<Self> {
        let program = programs::source("incoming.py");
        programs::is_there("python3")
            .then(|| Self::start(&format!("exec python3 -u {} {function}", program.display())))
    }

    fn program(program: Option<PathBuf>, arguments: &str) -> Option<Self> {
        program.map(|program| Self::start(&format!("exec {} {arguments}", program.display())))
    }

    fn output(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("output")).unwrap_or_default()
    }

    /// The socket with which the program listens, by the order of listening.
    #[track_caller]
    fn listener(&self, index: usize) -> (Transport, SocketAddr, Listener) {
        let listeners = &self.target.listeners;
        wait_until("the program listens", || {
            assert!(!self.output().contains("Error"), "{}", self.output());
            listeners.lock().unwrap().len() > index
        });
        listeners.lock().unwrap()[index].clone()
    }

    #[track_caller]
    fn connect(&self, client: &str) -> Client {
        let (_, _, listener) = self.listener(0);
        Client::deliver(&listener, client)
    }

    #[track_caller]
    fn wait_for(&self, text: &str) {
        wait_until(&format!("the program says {text}"), || {
            self.output().contains(text)
        });
    }

    /// Lets a program go on that waits for it.
    fn go_on(&self) {
        std::fs::write(self.folder.path().join("go-on"), "").unwrap();
    }

    #[track_caller]
    fn end(mut self, expected: &str) {
        let status = self.supervised.wait().unwrap();
        assert_eq!(self.output(), expected);
        assert!(status.success(), "{status}");
    }
}

impl Client {
    #[track_caller]
    fn deliver(listener: &Listener, client: &str) -> Self {
        let (client, server) = (client.parse().unwrap(), SERVER.parse().unwrap());
        let Delivery {
            socket,
            registration,
        } = listener.deliver(client, server).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_nonblocking(false).unwrap();
        Self {
            stream,
            _registration: registration,
        }
    }

    /// Sends a text and the end, and returns what comes.
    fn ask(mut self, text: &str) -> String {
        self.stream.write_all(text.as_bytes()).unwrap();
        self.stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        self.stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// The body of the answer to a request.
    fn get(mut self) -> String {
        let request = "GET / HTTP/1.1\r\nHost: target\r\nConnection: close\r\n\r\n";
        self.stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let text = String::from_utf8_lossy(&answer).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let head = head.to_ascii_lowercase();
                let length = head.split_once("content-length: ");
                let length = length.and_then(|(_, rest)| rest.lines().next()?.parse().ok());
                if length.is_none_or(|length: usize| body.len() >= length) && !body.is_empty() {
                    return body.to_owned();
                }
            }
            let count = self.stream.read(&mut buffer).unwrap();
            assert!(count > 0, "the answer ends early: {text}");
            answer.extend(&buffer[..count]);
        }
    }
}

/// A port of this machine that was free a moment ago.
fn free_port() -> u16 {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap().port()
}
