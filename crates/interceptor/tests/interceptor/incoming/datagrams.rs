//! Datagrams.

use std::net::UdpSocket;

use interceptor::{Delivery, DeliveryRegistration, Listener};

use super::{CLIENT, CLIENT6, SERVER, Server, free_port};

struct Client {
    socket: UdpSocket,
    _registration: DeliveryRegistration,
}

impl Client {
    #[track_caller]
    fn deliver(listener: &Listener, client: &str) -> Self {
        let (client, server) = (client.parse().unwrap(), SERVER.parse().unwrap());
        let Delivery {
            socket,
            registration,
        } = listener.deliver(client, server).unwrap();
        let socket = UdpSocket::from(socket);
        socket.set_nonblocking(false).unwrap();
        let patience = std::time::Duration::from_secs(30);
        socket.set_read_timeout(Some(patience)).unwrap();
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

fn start(function: &str) -> Option<(Server, Listener)> {
    let server = Server::python(&format!("{function} {}", free_port()))?;
    let (_, _, listener) = server.listener(0);
    Some((server, listener))
}

#[test]
fn datagrams_show_their_client_and_answers_go_to_it() {
    let Some((server, listener)) = start("udp") else {
        return;
    };
    server.wait_for("waiting");
    let client = Client::deliver(&listener, CLIENT);
    for text in ["one", "two"] {
        client.send(text);
        assert_eq!(client.receive(), text.to_uppercase());
    }
    server.wait_for("b'there'");
    let other = Client::deliver(&listener, "203.0.113.10:1");
    client.send("first");
    assert!(listener.is_there());
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
    crate::target::wait_until("it is closed", || !listener.is_there());
}

#[test]
fn datagrams_for_both_families() {
    let Some((server, listener)) = start("udp_dual") else {
        return;
    };
    for address in [CLIENT, CLIENT6] {
        let client = Client::deliver(&listener, address);
        client.send("hello");
        assert_eq!(client.receive(), "HELLO");
    }
    server.end("b'hello' ('::ffff:203.0.113.9', 4711)\nb'hello' ('2001:db8:1::9', 4712)\n");
}

#[test]
fn several_datagrams_in_one_call() {
    let Some((server, listener)) = start("udp_many") else {
        return;
    };
    server.wait_for("waiting");
    let clients = [CLIENT, "203.0.113.10:1"].map(|client| Client::deliver(&listener, client));
    for _ in 0..2 {
        for client in &clients {
            client.send("hello");
        }
    }
    server.go_on();
    for _ in 0..2 {
        for client in &clients {
            assert_eq!(client.receive(), "hello");
        }
    }
    let two = "b'hello' 203.0.113.9 4711\nb'hello' 203.0.113.10 1\n";
    server.end(&format!("waiting\n{two}{two}4\n"));
}

#[test]
fn a_client_without_a_name_is_answered() {
    let Some((server, listener)) = start("udp_version4") else {
        return;
    };
    let client = Client::deliver(&listener, CLIENT6);
    client.send("hello");
    assert_eq!(client.receive(), "HELLO");
    server.end("b'hello' True\n");
}

#[test]
fn sockets_that_share_a_port() {
    let Some((server, listener)) = start("udp_shared_port") else {
        return;
    };
    server.listener(3);
    let clients: Vec<_> = (0..40)
        .map(|index| {
            let ip = format!("203.0.113.{index}");
            let client = Client::deliver(&listener, &format!("{ip}:1"));
            client.send(&ip);
            (ip, client)
        })
        .collect();
    for (ip, client) in clients {
        assert_eq!(client.receive(), ip);
    }
    server.end("40 True True\n");
}
