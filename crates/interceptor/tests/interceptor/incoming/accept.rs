//! The addresses that a program sees, for all kinds of `accept`.

use std::io::{self, Read as _};

use super::{ADDRESSES, CLIENT, CLIENT6, Client, Server};
use crate::programs;
use crate::target::wait_until;

/// Connects the clients in sequence, and checks the output of the program.
#[track_caller]
fn check(function: &str, clients: &[&str], expected: &str) {
    let server = Server::python(function);
    for client in clients {
        assert_eq!(server.connect(client).exchange("hello"), "HELLO");
    }
    server.end(expected);
}

#[test]
fn blocking_socket() {
    check("blocking", &[CLIENT; 3], &ADDRESSES.repeat(3));
}

#[test]
fn nonblocking_socket() {
    let server = Server::python("nonblocking");
    // The first attempt finds no client.
    server.wait_for("EAGAIN");
    for _ in 0..3 {
        assert_eq!(server.connect(CLIENT).exchange("hello"), "HELLO");
    }
    server.end(&format!("EAGAIN\n{}EAGAIN\n", ADDRESSES.repeat(3)));
}

#[test]
fn socket_with_timeout() {
    let server = Server::python("timeout");
    server.wait_for("EAGAIN");
    assert_eq!(server.connect(CLIENT).exchange("hello"), "HELLO");
    server.end(&format!("EAGAIN\n{ADDRESSES}"));
}

#[test]
fn dual_stack_sockets() {
    let version4 = "('::ffff:203.0.113.9', 4711, 0, 0)";
    let version6 = "('2001:db8:1::9', 4712, 0, 0)";
    let server = "('::ffff:10.1.2.3', 8080, 0, 0)";
    let expected = format!("{version4} {version4} {server}\n{version6} {version6} {server}\n");
    check("dual :: 0", &[CLIENT, CLIENT6], &expected);
    check("dual :: 1", &[CLIENT, CLIENT6], &expected);
    check("dual ::1 1", &[CLIENT, CLIENT6], &expected);
}

#[test]
fn ipv6_client_on_ipv4_socket() {
    check("version4", &[CLIENT6], "True True\n");
}

#[test]
fn multipath_tcp_sockets() {
    check("multipath", &[CLIENT], ADDRESSES);
}

#[test]
fn local_clients_keep_their_addresses() {
    let server = Server::python("local_clients");
    server.wait_for("ready");
    assert_eq!(server.connect(CLIENT).exchange("hello"), "HELLO");
    server.end(&format!("{}ready\n{ADDRESSES}", "True True\n".repeat(3)));
}

#[test]
fn unusual_arguments() {
    let server = Server::python("arguments");
    let clients: Vec<Client> = (0..11).map(|_| server.connect(CLIENT)).collect();
    server.end(
        "02001267cb007109 True 16\nTrue\n02001267cb00eeee 16\nTrue\nEINVAL\nEFAULT\nEFAULT\nEINVAL\n\
         True True\nFalse True\nTrue False\n('203.0.113.9', 4711) ('10.1.2.3', 8080)\n",
    );
    drop(clients);
}

#[test]
fn closed_client_keeps_its_address() {
    let server = Server::python("hasty");
    server.wait_for("waiting");
    for index in 0..3 {
        use std::io::Write as _;
        let mut client = server.connect(&format!("203.0.113.{index}:1"));
        client.stream.write_all(b"hello").unwrap();
    }
    server.resume();
    let line = |index| format!("('203.0.113.{index}', 1) ('203.0.113.{index}', 1) b'hello' b''\n");
    server.end(&format!("waiting\n{}{}{}", line(0), line(1), line(2)));
}

#[test]
fn connection_is_kept_without_free_descriptor() {
    let server = Server::python("descriptors");
    let first = server.connect(CLIENT);
    server.wait_for("waiting");
    let client = server.connect(CLIENT);
    assert_eq!(client.exchange("hello"), "HELLO");
    server.end(&format!(
        "waiting\n{}1\nTrue\n{ADDRESSES}EAGAIN\n",
        "True EMFILE\n".repeat(3)
    ));
    drop(first);
}

#[test]
fn listener_is_shut_down_and_reused() {
    let server = Server::python("shut_down");
    let (_, _, again) = server.listener(1);
    assert_eq!(Client::connect(&again, CLIENT).exchange("hello"), "HELLO");
    server.end(&format!("EINVAL\n{ADDRESSES}"));
}

fn check_thousand(callers: &str) {
    let server = Server::python(&format!("threads 1000 {callers}"));
    let (_, _, listener) = server.listener(0);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let listener = &listener;
            scope.spawn(move || {
                for number in 0..125 {
                    let client = format!("203.0.113.{thread}:{}", 1000 + number);
                    assert_eq!(
                        Client::connect(listener, &client).exchange("hello"),
                        "HELLO"
                    );
                }
            });
        }
    });
    server.end("1000 True\n");
}

#[test]
fn thousand_connections_to_many_threads() {
    check_thousand("all");
}

/// Some threads accept without a buffer for an address, and query it later.
#[test]
fn thousand_connections_with_and_without_address() {
    check_thousand("some");
}

/// Many concurrent connections to a program that accepts them one by one.
#[test]
fn thousand_concurrent_connections() {
    let server = Server::program(&programs::c("serve"), "events");
    let clients: Vec<(String, Client)> = (0..1000)
        .map(|number| {
            let address = format!("203.0.{}.{}", number / 250, number % 250);
            let client = server.connect(&format!("{address}:1"));
            (address, client)
        })
        .collect();
    for (address, client) in clients {
        assert_eq!(client.get(), address);
    }
}

/// The sorted output of the workers.
fn lines(count: u8) -> String {
    let mut lines: Vec<String> = (0..count)
        .map(|index| format!("203.0.113.{index} True\n"))
        .collect();
    lines.sort();
    lines.concat()
}

fn check_workers(function: &str) {
    let server = Server::python(&format!("{function} 40"));
    let clients: Vec<Client> = (0..40)
        .map(|index| server.connect(&format!("203.0.113.{index}:1")))
        .collect();
    for client in clients {
        assert_eq!(client.exchange("hello"), "HELLO");
    }
    server.end(&lines(40));
}

#[test]
fn processes_share_a_socket() {
    check_workers("forked");
}

#[test]
fn processes_share_a_port() {
    check_workers("shared_port");
}

#[test]
fn passed_listener() {
    check("passed", &[CLIENT], ADDRESSES);
}

#[test]
fn killed_process_loses_no_connection_and_frees_port() {
    let server = Server::python("killed");
    server.wait_for("killed");
    assert_eq!(server.connect(CLIENT).exchange("hello"), "HELLO");
    server.end(&format!("killed\n{ADDRESSES}True\nTrue\n"));
}

#[test]
fn killed_process_resets_requeued_connection() {
    let server = Server::python("lost_worker");
    let (_, _, listener) = server.listener(0);
    let mut lost = Client::connect(&listener, CLIENT);
    server.wait_for("EMFILE");
    server.resume();
    server.listener(1);
    lost.stream.set_nonblocking(true).unwrap();
    wait_until("the connection ends", || {
        assert!(listener.is_listening());
        match lost.stream.read(&mut [0]) {
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
            Ok(count) => count == 0,
        }
    });
    assert_eq!(server.connect(CLIENT).exchange("hello"), "HELLO");
    wait_until("both are closed", || !listener.is_listening());
}

fn check_signals(wait_killable: bool, mode: &str, expected: &str) {
    let program = programs::c("serve");
    let server = Server::start_on(wait_killable, &format!("exec {} {mode}", program.display()));
    if server.supervised.wait_killable() != wait_killable {
        println!("skipped: this kernel does not support WAIT_KILLABLE_RECV");
        return;
    }
    server.wait_for("waiting");
    let client = server.connect(CLIENT);
    server.end(expected);
    drop(client);
}

#[test]
fn accept_is_restarted() {
    check_signals(
        true,
        "restart",
        "waiting\naccepted, signals 1\n203.0.113.9:4711\n",
    );
}

#[test]
fn accept_is_interrupted() {
    check_signals(
        true,
        "interrupt",
        "Interrupted system call, signals 1\nwaiting\n203.0.113.9:4711\n",
    );
}

#[test]
fn on_old_kernels_accept_is_restarted() {
    check_signals(
        false,
        "restart",
        "waiting\naccepted, signals 1\n203.0.113.9:4711\n",
    );
    check_signals(
        false,
        "interrupt",
        "Interrupted system call, signals 1\nwaiting\n203.0.113.9:4711\n",
    );
}

#[test]
fn cancelled_thread_leaves_connection_to_another() {
    check_signals(true, "cancelled", "waiting\n203.0.113.9:4711\n");
}
