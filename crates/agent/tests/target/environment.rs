//! The target of a test, and sockets in its network.

use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::process::Child;
use std::{fs, thread};

use agent::Agent;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::client::Client;
use crate::namespaces;

/// The target process. It ends on drop, and with it its namespaces, which contain its files, network and host name.
pub(crate) struct Target {
    namespaces: Child,
    pub(crate) pid: u32,
    process: OwnedFd,
}

/// Starts a target.
///
/// # Panics
///
/// Without root: creating the namespaces and the user of the target needs it.
pub(crate) fn target() -> Target {
    assert!(
        rustix::process::geteuid().is_root(),
        "needs root: run with sudo, or leave it ignored"
    );
    let (namespaces, pid) = namespaces::start();
    let number = Pid::from_raw(pid.try_into().expect("a small number")).expect("not 0");
    Target {
        process: pidfd_open(number, PidfdFlags::empty()).expect("the target is running"),
        pid,
        namespaces,
    }
}

impl Target {
    /// Starts an agent, and connects a client whose Hello was accepted.
    pub(crate) async fn client(&self) -> Client {
        let agent = Agent::for_process(self.pid).expect("root may do everything");
        agent.check().await.expect("root may do everything");
        let client = Client::connect(agent).await;
        client.hello("").await.expect("Hello is accepted");
        client
    }

    /// Runs `make` in the target's network. Sockets that it creates stay in that network.
    pub(crate) fn inside<T: Send>(&self, make: impl FnOnce() -> T + Send) -> T {
        let enter = || {
            let path = format!("/proc/{}/ns/net", self.pid);
            let namespace = fs::File::open(path).expect("the target is running");
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("root may enter");
            make()
        };
        thread::scope(|scope| scope.spawn(enter).join().expect("it does not panic"))
    }

    pub(crate) fn listen(&self, address: &str) -> tokio::net::TcpListener {
        let listener = self.inside(|| TcpListener::bind(address).expect("the port is free"));
        listener.set_nonblocking(true).expect("it is a socket");
        tokio::net::TcpListener::from_std(listener).expect("there is a runtime")
    }

    pub(crate) fn udp(&self, address: &str) -> tokio::net::UdpSocket {
        let socket = self.inside(|| UdpSocket::bind(address).expect("the port is free"));
        socket.set_nonblocking(true).expect("it is a socket");
        tokio::net::UdpSocket::from_std(socket).expect("there is a runtime")
    }

    /// A path of the target, as seen from outside.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.pid))
    }

    /// Kills the target and waits for its exit.
    pub(crate) fn end(&mut self) {
        let _ = self.namespaces.kill();
        self.namespaces.wait().expect("it ends");
        let mut ended = [PollFd::new(&self.process, PollFlags::IN)];
        while poll(&mut ended, None) != Ok(1) {}
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.end();
    }
}
