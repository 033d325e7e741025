//! Datagrams.

use std::net::UdpSocket;

use interceptor::{AppConnection, IncomingRegistration, Listener};

use super::{CLIENT, CLIENT6, SERVER, Server, free_port};

struct Client {
    socket: UdpSocket,
    _registration: IncomingRegistration,
}

impl Client {
    #[track_caller]
    fn connect(listener: &Listener, client: &str) -> Self {
        let (client, server) = (client.parse().unwrap(), SERVER.parse().unwrap());
        let AppConnection {
            socket,
            registration,
        } = listener.connect(client, server).unwrap();
        let socket = UdpSocket::from(socket);
        socket.set_nonblocking(false).unwrap();
        let timeout = std::time::Duration::from_secs(30);
        socket.set_read_timeout(Some(timeout)).unwrap();
        Self {
            socket,
            _registration: registration,
        }
    }

    fn send(&self, text: &str) {
        self.socket.send(text.as_bytes()).unwrap();
    }

    #[track_caller]
    fn receive(&self) -> String {
        let mut buffer = [0; 100];
        let length = self.socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }
}

fn start(function: &str) -> (Server, Listener) {
    let server = Server::python(&format!("{function} {}", free_port()));
    let (_, _, listener) = server.listener(0);
    (server, listener)
}

#[test]
fn datagrams_have_client_address_and_replies_reach_it() {
    let (server, listener) = start("udp");
    server.wait_for("waiting");
    let client = Client::connect(&listener, CLIENT);
    for text in ["one", "two"] {
        client.send(text);
        assert_eq!(client.receive(), text.to_uppercase());
    }
    server.wait_for("b'there'");
    let other = Client::connect(&listener, "203.0.113.10:1");
    client.send("first");
    assert!(listener.is_listening());
    other.send("second");
    assert_eq!(client.receive(), "FIRST");
    assert_eq!(other.receive(), "SECOND");
    let connected = std::thread::scope(|scope| {
        let socket = &client;
        scope.spawn(move || socket.receive()).join().unwrap()
    });
    assert_eq!(connected, "connected");
    server.end(
        "waiting\nb'one' ('203.0.113.9', 4711) 3\nb'two' ('203.0.113.9', 4711) 3\nb'here' True\nb'there'\n\
         b'first' ('203.0.113.9', 4711)\nb'second' ('203.0.113.10', 1)\nTrue\nTrue\n",
    );
    crate::target::wait_until("it is closed", || !listener.is_listening());
}

#[test]
fn dual_stack_datagrams() {
    let (server, listener) = start("udp_dual");
    for address in [CLIENT, CLIENT6] {
        let client = Client::connect(&listener, address);
        client.send("hello");
        assert_eq!(client.receive(), "HELLO");
    }
    server.end("b'hello' ('::ffff:203.0.113.9', 4711)\nb'hello' ('2001:db8:1::9', 4712)\n");
}

#[test]
fn several_datagrams_per_call() {
    let (server, listener) = start("udp_many");
    server.wait_for("waiting");
    let clients = [CLIENT, "203.0.113.10:1"].map(|client| Client::connect(&listener, client));
    for _ in 0..2 {
        for client in &clients {
            client.send("hello");
        }
    }
    server.resume();
    for _ in 0..2 {
        for client in &clients {
            assert_eq!(client.receive(), "hello");
        }
    }
    let two = "b'hello' 203.0.113.9 4711\nb'hello' 203.0.113.10 1\n";
    server.end(&format!("waiting\n{two}{two}4\n"));
}

#[test]
fn ipv6_client_on_ipv4_datagram_socket() {
    let (server, listener) = start("udp_version4");
    let client = Client::connect(&listener, CLIENT6);
    client.send("hello");
    assert_eq!(client.receive(), "HELLO");
    server.end("b'hello' True\n");
}

#[test]
fn datagram_sockets_share_a_port() {
    let (server, listener) = start("udp_shared_port");
    server.listener(3);
    let clients: Vec<_> = (0..40)
        .map(|index| {
            let ip = format!("203.0.113.{index}");
            let client = Client::connect(&listener, &format!("{ip}:1"));
            client.send(&ip);
            (ip, client)
        })
        .collect();
    for (ip, client) in clients {
        assert_eq!(client.receive(), ip);
    }
    server.end("40 True True\n");
}
