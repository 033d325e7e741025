//! Unusual uses of sockets, and many sockets.

use crate::outgoing::check_program;

fn check(name: &str, expected: &str) {
    check_program("sockets.py", name, expected);
}

#[test]
fn edge_triggered_epoll_reports_connection() {
    check(
        "edge_triggered",
        "EINPROGRESS\nevents before []\nwaiting\nwritable True\nerror 0 0\n0 EISCONN\nb'EDGE'\n",
    );
}

#[test]
fn send_buffers_are_restored() {
    check("buffers", &"ECONNREFUSED True\n0 True\nHELLO\n".repeat(2));
}

#[test]
#[ignore = "needs root"]
fn socket_bound_to_device_reaches_target() {
    check("bound_to_device", "HELLO\nEINPROGRESS\nHELLO\nHELLO\n");
}

#[test]
fn association_is_dissolved() {
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
fn passed_sockets_keep_their_addresses() {
    check(
        "passed",
        "('198.51.100.7', 7)\nPASSED\n('198.51.100.7', 7)\nDUPLICATED\n",
    );
}

#[test]
fn sockets_are_shared_after_fork() {
    check(
        "forked",
        "('198.51.100.7', 7)\nHELLO\nEINPROGRESS\nwaiting\nHELLO\n",
    );
}

#[test]
fn reused_descriptor_is_another_socket() {
    let talk = "HELLO\n".repeat(20);
    check("closed", &format!("EINPROGRESS\nTrue\nwaiting\n{talk}"));
}

#[test]
fn tcp_fast_open_is_refused() {
    check("fast_open", "ENOTSUP\nENOTSUP\nHELLO\n5 b'AGAIN'\n");
}

#[test]
fn datagram_sockets_above_select_limit() {
    check("many_datagrams", "300 768 True\nselected 100\n");
}

#[test]
fn low_descriptor_limit() {
    check(
        "low_limit",
        "EMFILE 15\n3 (b'ONE', ('198.51.100.7', 7))\nb'TWO'\nHELLO\n",
    );
}

#[test]
fn slow_reader_blocks_writer() {
    check("slow_reader", "stopped True\nwaiting\nall True\n");
}

#[test]
fn thousands_of_connections() {
    check("thousands 2000", "{'EINPROGRESS'} {0}\nright 2000\n");
}

#[test]
fn thousand_blocked_threads_do_not_delay_others() {
    check("waiting_threads 1000", "HELLO\nremote 0\nwaiting\n1000\n");
}
