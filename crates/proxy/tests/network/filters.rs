//! Which connections are remote, and which local.

use std::os::fd::AsRawFd as _;

use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, accept, bind, listen, recv,
    send, socket,
};
use tokio::io::AsyncWriteExt as _;

use crate::environment::Environment;
use crate::nameserver::Nameserver;
use crate::programs;

/// Sends a greeting to every client until the test ends.
fn serve_greeting(env: &Environment, listener: tokio::net::TcpListener, greeting: &'static str) {
    env.runtime.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(greeting.as_bytes()).await;
        }
    });
}

/// Servers at the target and on this machine, which listen on the same port of localhost and send where they are. The
/// target also listens on its other addresses.
fn both_sides() -> (Environment, u16) {
    let env = Environment::new();
    Nameserver::start(&env, "127.0.0.1");
    let local = env
        .runtime
        .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
        .unwrap();
    let port = local.local_addr().unwrap().port();
    serve_greeting(&env, local, "local");
    serve_greeting(&env, env.listen(&format!("[::]:{port}")), "target");
    (env, port)
}

/// Connects to each address or name, and compares the greetings.
#[track_caller]
fn check_connections(network: &str, addresses: &str, expected: &str) {
    let (env, port) = both_sides();
    let session = env.session(&network.replace("PORT", &port.to_string()));
    let script = programs::source("connect.py");
    let command = format!("python3 {} {port} {addresses}", script.display());
    assert_eq!(env.run(&session, &command), expected, "{network}");
}

#[test]
#[ignore = "needs root"]
fn addresses_of_both_families_and_in_every_form() {
    check_connections(
        "true",
        "10.9.0.1 fd00:9::1 ::ffff:10.9.0.1 127.0.0.1 ::1 0.0.0.0 :: localhost api alias",
        "target target target target target target target target target target\n",
    );
    check_connections(
        "{outgoing: {ignore_localhost: true}}",
        "10.9.0.1 127.0.0.1 0.0.0.0 ::ffff:127.0.0.1",
        "target local local local\n",
    );
    check_connections("{outgoing: false}", "127.0.0.1 0.0.0.0", "local local\n");
}

#[test]
#[ignore = "needs root"]
fn filters_by_address_subnet_and_port() {
    for (filter, expected) in [
        ("local: ['127.0.0.1']", "local local target\n"),
        ("local: ['127.0.0.0/8:PORT']", "local local target\n"),
        ("local: ['127.0.0.0/8:1']", "target target target\n"),
        ("local: [localhost]", "local local target\n"),
        ("local: ['udp://127.0.0.1']", "target target target\n"),
        (
            "remote: ['10.9.0.0/16', 'fd00:9::/32']",
            "local local target\n",
        ),
        ("remote: [':PORT']", "target target target\n"),
    ] {
        let network = format!("{{outgoing: {{filter: {{{filter}}}}}}}");
        check_connections(&network, "127.0.0.1 0.0.0.0 10.9.0.1", expected);
    }
}

#[test]
#[ignore = "needs root"]
fn filters_by_name() {
    // The addresses exist only at the target, so a local connection fails.
    for (filter, addresses, expected) in [
        (
            "remote: ['api.shop.internal']",
            "api.shop.internal",
            "target\n",
        ),
        ("remote: [api]", "api", "target\n"),
        (
            "remote: ['*.shop.internal']",
            "api second",
            "target target\n",
        ),
        ("remote: ['*.shop.internal']", "second", "not reached\n"),
        // Every name of a chain of aliases matches.
        ("remote: [alias]", "alias", "target\n"),
        ("remote: ['real.*']", "alias", "target\n"),
        ("remote: ['api:PORT']", "api", "target\n"),
        ("remote: ['api:1']", "api", "not reached\n"),
        ("local: ['*.shop.internal']", "api", "not reached\n"),
        ("local: ['*.other.internal']", "api", "target\n"),
        // The application connects to an address that it has not resolved.
        ("remote: [api]", "10.9.0.1 fd00:9::1", "target target\n"),
        ("remote: ['*.shop.internal']", "10.9.0.1", "not reached\n"),
    ] {
        let network = format!("{{outgoing: {{filter: {{{filter}}}}}}}");
        check_connections(&network, addresses, expected);
    }
}

#[test]
#[ignore = "needs root"]
fn filters_match_names_in_the_hosts_file() {
    let (env, port) = both_sides();
    std::fs::write(
        env.path("/etc/hosts"),
        "127.0.0.1 localhost\n10.9.0.1 Checkout.internal checkout\n",
    )
    .unwrap();
    let script = programs::source("connect.py");
    for (filter, expected) in [
        ("remote: [checkout.internal]", "target\n"),
        ("remote: ['check*']", "target\n"),
        ("local: [checkout]", "not reached\n"),
    ] {
        let session = env.session(&format!("{{outgoing: {{filter: {{{filter}}}}}}}"));
        let command = format!("python3 {} {port} checkout", script.display());
        assert_eq!(env.run(&session, &command), expected, "{filter}");
    }
}

#[test]
#[ignore = "needs root"]
fn connections_to_own_listeners_are_local() {
    let env = Environment::new();
    Nameserver::start(&env, "127.0.0.1");
    // With incoming traffic, a port stays open for a moment after its listener is closed.
    let session = env.session("{incoming: false}");
    let script = programs::source("own_listeners.py");
    let output = env.run(&session, &format!("python3 {}", script.display()));
    assert_eq!(
        output,
        "127.0.0.1 reached\n0.0.0.0 reached\nlocalhost reached\nby a child reached\n\
         ::1 reached\nclosed ECONNREFUSED\nother port ECONNREFUSED\n\
         datagrams b'ping' b'pong'\ndatagrams6 b'ping' b'pong'\n"
    );
}

#[test]
#[ignore = "needs root"]
fn unix_sockets_by_pattern() {
    let env = Environment::new();
    Nameserver::start(&env, "127.0.0.1");
    let path = env.path("/run/shop.sock");
    let listener = {
        let _in = env.runtime.enter();
        tokio::net::UnixListener::bind(&path).unwrap()
    };
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    env.runtime.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"target").await;
        }
    });
    let connect_script = "python3 -c 'import errno, socket, sys
for path in sys.argv[1:]:
    sock = socket.socket(socket.AF_UNIX)
    error = sock.connect_ex(path)
    print(errno.errorcode[error] if error else sock.recv(9))' /run/shop.sock /run/missing.sock";
    let session = env.session("{outgoing: {unix_streams: ['^/run/shop', missing]}}");
    assert_eq!(env.run(&session, connect_script), "b'target'\nENOENT\n");
    let session = env.session("true");
    assert_eq!(env.run(&session, connect_script), "ENOENT\nENOENT\n");
}

#[test]
#[ignore = "needs root"]
fn unix_packets_keep_their_boundaries() {
    let env = Environment::new();
    Nameserver::start(&env, "127.0.0.1");
    let path = env.path("/run/packets.sock");
    let listener = socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::empty(),
        None,
    );
    let listener = listener.unwrap();
    bind(listener.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    listen(&listener, Backlog::new(4).unwrap()).unwrap();
    // Sends the length of each packet, and at the end their number.
    let peer = std::thread::spawn(move || {
        let peer = accept(listener.as_raw_fd()).unwrap();
        let mut buffer = vec![0; 300_000];
        let mut packets = 0;
        let send = |text: String| send(peer, text.as_bytes(), MsgFlags::empty()).unwrap();
        loop {
            match recv(peer, &mut buffer, MsgFlags::empty()).unwrap() {
                0 => break,
                count => send(count.to_string()),
            };
            packets += 1;
        }
        send(format!("{packets} packets"));
        nix::unistd::close(peer).unwrap();
    });
    let connect_script = "python3 -c 'import errno, socket
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(\"/run/packets.sock\")
for length in [1, 2, 100000]:
    sock.send(b\"x\" * length)
print(sock.recv(99), sock.recv(99), sock.recv(99))
sock.shutdown(socket.SHUT_WR)
print(sock.recv(99), sock.recv(99))
sock = socket.socket(socket.AF_UNIX)
print(errno.errorcode[sock.connect_ex(\"/run/packets.sock\")])'";
    let session = env.session("{outgoing: {unix_streams: ['^/run/packets']}}");
    assert_eq!(
        env.run(&session, connect_script),
        "b'1' b'2' b'100000'\nb'3 packets' b''\nEPROTOTYPE\n"
    );
    peer.join().unwrap();
}

#[test]
#[ignore = "needs root"]
fn filters_for_local_dns() {
    let env = Environment::new();
    Nameserver::start(&env, "127.0.0.1");
    // Only this machine's own hosts file contains the name.
    let script = programs::source("resolve.py");
    let hosts = std::fs::read_to_string("/etc/hosts").unwrap();
    let host_name = hosts.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let address = words
            .next()
            .filter(|word| word.parse::<std::net::Ipv4Addr>().is_ok())?;
        let found = words.find(|word| *word != "localhost" && !word.starts_with('#'))?;
        Some((found.to_owned(), address.to_owned()))
    });
    let (host_name, address) =
        host_name.unwrap_or_else(|| ("localhost".to_owned(), "127.0.0.1".to_owned()));
    let session = env.session(&format!("{{dns: {{filter: {{local: ['{host_name}']}}}}}}"));
    let command = format!("python3 {} {host_name}. four", script.display());
    let output = env.run(&session, &command);
    assert_eq!(output, format!("{host_name}.: {address}\nfour: 10.9.0.1\n"));
}
