//! Servers in many languages.

use super::{CLIENT, CLIENT6, Server};
use crate::programs;

/// Several requests, sequential and concurrent; the last from another client.
#[track_caller]
fn check(server: &Server, expected: &str) {
    assert_eq!(server.connect(CLIENT).get(), expected);
    let clients: Vec<_> = (0..50).map(|_| server.connect(CLIENT)).collect();
    for client in clients {
        assert_eq!(client.get(), expected);
    }
    let other = expected.replace("203.0.113.9", "198.51.100.1");
    assert_eq!(server.connect("198.51.100.1:2").get(), other);
}

#[test]
fn c_with_events() {
    check(
        &Server::program(&programs::c("serve"), "events"),
        "203.0.113.9",
    );
}

#[test]
fn python_http_server() {
    check(&Server::python("http"), "203.0.113.9");
}

#[test]
fn python_asyncio() {
    check(&Server::python("asynchronous"), "203.0.113.9");
}

#[test]
fn go_net_http() {
    let server = Server::program(&programs::go("serve"), "");
    check(&server, "203.0.113.9 10.1.2.3:8080");
}

fn script(interpreter: &str, script: &str) -> Server {
    programs::require(interpreter);
    let script = programs::source(script);
    Server::start(&format!("exec {interpreter} {}", script.display()))
}

#[test]
fn node_http() {
    check(&script("node", "serve.js"), "203.0.113.9 10.1.2.3:8080");
}

/// It is a dual-stack server, so it shows clients of both families.
#[test]
fn java_http_server() {
    programs::require("javac");
    let server = script("java", "Serve.java");
    assert_eq!(
        server.connect(CLIENT6).get(),
        "2001:db8:1:0:0:0:0:9 10.1.2.3:8080"
    );
    check(&server, "203.0.113.9 10.1.2.3:8080");
}

#[test]
fn nginx() {
    programs::require("nginx");
    let folder = tempfile::tempdir().unwrap();
    let configuration = folder.path().join("nginx.conf");
    std::fs::copy(programs::source("nginx.conf"), &configuration).unwrap();
    let prefix = folder.path().display();
    let server = Server::start(&format!("exec nginx -p '{prefix}' -c nginx.conf"));
    check(&server, "203.0.113.9 10.1.2.3:8080");
}
