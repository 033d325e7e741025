//! Unusual things that programs do to sockets, and many of them.

use crate::outgoing::check_program;

fn check(name: &str, expected: &str) {
    check_program("sockets.py", name, expected);
}

#[test]
fn an_edge_tells_of_the_connection() {
    check(
        "edge_triggered",
        "EINPROGRESS\nevents before []\nwaiting\nwritable True\nerror 0 0\n0 EISCONN\nb'EDGE'\n",
    );
}

#[test]
fn send_buffers_are_given_back() {
    check("buffers", &"ECONNREFUSED True\n0 True\nHELLO\n".repeat(2));
}

#[test]
#[ignore = "needs root"]
fn a_device_of_this_machine_does_not_keep_from_the_target() {
    check("bound_to_device", "HELLO\nEINPROGRESS\nHELLO\nHELLO\n");
}

#[test]
fn an_association_is_dissolved() {
    check(
        "unspecified",
        &format!(
            "EINPROGRESS\ndissolved 0 True\nEINPROGRESS\nHELLO\nwaiting\n{}('198.51.100.7', 7)\n\
             b'ONE' ('198.51.100.7', 7)\ndissolved 0 ENOTCONN\n3 (b'TWO', ('198.51.100.7', 7))\n",
            "HELLO\n".repeat(20)
        ),
    );
}

#[test]
fn sockets_are_known_wherever_they_are_passed() {
    check(
        "passed",
        "('198.51.100.7', 7)\nPASSED\n('198.51.100.7', 7)\nDUPLICATED\n",
    );
}

#[test]
fn sockets_are_shared_by_processes() {
    check(
        "forked",
        "('198.51.100.7', 7)\nHELLO\nEINPROGRESS\nwaiting\nHELLO\n",
    );
}

#[test]
fn a_number_that_is_used_again_is_another_socket() {
    let talk = "HELLO\n".repeat(20);
    check("closed", &format!("EINPROGRESS\nTrue\nwaiting\n{talk}"));
}

#[test]
fn data_with_the_connection_is_refused() {
    check("fast_open", "ENOTSUP\nENOTSUP\nHELLO\n5 b'AGAIN'\n");
}

#[test]
fn datagram_sockets_beyond_the_limit_of_select() {
    check("many_datagrams", "300 768 True\nselected 100\n");
}

#[test]
fn few_descriptors_are_enough() {
    check(
        "low_limit",
        "EMFILE 15\n3 (b'ONE', ('198.51.100.7', 7))\nb'TWO'\nHELLO\n",
    );
}

#[test]
fn who_does_not_read_stops_who_writes() {
    check("slow_reader", "stopped True\nwaiting\nall True\n");
}

#[test]
fn thousands_of_connections() {
    check("thousands 2000", "{'EINPROGRESS'} {0}\nright 2000\n");
}

#[test]
fn a_thousand_threads_wait_and_delay_nobody() {
    check("waiting_threads 1000", "HELLO\nremote 0\nwaiting\n1000\n");
}
