//! What a program sees of its clients, in every way to accept them.

use std::io::{self, Read as _};

use super::{CLIENT, CLIENT6, Client, NAMES, Server};
use crate::programs;
use crate::target::wait_until;

/// Clients one after the other, and what the program says at its end.
#[track_caller]
fn check(function: &str, clients: &[&str], expected: &str) {
    let Some(server) = Server::python(function) else {
        return;
    };
    for client in clients {
        assert_eq!(server.connect(client).ask("hello"), "HELLO");
    }
    server.end(expected);
}

#[test]
fn a_socket_that_waits() {
    check("blocking", &[CLIENT; 3], &NAMES.repeat(3));
}

#[test]
fn a_socket_that_does_not_wait() {
    let Some(server) = Server::python("nonblocking") else {
        return;
    };
    // The first attempt finds nobody.
    server.wait_for("EAGAIN");
    for _ in 0..3 {
        assert_eq!(server.connect(CLIENT).ask("hello"), "HELLO");
    }
    server.end(&format!("EAGAIN\n{}EAGAIN\n", NAMES.repeat(3)));
}

#[test]
fn a_socket_that_waits_for_a_while() {
    let Some(server) = Server::python("timeout") else {
        return;
    };
    server.wait_for("EAGAIN");
    assert_eq!(server.connect(CLIENT).ask("hello"), "HELLO");
    server.end(&format!("EAGAIN\n{NAMES}"));
}

#[test]
fn sockets_for_both_families() {
    let version4 = "('::ffff:203.0.113.9', 4711, 0, 0)";
    let version6 = "('2001:db8:1::9', 4712, 0, 0)";
    let server = "('::ffff:10.1.2.3', 8080, 0, 0)";
    let expected = format!("{version4} {version4} {server}\n{version6} {version6} {server}\n");
    check("dual :: 0", &[CLIENT, CLIENT6], &expected);
    check("dual :: 1", &[CLIENT, CLIENT6], &expected);
    check("dual ::1 1", &[CLIENT, CLIENT6], &expected);
}

#[test]
fn what_has_no_name_in_a_socket_of_version_4() {
    check("version4", &[CLIENT6], "True True\n");
}

#[test]
fn sockets_of_multipath_tcp() {
    check("multipath", &[CLIENT], NAMES);
}

#[test]
fn clients_of_this_machine_keep_their_addresses() {
    let Some(server) = Server::python("local_clients") else {
        return;
    };
    server.wait_for("ready");
    assert_eq!(server.connect(CLIENT).ask("hello"), "HELLO");
    server.end(&format!("{}ready\n{NAMES}", "True True\n".repeat(3)));
}

#[test]
fn unusual_arguments() {
    let Some(server) = Server::python("arguments") else {
        return;
    };
    let clients: Vec<Client> = (0..11).map(|_| server.connect(CLIENT)).collect();
    server.end(
        "02001267cb007109 True 16\nTrue\n02001267cb00eeee 16\nTrue\nEINVAL\nEFAULT\nEFAULT\nEINVAL\n\
         True True\nFalse True\nTrue False\n('203.0.113.9', 4711) ('10.1.2.3', 8080)\n",
    );
    drop(clients);
}

#[test]
fn a_client_that_is_gone_is_still_known() {
    let Some(server) = Server::python("hasty") else {
        return;
    };
    server.wait_for("waiting");
    for index in 0..3 {
        use std::io::Write as _;
        let mut client = server.connect(&format!("203.0.113.{index}:1"));
        client.stream.write_all(b"hello").unwrap();
    }
    server.go_on();
    let line = |index| format!("('203.0.113.{index}', 1) ('203.0.113.{index}', 1) b'hello' b''\n");
    server.end(&format!("waiting\n{}{}{}", line(0), line(1), line(2)));
}

#[test]
fn without_a_free_descriptor_the_connection_waits() {
    let Some(server) = Server::python("descriptors") else {
        return;
    };
    let first = server.connect(CLIENT);
    server.wait_for("waiting");
    let client = server.connect(CLIENT);
    assert_eq!(client.ask("hello"), "HELLO");
    server.end(&format!(
        "waiting\n{}1\nTrue\n{NAMES}EAGAIN\n",
        "True EMFILE\n".repeat(3)
    ));
    drop(first);
}

#[test]
fn a_listener_that_is_shut_down_and_listens_again() {
    let Some(server) = Server::python("shut_down") else {
        return;
    };
    let (_, _, again) = server.listener(1);
    assert_eq!(Client::deliver(&again, CLIENT).ask("hello"), "HELLO");
    server.end(&format!("EINVAL\n{NAMES}"));
}

fn check_thousand(who_asks: &str) {
    let Some(server) = Server::python(&format!("threads 1000 {who_asks}")) else {
        return;
    };
    let (_, _, listener) = server.listener(0);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let listener = &listener;
            scope.spawn(move || {
                for number in 0..125 {
                    let client = format!("203.0.113.{thread}:{}", 1000 + number);
                    assert_eq!(Client::deliver(listener, &client).ask("hello"), "HELLO");
                }
            });
        }
    });
    server.end("1000 True\n");
}

#[test]
fn a_thousand_connections_to_many_threads() {
    check_thousand("all");
}

/// Some accept without room for an address, and ask later.
#[test]
fn a_thousand_connections_to_threads_that_accept_in_different_ways() {
    check_thousand("some");
}

/// Many at once, while the program takes one after the other.
#[test]
fn a_thousand_connections_at_once() {
    let Some(server) = Server::program(programs::c("serve"), "events") else {
        return;
    };
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

/// Lines of workers, in order.
fn lines(count: u8) -> String {
    let mut lines: Vec<String> = (0..count)
        .map(|index| format!("203.0.113.{index} True\n"))
        .collect();
    lines.sort();
    lines.concat()
}

fn check_workers(function: &str) {
    let Some(server) = Server::python(&format!("{function} 40")) else {
        return;
    };
    let clients: Vec<Client> = (0..40)
        .map(|index| server.connect(&format!("203.0.113.{index}:1")))
        .collect();
    for client in clients {
        assert_eq!(client.ask("hello"), "HELLO");
    }
    server.end(&lines(40));
}

#[test]
fn processes_that_share_a_socket() {
    check_workers("forked");
}

#[test]
fn processes_that_share_a_port() {
    check_workers("shared_port");
}

#[test]
fn a_listener_that_was_passed_on() {
    check("passed", &[CLIENT], NAMES);
}

#[test]
fn who_is_killed_takes_no_connection_and_no_port_along() {
    let Some(server) = Server::python("killed") else {
        return;
    };
    server.wait_for("killed");
    assert_eq!(server.connect(CLIENT).ask("hello"), "HELLO");
    server.end(&format!("killed\n{NAMES}True\nTrue\n"));
}

#[test]
fn who_is_killed_takes_along_what_came_back_to_its_socket() {
    let Some(server) = Server::python("lost_worker") else {
        return;
    };
    let (_, _, listener) = server.listener(0);
    let mut lost = Client::deliver(&listener, CLIENT);
    server.wait_for("EMFILE");
    server.go_on();
    server.listener(1);
    lost.stream.set_nonblocking(true).unwrap();
    wait_until("the connection ends", || {
        assert!(listener.is_there());
        match lost.stream.read(&mut [0]) {
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
            Ok(count) => count == 0,
        }
    });
    assert_eq!(server.connect(CLIENT).ask("hello"), "HELLO");
    wait_until("both are closed", || !listener.is_there());
}

fn check_signals(signals_wait: bool, manner: &str, expected: &str) {
    let Some(program) = programs::c("serve") else {
        return;
    };
    let server = Server::start_on(
        signals_wait,
        &format!("exec {} {manner}", program.display()),
    );
    if server.supervised.signals_wait() != signals_wait {
        println!("skipped: signals do not wait for answers on this kernel");
        return;
    }
    server.wait_for("waiting");
    let client = server.connect(CLIENT);
    server.end(expected);
    drop(client);
}

#[test]
fn accepting_is_restarted() {
    check_signals(
        true,
        "restart",
        "waiting\naccepted, signals 1\n203.0.113.9:4711\n",
    );
}

#[test]
fn accepting_is_interrupted() {
    check_signals(
        true,
        "interrupt",
        "Interrupted system call, signals 1\nwaiting\n203.0.113.9:4711\n",
    );
}

#[test]
fn on_old_kernels_accepting_is_restarted() {
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
fn a_thread_that_ends_while_it_waits_leaves_the_connection_to_another() {
    check_signals(true, "cancelled", "waiting\n203.0.113.9:4711\n");
}
