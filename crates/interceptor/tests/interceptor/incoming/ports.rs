//! Where a program listens, and where it really does.

use std::net::TcpListener;

use interceptor::{Notice, Transport};

use super::{CLIENT, Client, NAMES, Server, free_port};
use crate::target::{REFUSED_PORT, wait_until};

/// What was said about ports.
fn moved(server: &Server) -> Vec<Notice> {
    server.target.notices.lock().unwrap().clone()
}

#[test]
fn a_port_that_the_kernel_chooses() {
    let Some(server) = Server::python("unbound") else {
        return;
    };
    let (transport, address, listener) = server.listener(0);
    assert_eq!(transport, Transport::Tcp);
    assert_ne!(address.port(), 0);
    assert!(listener.is_there());
    assert_eq!(Client::deliver(&listener, CLIENT).ask("hello"), "HELLO");
    server.end(&format!("{}\n{NAMES}", address.port()));
    assert!(!listener.is_there());
}

/// A socket that takes connections to one address of this machine is reached there.
#[test]
fn a_socket_for_one_address() {
    // What this machine would speak from to somebody else; nothing is sent.
    let somebody = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let reachable = somebody.connect("192.0.2.1:9").is_ok();
    let own = somebody.local_addr().unwrap().ip();
    let mut addresses = vec!["127.0.0.5".to_owned()];
    if reachable && !own.is_loopback() {
        addresses.push(own.to_string());
    } else {
        println!("skipped: this machine has no address but those of localhost");
    }
    for address in addresses {
        let Some(server) = Server::python(&format!("bound {address}")) else {
            return;
        };
        assert_eq!(server.connect(CLIENT).ask("hello"), "HELLO");
        server.end(&format!("True\n{NAMES}"));
    }
}

#[test]
fn a_refused_listener() {
    let Some(server) = Server::python(&format!("refused {REFUSED_PORT}")) else {
        return;
    };
    assert_eq!(server.connect(CLIENT).ask("hello"), "HELLO");
    server.end(&format!("EADDRINUSE EINVAL\n{NAMES}"));
}

#[test]
fn a_port_that_somebody_else_has() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let asked = other.local_addr().unwrap();
    let Some(server) = Server::python(&format!("taken {}", asked.port())) else {
        return;
    };
    for index in 0..3 {
        let (_, address, listener) = server.listener(index);
        assert_eq!(address, asked);
        assert_eq!(Client::deliver(&listener, CLIENT).ask("hello"), "HELLO");
    }
    let notices = moved(&server);
    let [
        Notice::PortMoved {
            asked: said, used, ..
        },
    ] = notices[..]
    else {
        panic!("{notices:?}");
    };
    assert_eq!(said, asked);
    assert_ne!(used, asked);
    server.end(&format!(
        "True\n{NAMES}True\nEADDRINUSE\nTrue\n{NAMES}True\n{NAMES}"
    ));
}

/// For whoever may not have it. Who may, has it.
#[test]
fn a_port_that_only_root_may_use() {
    let Some(server) = Server::python("low_port 81") else {
        return;
    };
    let (_, address, _) = server.listener(0);
    assert_eq!(address, "127.0.0.1:81".parse().unwrap());
    assert_eq!(server.connect(CLIENT).ask("hello"), "HELLO");
    server.end(&format!("('127.0.0.1', 81)\n{NAMES}"));
}

#[test]
fn an_address_of_the_target() {
    let port = free_port();
    let Some(server) = Server::python(&format!("foreign_address {port}")) else {
        return;
    };
    assert_eq!(server.connect(CLIENT).ask("hello"), "HELLO");
    assert_eq!(moved(&server).len(), 1);
    server.end(&format!("10.1.2.3\n{NAMES}"));
}

#[test]
fn a_port_that_the_program_itself_has() {
    let Some(server) = Server::python("twice") else {
        return;
    };
    let target = std::sync::Arc::clone(&server.target);
    server.end("EADDRINUSE\n");
    assert_eq!(*target.notices.lock().unwrap(), []);
}

#[test]
fn several_listeners() {
    let Some(server) = Server::python("several") else {
        return;
    };
    for index in [2, 1, 0] {
        let (_, _, listener) = server.listener(index);
        assert_eq!(Client::deliver(&listener, CLIENT).ask("hello"), "HELLO");
    }
    server.end(&NAMES.repeat(3));
}

#[test]
fn closed_and_opened_again() {
    let Some(server) = Server::python("reopened") else {
        return;
    };
    let mut expected = String::new();
    for index in 0..2 {
        let (_, _, listener) = server.listener(index);
        assert!(listener.is_there());
        assert_eq!(Client::deliver(&listener, CLIENT).ask("hello"), "HELLO");
        wait_until("it is closed", || !listener.is_there());
        let refused = listener.deliver(CLIENT.parse().unwrap(), CLIENT.parse().unwrap());
        assert_eq!(refused.unwrap_err(), interceptor::Errno::ECONNREFUSED);
        expected += &format!("{NAMES}waiting\n");
        wait_until("it waits", || server.output() == expected);
        server.go_on();
    }
    server.end(&expected);
}
