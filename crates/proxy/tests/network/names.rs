//! Names, resolved by programs in many languages.

use std::fs;
use std::path::PathBuf;

use interceptor::{Destination, DestinationChoice, Errno, Host as _, Transport};
use protocol::dns::ResolvConf;

use crate::nameserver::Nameserver;
use crate::programs;
use crate::world::World;

/// By the hosts file; by the search list, first and second; an alias; one family only; as they are; what is not there;
/// what fails; more than a datagram holds.
const NAMES: &str = "db api second alias four six api.shop.internal. api.shop.internal nobody failing large 10.1.2.3";

const ANSWERS: &str = "db: 10.0.0.99\n\
    api: 10.9.0.1 fd00:9::1\n\
    second: 10.9.0.1\n\
    alias: 10.9.0.1\n\
    four: 10.9.0.1\n\
    six: fd00:9::1\n\
    api.shop.internal.: 10.9.0.1 fd00:9::1\n\
    api.shop.internal: 10.9.0.1 fd00:9::1\n\
    nobody: none\n\
    failing: again\n\
    large: 256 addresses\n\
    10.1.2.3: 10.1.2.3\n";

/// Runs a program in a session whose nameserver is at this address.
#[track_caller]
fn check(command: &str, names: &str, expected: &str) {
    let world = World::new();
    Nameserver::start(&world, "127.0.0.1");
    let session = world.session("true");
    let output = world.run(&session, &format!("{command} {names}"));
    assert_eq!(output, expected, "{command}");
}

#[track_caller]
fn check_program(program: Option<PathBuf>) {
    if let Some(program) = program {
        check(&program.display().to_string(), NAMES, ANSWERS);
    }
}

#[test]
#[ignore = "needs root"]
fn c_dynamic() {
    check_program(programs::c("names"));
}

#[test]
#[ignore = "needs root"]
fn c_static() {
    check_program(programs::c_with("names", "gcc", &["-static"]));
}

#[test]
#[ignore = "needs root"]
fn c_musl_static() {
    let Some(program) = programs::c_with("names", "musl-gcc", &["-static"]) else {
        return;
    };
    // Its resolver takes 48 addresses, from a datagram.
    let answers = ANSWERS.replace("256 addresses", "29 addresses");
    check(&program.display().to_string(), NAMES, &answers);
}

#[test]
#[ignore = "needs root"]
fn go_static() {
    let Some(program) = programs::go("names") else {
        return;
    };
    // It goes on with the search list after a failure, and then finds that there is no such name.
    let answers = ANSWERS.replace("failing: again", "failing: none");
    check(&program.display().to_string(), NAMES, &answers);
}

#[test]
#[ignore = "needs root"]
fn answers_are_those_that_the_target_itself_gets() {
    let world = World::new();
    Nameserver::start(&world, "127.0.0.1");
    let session = world.session("true");
    let programs = [
        programs::go("names"),
        programs::c_with("names", "musl-gcc", &["-static"]),
    ];
    // How much of a cut answer a nameserver sends is its own choice, and some programs take what they get.
    let names = NAMES.replace(" large", "");
    for program in programs.into_iter().flatten() {
        fs::copy(&program, world.path("/tmp/names")).unwrap();
        let natively = world.run_inside(&format!("/tmp/names {names}"));
        let command = format!("{} {names}", program.display());
        assert_eq!(world.run(&session, &command), natively, "{command}");
    }
}

#[test]
#[ignore = "needs root"]
fn python() {
    if programs::is_there("python3") {
        let script = programs::source("names.py");
        check(&format!("python3 {}", script.display()), NAMES, ANSWERS);
    }
}

#[test]
#[ignore = "needs root"]
fn node() {
    if !programs::is_there("node") {
        return;
    }
    let resolved = "A=api.shop.internal AAAA=api.shop.internal A=nobody.shop.internal AAAA=four.shop.internal \
        A=failing.shop.internal A=large.shop.internal TXT=text.shop.internal SRV=_db._tcp.shop.internal \
        CNAME=alias.shop.internal MX=api.shop.internal";
    let answers = "A=api.shop.internal: 10.9.0.1\n\
        AAAA=api.shop.internal: fd00:9::1\n\
        A=nobody.shop.internal: none\n\
        AAAA=four.shop.internal: none\n\
        A=failing.shop.internal: again\n\
        A=large.shop.internal: 256 addresses\n\
        TXT=text.shop.internal: [[\"hello\",\"there\"]]\n\
        SRV=_db._tcp.shop.internal: [{\"name\":\"api.shop.internal\",\"port\":5432,\"priority\":1,\"weight\":2}]\n\
        CNAME=alias.shop.internal: none\n\
        MX=api.shop.internal: none\n";
    let script = programs::source("names.js");
    check(
        &format!("node {}", script.display()),
        &format!("{NAMES} {resolved}"),
        &format!("{ANSWERS}{answers}"),
    );
}

#[test]
#[ignore = "needs root"]
fn java() {
    // Run from its source, by a virtual machine that has a compiler.
    if programs::is_there("javac") {
        let script = programs::source("Names.java");
        check(&format!("java {}", script.display()), NAMES, ANSWERS);
    }
}

#[test]
#[ignore = "needs root"]
fn getent() {
    check(
        "getent ahostsv4 api | head -1 | tr -s ' '; getent hosts 10.0.0.99 | tr -s ' '; echo",
        "",
        "10.9.0.1 STREAM api.shop.internal\n10.0.0.99 db.internal db\n\n",
    );
}

/// What a file of the target says of its nameservers, and where they are.
#[track_caller]
fn check_settings(resolv_conf: Option<&str>, nameserver: &str, prepare: impl FnOnce(&World)) {
    let world = World::new();
    match resolv_conf {
        Some(text) => fs::write(world.path("/etc/resolv.conf"), text).unwrap(),
        None => fs::remove_file(world.path("/etc/resolv.conf")).unwrap(),
    }
    prepare(&world);
    Nameserver::start(&world, nameserver);
    let session = world.session("true");
    let script = programs::source("names.py");
    let output = world.run(
        &session,
        &format!("python3 {} api.shop.internal", script.display()),
    );
    assert_eq!(
        output, "api.shop.internal: 10.9.0.1 fd00:9::1\n",
        "{resolv_conf:?}"
    );
}

#[test]
#[ignore = "needs root"]
fn nameservers_that_look_like_this_machine_s_are_the_target_s() {
    check_settings(Some("nameserver 127.0.0.53\n"), "127.0.0.53", |_| {});
    check_settings(Some("nameserver 127.0.0.11\n"), "127.0.0.11", |_| {});
    check_settings(Some("nameserver ::1\n"), "[::1]", |_| {});
    check_settings(Some("nameserver fd00:9::1\n"), "[fd00:9::1]", |_| {});
}

#[test]
#[ignore = "needs root"]
fn without_a_nameserver_it_is_localhost() {
    check_settings(Some("options ndots:1\n"), "127.0.0.1", |_| {});
    check_settings(None, "127.0.0.1", |_| {});
}

#[test]
#[ignore = "needs root"]
fn a_nameserver_that_is_down_or_silent_is_passed_over() {
    let two = "nameserver 127.0.0.2\nnameserver 127.0.0.1\n";
    check_settings(Some(two), "127.0.0.1", |_| {});
    let silent = std::cell::RefCell::new(None);
    check_settings(Some(two), "127.0.0.1", |world| {
        silent.replace(Some(world.udp("127.0.0.2:53")));
    });
}

#[test]
#[ignore = "needs root"]
fn no_nameserver_at_all_is_a_failure_and_not_a_missing_name() {
    let world = World::new();
    let session = world.session("true");
    let script = programs::source("names.py");
    let output = world.run(&session, &format!("python3 {} api db", script.display()));
    assert_eq!(output, "api: again\ndb: 10.0.0.99\n");
}

#[test]
#[ignore = "needs root"]
fn a_nameserver_that_comes_later_is_found() {
    let world = World::new();
    fs::write(world.path("/etc/resolv.conf"), "nameserver 192.0.2.53\n").unwrap();
    let session = world.session("true");
    fs::write(world.path("/etc/resolv.conf"), "nameserver 127.0.0.1\n").unwrap();
    Nameserver::start(&world, "127.0.0.1");
    let script = programs::source("names.py");
    let output = world.run(
        &session,
        &format!("python3 {} four.shop.internal", script.display()),
    );
    assert_eq!(output, "four.shop.internal: 10.9.0.1\n");
}

#[test]
#[ignore = "needs root"]
fn a_name_is_asked_for_once() {
    let world = World::new();
    let nameserver = Nameserver::start(&world, "127.0.0.1");
    let session = world.session("true");
    let script = programs::source("names.py");
    let one = format!(
        "python3 {} four.shop.internal. nobody.shop.internal.",
        script.display()
    );
    let output = world.run(&session, &format!("{one}; {one} & {one} & {one}; wait"));
    assert_eq!(output.lines().count(), 8, "{output}");
    // One for each family.
    assert_eq!(nameserver.asked("four.shop.internal."), 2);
    assert_eq!(nameserver.asked("nobody.shop.internal."), 2);
}

#[test]
#[ignore = "needs root"]
fn questions_as_packets() {
    let world = World::new();
    Nameserver::start(&world, "127.0.0.1");
    let session = world.session("true");
    let script = programs::source("questions.py");
    let output = world.run(&session, &format!("python3 {}", script.display()));
    assert_eq!(
        output,
        "connected True 1 False\nnot connected True 1 False ('127.0.0.1', 53)\nsendmsg True 1 ('127.0.0.1', 53)\n\
         sendmmsg 3 [1, 1, 1]\nlarge 256 cut True\nroom 4096 256 False\ntcp large 256\n\
         tcp in one go [1, 1, 256] ended True\nnonsense 1\n"
    );
}

#[test]
#[ignore = "needs root"]
fn services_of_this_machine_are_not_asked() {
    let world = World::new();
    let table = [
        ("true", DestinationChoice::Refused(Errno::ENOENT)),
        ("{dns: false}", DestinationChoice::Local),
        (
            "{outgoing: {unix_streams: [/run/]}}",
            DestinationChoice::Remote,
        ),
    ];
    for (network, expected) in table {
        let session = world.session(network);
        for path in [
            "/var/run/nscd/socket",
            "/run/systemd/resolve/io.systemd.Resolve",
        ] {
            let destination = Destination::Unix(path.into());
            let choice = session.choose_destination(Transport::Unix, &destination);
            assert_eq!(choice, expected, "{network} {path}");
        }
        let destination = Destination::Unix("/tmp/app.sock".into());
        let choice = session.choose_destination(Transport::Unix, &destination);
        assert_eq!(choice, DestinationChoice::Local, "{network}");
    }
}

#[test]
#[ignore = "needs root"]
fn nameservers_of_this_machine() {
    let world = World::new();
    let text = fs::read("/etc/resolv.conf").unwrap_or_default();
    let own = ResolvConf::parse(&text).nameservers[0];
    let table = [
        // Its own, for a program that shall see this machine's names.
        ("{dns: false}", own, DestinationChoice::Local),
        // The resolver, also where connections stay here.
        ("{outgoing: false}", own, DestinationChoice::Remote),
        (
            "{outgoing: false}",
            "127.0.0.1:53".parse().unwrap(),
            DestinationChoice::Remote,
        ),
        (
            "{outgoing: false}",
            "[::ffff:127.0.0.1]:53".parse().unwrap(),
            DestinationChoice::Remote,
        ),
        (
            "{outgoing: false}",
            "192.0.2.53:53".parse().unwrap(),
            DestinationChoice::Local,
        ),
        (
            "{outgoing: false}",
            "127.0.0.1:54".parse().unwrap(),
            DestinationChoice::Local,
        ),
    ];
    for (network, address, expected) in table {
        let session = world.session(network);
        for transport in [Transport::Tcp, Transport::Udp] {
            let destination = Destination::Internet(address);
            let choice = session.choose_destination(transport, &destination);
            assert_eq!(choice, expected, "{network} {address}");
        }
    }
}

#[test]
#[ignore = "needs root"]
fn with_names_of_this_machine_its_own_files_are_read() {
    let world = World::new();
    Nameserver::start(&world, "127.0.0.1");
    let here = fs::read_to_string("/etc/resolv.conf").unwrap();
    let session = world.session("{dns: false}");
    assert_eq!(world.run(&session, "cat /etc/resolv.conf"), here);
    let there = "nameserver 127.0.0.1\nsearch shop.internal other.internal\noptions ndots:2\n";
    for features in ["network: true", "fs: local"] {
        let session = world.session_with(features);
        assert_eq!(
            world.run(&session, "cat /etc/resolv.conf"),
            there,
            "{features}"
        );
    }
    // Files are this machine's, and names are the target's all the same.
    let session = world.session_with("fs: local");
    let script = programs::source("names.py");
    let output = world.run(&session, &format!("python3 {} api db", script.display()));
    assert_eq!(output, "api: 10.9.0.1 fd00:9::1\ndb: 10.0.0.99\n");
}
