//! Servers, whose clients are the target's.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use interceptor::{Delivery, DeliveryRegistration, Listener, Supervised, Transport};

use crate::programs;
use crate::target::{Target, shell, wait_until};

const CLIENT: &str = "203.0.113.9:4711";
const SERVER: &str = "10.1.2.3:8080";

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
        let target = Target::new();
        target.takes_listeners.store(true, Ordering::SeqCst);
        let folder = tempfile::tempdir().unwrap();
        let supervised = shell(script, &folder.path().join("output"))
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
            .then(|| Self::start(&format!("python3 -u {} {function}", program.display())))
    }

    fn output(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("output")).unwrap_or_default()
    }

    /// The socket with which the program listens, by the order of listening.
    #[track_caller]
    fn listener(&self, index: usize) -> (Transport, SocketAddr, Listener) {
        let listeners = &self.target.listeners;
        wait_until(&format!("the program listens: {}", self.output()), || {
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
}

#[test]
fn a_socket_that_waits_shows_the_client() {
    let Some(server) = Server::python("blocking") else {
        return;
    };
    for text in ["one", "two", "three"] {
        assert_eq!(server.connect(CLIENT).ask(text), text.to_uppercase());
    }
    let names = "('203.0.113.9', 4711) ('203.0.113.9', 4711) ('10.1.2.3', 8080)\n";
    server.end(&names.repeat(3));
}
