//! Which connections leave from where.

use std::os::fd::AsRawFd as _;

use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, accept, bind, listen, recv,
    send, socket,
};
use tokio::io::AsyncWriteExt as _;

use crate::nameserver::Nameserver;
use crate::programs;
use crate::world::World;

/// Says who it is to everybody who connects, until the test ends.
fn greet(world: &World, listener: tokio::net::TcpListener, greeting: &'static str) {
    world.runtime.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(greeting.as_bytes()).await;
        }
    });
}

/// A world in which the same port of localhost leads to the target or to this machine, and says so. The target also
/// listens on its other addresses.
fn two_sides() -> (World, u16) {
    let world = World::new();
    Nameserver::start(&world, "127.0.0.1");
    let here = world
        .runtime
        .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
        .unwrap();
    let port = here.local_addr().unwrap().port();
    greet(&world, here, "here");
    greet(&world, world.listen(&format!("[::]:{port}")), "there");
    (world, port)
}

/// What a program reaches: one word for each address or name, with or without a port.
#[track_caller]
fn check(network: &str, addresses: &str, expected: &str) {
    let (world, port) = two_sides();
    let session = world.session(&network.replace("PORT", &port.to_string()));
    let script = programs::source("reach.py");
    let command = format!("python3 {} {port} {addresses}", script.display());
    assert_eq!(world.run(&session, &command), expected, "{network}");
}

#[test]
#[ignore = "needs root"]
fn addresses_of_both_families_and_in_every_form() {
    check(
        "true",
        "10.9.0.1 fd00:9::1 ::ffff:10.9.0.1 127.0.0.1 ::1 0.0.0.0 :: localhost api alias",
        "there there there there there there there there there there\n",
    );
    check(
        "{outgoing: {ignore_localhost: true}}",
        "10.9.0.1 127.0.0.1 0.0.0.0 ::ffff:127.0.0.1",
        "there here here here\n",
    );
    check("{outgoing: false}", "127.0.0.1 0.0.0.0", "here here\n");
}

#[test]
#[ignore = "needs root"]
fn filters_by_address_subnet_and_port() {
    for (filter, expected) in [
        ("local: ['127.0.0.1']", "here here there\n"),
        ("local: ['127.0.0.0/8:PORT']", "here here there\n"),
        ("local: ['127.0.0.0/8:1']", "there there there\n"),
        ("local: [localhost]", "here here there\n"),
        ("local: ['udp://127.0.0.1']", "there there there\n"),
        (
            "remote: ['10.9.0.0/16', 'fd00:9::/32']",
            "here here there\n",
        ),
        ("remote: [':PORT']", "there there there\n"),
    ] {
        let network = format!("{{outgoing: {{filter: {{{filter}}}}}}}");
        check(&network, "127.0.0.1 0.0.0.0 10.9.0.1", expected);
    }
}

#[test]
#[ignore = "needs root"]
fn filters_by_name() {
    // Addresses of the target that are not this machine's: staying here, they are not reached.
    for (filter, addresses, expected) in [
        (
            "remote: ['api.shop.internal']",
            "api.shop.internal",
            "there\n",
        ),
        ("remote: [api]", "api", "there\n"),
        ("remote: ['*.shop.internal']", "api second", "there there\n"),
        ("remote: ['*.shop.internal']", "second", "not reached\n"),
        // Every name of a chain of aliases leads to the address.
        ("remote: [alias]", "alias", "there\n"),
        ("remote: ['real.*']", "alias", "there\n"),
        ("remote: ['api:PORT']", "api", "there\n"),
        ("remote: ['api:1']", "api", "not reached\n"),
        ("local: ['*.shop.internal']", "api", "not reached\n"),
        ("local: ['*.other.internal']", "api", "there\n"),
        // The application knows the address from elsewhere.
        ("remote: [api]", "10.9.0.1 fd00:9::1", "there there\n"),
        ("remote: ['*.shop.internal']", "10.9.0.1", "not reached\n"),
    ] {
        let network = format!("{{outgoing: {{filter: {{{filter}}}}}}}");
        check(&network, addresses, expected);
    }
}

#[test]
#[ignore = "needs root"]
fn names_of_the_hosts_file_count_in_filters() {
    let (world, port) = two_sides();
    std::fs::write(
        world.path("/etc/hosts"),
        "127.0.0.1 localhost\n10.9.0.1 Checkout.internal checkout\n",
    )
    .unwrap();
    let script = programs::source("reach.py");
    for (filter, expected) in [
        ("remote: [checkout.internal]", "there\n"),
        ("remote: ['check*']", "there\n"),
        ("local: [checkout]", "not reached\n"),
    ] {
        let session = world.session(&format!("{{outgoing: {{filter: {{{filter}}}}}}}"));
        let command = format!("python3 {} {port} checkout", script.display());
        assert_eq!(world.run(&session, &command), expected, "{filter}");
    }
}

#[test]
#[ignore = "needs root"]
fn the_application_s_own_listeners_are_always_reached() {
    let world = World::new();
    Nameserver::start(&world, "127.0.0.1");
    // Whoever asks for the target's traffic keeps its ports open for a moment after a listener is closed.
    let session = world.session("{incoming: false}");
    let script = programs::source("own.py");
    let output = world.run(&session, &format!("python3 {}", script.display()));
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
    let world = World::new();
    Nameserver::start(&world, "127.0.0.1");
    let path = world.path("/run/shop.sock");
    let listener = {
        let _in = world.runtime.enter();
        tokio::net::UnixListener::bind(&path).unwrap()
    };
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    world.runtime.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"there").await;
        }
    });
    let ask = "python3 -c 'import errno, socket, sys
for path in sys.argv[1:]:
    made = socket.socket(socket.AF_UNIX)
    error = made.connect_ex(path)
    print(errno.errorcode[error] if error else made.recv(9))' /run/shop.sock /run/nobody.sock";
    let session = world.session("{outgoing: {unix_streams: ['^/run/shop', nobody]}}");
    assert_eq!(world.run(&session, ask), "b'there'\nENOENT\n");
    let session = world.session("true");
    assert_eq!(world.run(&session, ask), "ENOENT\nENOENT\n");
}

#[test]
#[ignore = "needs root"]
fn packets_of_unix_sockets_keep_their_ends() {
    let world = World::new();
    Nameserver::start(&world, "127.0.0.1");
    let path = world.path("/run/packets.sock");
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
    // Says how long each packet is, and at their end how many there were.
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
    let ask = "python3 -c 'import errno, socket
made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
made.connect(\"/run/packets.sock\")
for length in [1, 2, 100000]:
    made.send(b\"x\" * length)
print(made.recv(99), made.recv(99), made.recv(99))
made.shutdown(socket.SHUT_WR)
print(made.recv(99), made.recv(99))
made = socket.socket(socket.AF_UNIX)
print(errno.errorcode[made.connect_ex(\"/run/packets.sock\")])'";
    let session = world.session("{outgoing: {unix_streams: ['^/run/packets']}}");
    assert_eq!(
        world.run(&session, ask),
        "b'1' b'2' b'100000'\nb'3 packets' b''\nEPROTOTYPE\n"
    );
    peer.join().unwrap();
}

#[test]
#[ignore = "needs root"]
fn names_of_this_machine_by_filter() {
    let world = World::new();
    Nameserver::start(&world, "127.0.0.1");
    // This machine's own hosts file says what nobody else does.
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let script = programs::source("names.py");
    let hosts = std::fs::read_to_string("/etc/hosts").unwrap();
    let known = hosts.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let address = words
            .next()
            .filter(|word| word.parse::<std::net::Ipv4Addr>().is_ok())?;
        let found = words.find(|word| *word != "localhost" && !word.starts_with('#'))?;
        Some((found.to_owned(), address.to_owned()))
    });
    let Some((known, address)) = known else {
        eprintln!(
            "skipped: the hosts file of {} has no name to ask for",
            name.trim()
        );
        return;
    };
    let session = world.session(&format!("{{dns: {{filter: {{local: ['{known}']}}}}}}"));
    let command = format!("python3 {} {known}. four", script.display());
    let output = world.run(&session, &command);
    assert_eq!(output, format!("{known}.: {address}\nfour: 10.9.0.1\n"));
}
