//! The requested and the actual port of a listener.

use std::net::TcpListener;

use interceptor::{Notice, Transport};

use super::{ADDRESSES, CLIENT, Client, Server, free_port};
use crate::target::{REFUSED_PORT, wait_until};

/// The reported notices.
fn notices(server: &Server) -> Vec<Notice> {
    server.target.notices.lock().unwrap().clone()
}

#[test]
fn port_chosen_by_kernel() {
    let server = Server::python("unbound");
    let (transport, address, listener) = server.listener(0);
    assert_eq!(transport, Transport::Tcp);
    assert_ne!(address.port(), 0);
    assert!(listener.is_listening());
    assert_eq!(
        Client::connect(&listener, CLIENT).exchange("hello"),
        "HELLO"
    );
    server.end(&format!("{}\n{ADDRESSES}", address.port()));
    assert!(!listener.is_listening());
}

/// A socket that is bound to one address of this machine is reached there.
#[test]
fn socket_bound_to_one_address() {
    // Determines the outgoing address of this machine; nothing is sent.
    let probe = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let reachable = probe.connect("192.0.2.1:9").is_ok();
    let own = probe.local_addr().unwrap().ip();
    let mut addresses = vec!["127.0.0.5".to_owned()];
    if reachable && !own.is_loopback() {
        addresses.push(own.to_string());
    } else {
        println!("skipped: this machine has only loopback addresses");
    }
    for address in addresses {
        let server = Server::python(&format!("bound {address}"));
        assert_eq!(server.connect(CLIENT).exchange("hello"), "HELLO");
        server.end(&format!("True\n{ADDRESSES}"));
    }
}

#[test]
fn refused_listener() {
    let server = Server::python(&format!("refused {REFUSED_PORT}"));
    assert_eq!(server.connect(CLIENT).exchange("hello"), "HELLO");
    server.end(&format!("EADDRINUSE EINVAL\n{ADDRESSES}"));
}

#[test]
fn port_used_by_another_program() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let requested = other.local_addr().unwrap();
    let server = Server::python(&format!("taken {}", requested.port()));
    for index in 0..3 {
        let (_, address, listener) = server.listener(index);
        assert_eq!(address, requested);
        assert_eq!(
            Client::connect(&listener, CLIENT).exchange("hello"),
            "HELLO"
        );
    }
    let notices = notices(&server);
    let [
        Notice::PortMoved {
            requested: reported,
            actual,
            ..
        },
    ] = notices[..]
    else {
        panic!("{notices:?}");
    };
    assert_eq!(reported, requested);
    assert_ne!(actual, requested);
    server.end(&format!(
        "True\n{ADDRESSES}True\nEADDRINUSE\nTrue\n{ADDRESSES}True\n{ADDRESSES}"
    ));
}

/// If the user may not bind it, another port is used; root gets the port itself.
#[test]
fn privileged_port() {
    let server = Server::python("low_port 81");
    let (_, address, _) = server.listener(0);
    assert_eq!(address, "127.0.0.1:81".parse().unwrap());
    assert_eq!(server.connect(CLIENT).exchange("hello"), "HELLO");
    server.end(&format!("('127.0.0.1', 81)\n{ADDRESSES}"));
}

#[test]
fn address_of_target() {
    let port = free_port();
    let server = Server::python(&format!("foreign_address {port}"));
    assert_eq!(server.connect(CLIENT).exchange("hello"), "HELLO");
    assert_eq!(notices(&server).len(), 1);
    server.end(&format!("10.1.2.3\n{ADDRESSES}"));
}

#[test]
fn port_used_by_program_itself() {
    let server = Server::python("twice");
    let target = std::sync::Arc::clone(&server.target);
    server.end("EADDRINUSE\n");
    assert_eq!(*target.notices.lock().unwrap(), []);
}

#[test]
fn several_listeners() {
    let server = Server::python("several");
    for index in [2, 1, 0] {
        let (_, _, listener) = server.listener(index);
        assert_eq!(
            Client::connect(&listener, CLIENT).exchange("hello"),
            "HELLO"
        );
    }
    server.end(&ADDRESSES.repeat(3));
}

#[test]
fn closed_and_reopened() {
    let server = Server::python("reopened");
    let mut expected = String::new();
    for index in 0..2 {
        let (_, _, listener) = server.listener(index);
        assert!(listener.is_listening());
        assert_eq!(
            Client::connect(&listener, CLIENT).exchange("hello"),
            "HELLO"
        );
        wait_until("it is closed", || !listener.is_listening());
        let refused = listener.connect(CLIENT.parse().unwrap(), CLIENT.parse().unwrap());
        assert_eq!(refused.unwrap_err(), interceptor::Errno::ECONNREFUSED);
        expected += &format!("{ADDRESSES}waiting\n");
        wait_until("it waits", || server.output() == expected);
        server.resume();
    }
    server.end(&expected);
}
