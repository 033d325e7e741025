//! DNS names, resolved by programs in many languages.

use std::fs;
use std::path::Path;

use interceptor::{Destination, DestinationChoice, Errno, Host as _, Transport};
use protocol::dns::ResolvConf;

use crate::environment::Environment;
use crate::nameserver::Nameserver;
use crate::programs;

/// In the hosts file; in the first and second domain of the search list; an alias; with one address family only; fully
/// qualified; missing; failing; with more addresses than fit into a datagram; an address.
const NAMES: &str = "db api second alias four six api.shop.internal. api.shop.internal missing failing large 10.1.2.3";

const EXPECTED: &str = "db: 10.0.0.99\n\
    api: 10.9.0.1 fd00:9::1\n\
    second: 10.9.0.1\n\
    alias: 10.9.0.1\n\
    four: 10.9.0.1\n\
    six: fd00:9::1\n\
    api.shop.internal.: 10.9.0.1 fd00:9::1\n\
    api.shop.internal: 10.9.0.1 fd00:9::1\n\
    missing: none\n\
    failing: again\n\
    large: 256 addresses\n\
    10.1.2.3: 10.1.2.3\n";

/// Runs a program that resolves names.
#[track_caller]
fn check(command: &str, names: &str, expected: &str) {
    let env = Environment::new();
    Nameserver::start(&env, "127.0.0.1");
    let session = env.session("true");
    let output = env.run(&session, &format!("{command} {names}"));
    assert_eq!(output, expected, "{command}");
}

#[track_caller]
fn check_program(program: &Path) {
    check(&program.display().to_string(), NAMES, EXPECTED);
}

#[test]
#[ignore = "needs root"]
fn c_dynamic() {
    check_program(&programs::c("resolve"));
}

#[test]
#[ignore = "needs root"]
fn c_static() {
    check_program(&programs::c_with("resolve", "gcc", &["-static"]));
}

#[test]
#[ignore = "needs root"]
fn c_musl_static() {
    let program = programs::c_with("resolve", "musl-gcc", &["-static"]);
    // Its resolver uses the addresses that fit into a datagram, and at most 48.
    let expected = EXPECTED.replace("256 addresses", "29 addresses");
    check(&program.display().to_string(), NAMES, &expected);
}

#[test]
#[ignore = "needs root"]
fn go_static() {
    let program = programs::go("resolve");
    // It continues with the search list after a failure, and then gets the response that the name does not exist.
    let expected = EXPECTED.replace("failing: again", "failing: none");
    check(&program.display().to_string(), NAMES, &expected);
}

#[test]
#[ignore = "needs root"]
fn programs_get_the_same_results_as_at_the_target() {
    let env = Environment::new();
    Nameserver::start(&env, "127.0.0.1");
    let session = env.session("true");
    let programs = [
        programs::go("resolve"),
        programs::c_with("resolve", "musl-gcc", &["-static"]),
    ];
    // How many records a truncated response contains depends on the nameserver, and some programs use only these.
    let names = NAMES.replace(" large", "");
    for program in programs {
        fs::copy(&program, env.path("/tmp/resolve")).unwrap();
        let natively = env.run_inside(&format!("/tmp/resolve {names}"));
        let command = format!("{} {names}", program.display());
        assert_eq!(env.run(&session, &command), natively, "{command}");
    }
}

#[test]
#[ignore = "needs root"]
fn python() {
    programs::require("python3");
    let script = programs::source("resolve.py");
    check(&format!("python3 {}", script.display()), NAMES, EXPECTED);
}

#[test]
#[ignore = "needs root"]
fn node() {
    programs::require("node");
    let resolved = "A=api.shop.internal AAAA=api.shop.internal A=missing.shop.internal AAAA=four.shop.internal \
        A=failing.shop.internal A=large.shop.internal TXT=text.shop.internal SRV=_db._tcp.shop.internal \
        CNAME=alias.shop.internal MX=api.shop.internal";
    let expected = "A=api.shop.internal: 10.9.0.1\n\
        AAAA=api.shop.internal: fd00:9::1\n\
        A=missing.shop.internal: none\n\
        AAAA=four.shop.internal: none\n\
        A=failing.shop.internal: again\n\
        A=large.shop.internal: 256 addresses\n\
        TXT=text.shop.internal: [[\"hello\",\"there\"]]\n\
        SRV=_db._tcp.shop.internal: [{\"name\":\"api.shop.internal\",\"port\":5432,\"priority\":1,\"weight\":2}]\n\
        CNAME=alias.shop.internal: none\n\
        MX=api.shop.internal: none\n";
    let script = programs::source("resolve.js");
    check(
        &format!("node {}", script.display()),
        &format!("{NAMES} {resolved}"),
        &format!("{EXPECTED}{expected}"),
    );
}

#[test]
#[ignore = "needs root"]
fn java() {
    // It runs from its source, which needs a JDK.
    programs::require("javac");
    let script = programs::source("Resolve.java");
    check(&format!("java {}", script.display()), NAMES, EXPECTED);
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

/// Resolves a name with this `resolv.conf` at the target, and a nameserver at this address.
#[track_caller]
fn check_settings(resolv_conf: Option<&str>, nameserver: &str, prepare: impl FnOnce(&Environment)) {
    let env = Environment::new();
    match resolv_conf {
        Some(text) => fs::write(env.path("/etc/resolv.conf"), text).unwrap(),
        None => fs::remove_file(env.path("/etc/resolv.conf")).unwrap(),
    }
    prepare(&env);
    Nameserver::start(&env, nameserver);
    let session = env.session("true");
    let script = programs::source("resolve.py");
    let output = env.run(
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
fn loopback_nameservers_are_those_of_the_target() {
    check_settings(Some("nameserver 127.0.0.53\n"), "127.0.0.53", |_| {});
    check_settings(Some("nameserver 127.0.0.11\n"), "127.0.0.11", |_| {});
    check_settings(Some("nameserver ::1\n"), "[::1]", |_| {});
    check_settings(Some("nameserver fd00:9::1\n"), "[fd00:9::1]", |_| {});
}

#[test]
#[ignore = "needs root"]
fn the_default_nameserver_is_localhost() {
    check_settings(Some("options ndots:1\n"), "127.0.0.1", |_| {});
    check_settings(None, "127.0.0.1", |_| {});
}

#[test]
#[ignore = "needs root"]
fn a_nameserver_that_is_down_or_does_not_respond_is_skipped() {
    let two = "nameserver 127.0.0.2\nnameserver 127.0.0.1\n";
    check_settings(Some(two), "127.0.0.1", |_| {});
    let silent = std::cell::RefCell::new(None);
    check_settings(Some(two), "127.0.0.1", |env| {
        silent.replace(Some(env.udp("127.0.0.2:53")));
    });
}

#[test]
#[ignore = "needs root"]
fn without_a_nameserver_resolution_fails_temporarily() {
    let env = Environment::new();
    let session = env.session("true");
    let script = programs::source("resolve.py");
    let output = env.run(&session, &format!("python3 {} api db", script.display()));
    assert_eq!(output, "api: again\ndb: 10.0.0.99\n");
}

#[test]
#[ignore = "needs root"]
fn changed_nameserver_settings_are_detected() {
    let env = Environment::new();
    fs::write(env.path("/etc/resolv.conf"), "nameserver 192.0.2.53\n").unwrap();
    let session = env.session("true");
    fs::write(env.path("/etc/resolv.conf"), "nameserver 127.0.0.1\n").unwrap();
    Nameserver::start(&env, "127.0.0.1");
    let script = programs::source("resolve.py");
    let output = env.run(
        &session,
        &format!("python3 {} four.shop.internal", script.display()),
    );
    assert_eq!(output, "four.shop.internal: 10.9.0.1\n");
}

#[test]
#[ignore = "needs root"]
fn responses_are_cached() {
    let env = Environment::new();
    let nameserver = Nameserver::start(&env, "127.0.0.1");
    let session = env.session("true");
    let script = programs::source("resolve.py");
    let one = format!(
        "python3 {} four.shop.internal. missing.shop.internal.",
        script.display()
    );
    let output = env.run(&session, &format!("{one}; {one} & {one} & {one}; wait"));
    assert_eq!(output.lines().count(), 8, "{output}");
    // One query for each address family.
    assert_eq!(nameserver.query_count("four.shop.internal."), 2);
    assert_eq!(nameserver.query_count("missing.shop.internal."), 2);
}

#[test]
#[ignore = "needs root"]
fn queries_sent_with_all_socket_calls() {
    let env = Environment::new();
    Nameserver::start(&env, "127.0.0.1");
    let session = env.session("true");
    let script = programs::source("dns_queries.py");
    let output = env.run(&session, &format!("python3 {}", script.display()));
    assert_eq!(
        output,
        "connected True 1 False\nnot connected True 1 False ('127.0.0.1', 53)\nsendmsg True 1 ('127.0.0.1', 53)\n\
         sendmmsg 3 [1, 1, 1]\nlarge 256 truncated True\nmax payload 8192 256 False\ntcp large 256\n\
         tcp in one go [1, 1, 256] ended True\nmalformed 1\n"
    );
}

#[test]
#[ignore = "needs root"]
fn local_name_services_are_hidden() {
    let env = Environment::new();
    let table = [
        ("true", DestinationChoice::Refused(Errno::ENOENT)),
        ("{dns: false}", DestinationChoice::Local),
        (
            "{outgoing: {unix_streams: [/run/]}}",
            DestinationChoice::Remote,
        ),
    ];
    for (network, expected) in table {
        let session = env.session(network);
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
fn local_nameservers() {
    let env = Environment::new();
    let text = fs::read("/etc/resolv.conf").unwrap_or_default();
    let own = ResolvConf::parse(&text).nameservers[0];
    let table = [
        // With local DNS, the local nameserver.
        ("{dns: false}", own, DestinationChoice::Local),
        // With remote DNS, the resolver, even if outgoing connections are local.
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
        let session = env.session(network);
        for transport in [Transport::Tcp, Transport::Udp] {
            let destination = Destination::Internet(address);
            let choice = session.choose_destination(transport, &destination);
            assert_eq!(choice, expected, "{network} {address}");
        }
    }
}

#[test]
#[ignore = "needs root"]
fn dns_files_follow_the_dns_setting() {
    let env = Environment::new();
    Nameserver::start(&env, "127.0.0.1");
    let local = fs::read_to_string("/etc/resolv.conf").unwrap();
    let session = env.session("{dns: false}");
    assert_eq!(env.run(&session, "cat /etc/resolv.conf"), local);
    let at_target = "nameserver 127.0.0.1\nsearch shop.internal other.internal\noptions ndots:2\n";
    for features in ["network: true", "fs: local"] {
        let session = env.session_with(features);
        assert_eq!(
            env.run(&session, "cat /etc/resolv.conf"),
            at_target,
            "{features}"
        );
    }
    // With local files, DNS is still remote.
    let session = env.session_with("fs: local");
    let script = programs::source("resolve.py");
    let output = env.run(&session, &format!("python3 {} api db", script.display()));
    assert_eq!(output, "api: 10.9.0.1 fd00:9::1\ndb: 10.0.0.99\n");
}
