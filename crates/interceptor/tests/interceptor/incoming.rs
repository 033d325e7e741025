//! Servers whose clients connect to the target.

/// The addresses that a program sees, for all kinds of `accept`.
mod accept;

/// Datagrams.
mod datagrams;

/// The requested and the actual port of a listener.
mod ports;

/// Servers in many languages.
mod servers;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use interceptor::{AppConnection, IncomingRegistration, Listener, SupervisedProcess, Transport};

use crate::programs;
use crate::target::{Target, shell, wait_until};

const CLIENT: &str = "203.0.113.9:4711";
const CLIENT6: &str = "[2001:db8:1::9]:4712";
const SERVER: &str = "10.1.2.3:8080";

/// The output of the Python program for a connection from [`CLIENT`].
const ADDRESSES: &str = "('203.0.113.9', 4711) ('203.0.113.9', 4711) ('10.1.2.3', 8080)\n";

/// A running program that listens for the target.
struct Server {
    target: Arc<Target>,
    supervised: SupervisedProcess,
    folder: tempfile::TempDir,
}

/// A client of the target, from the perspective of the program.
struct Client {
    stream: TcpStream,
    _registration: IncomingRegistration,
}

impl Server {
    fn start(script: &str) -> Self {
        Self::start_on(true, script)
    }

    /// `wait_killable` is false to test the behaviour of kernels without this feature.
    fn start_on(wait_killable: bool, script: &str) -> Self {
        let target = Target::new();
        target.accepts_listeners.store(true, Ordering::SeqCst);
        let folder = tempfile::tempdir().unwrap();
        let resume = folder.path().join("resume");
        let script = format!("export RESUME_FILE='{}'\n{script}", resume.display());
        let supervised = shell(&script, &folder.path().join("output"))
            .wait_killable(wait_killable)
            .start(Arc::clone(&target) as _)
            .unwrap();
        Self {
            target,
            supervised,
            folder,
        }
    }

    /// Starts a function of the Python program.
    fn python(function: &str) -> Self {
        programs::require("python3");
        let program = programs::source("incoming.py");
        Self::start(&format!("exec python3 -u {} {function}", program.display()))
    }

    fn program(program: &Path, arguments: &str) -> Self {
        Self::start(&format!("exec {} {arguments}", program.display()))
    }

    fn output(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("output")).unwrap_or_default()
    }

    /// The listener of the program with this index, in the order of `listen` calls.
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
        Client::connect(&listener, client)
    }

    #[track_caller]
    fn wait_for(&self, text: &str) {
        wait_until(&format!("the program prints {text}"), || {
            self.output().contains(text)
        });
    }

    /// Lets a waiting program continue.
    fn resume(&self) {
        std::fs::write(self.folder.path().join("resume"), "").unwrap();
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
    fn connect(listener: &Listener, client: &str) -> Self {
        let (client, server) = (client.parse().unwrap(), SERVER.parse().unwrap());
        let AppConnection {
            socket,
            registration,
        } = listener.connect(client, server).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_nonblocking(false).unwrap();
        Self {
            stream,
            _registration: registration,
        }
    }

    /// Sends a text, shuts down, and returns the response.
    fn exchange(mut self, text: &str) -> String {
        self.stream.write_all(text.as_bytes()).unwrap();
        self.stream.shutdown(Shutdown::Write).unwrap();
        let mut response = String::new();
        self.stream.read_to_string(&mut response).unwrap();
        response
    }

    /// Sends an HTTP request and returns the body of the response.
    fn get(mut self) -> String {
        let request = "GET / HTTP/1.1\r\nHost: target\r\nConnection: close\r\n\r\n";
        self.stream.write_all(request.as_bytes()).unwrap();
        let mut response = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let text = String::from_utf8_lossy(&response).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let head = head.to_ascii_lowercase();
                let length = head.split_once("content-length: ");
                let length = length.and_then(|(_, rest)| rest.lines().next()?.parse().ok());
                if length.is_none_or(|length: usize| body.len() >= length) && !body.is_empty() {
                    return body.to_owned();
                }
            }
            let count = self.stream.read(&mut buffer).unwrap();
            assert!(count > 0, "the response ends early: {text}");
            response.extend(&buffer[..count]);
        }
    }
}

/// A local port that was free a moment ago.
fn free_port() -> u16 {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap().port()
}
