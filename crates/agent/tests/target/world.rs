//! The target of a test, and what runs inside its network.

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

/// Ends with the test, and with it everything that was made for it: its files, network and name live in its namespaces.
pub(crate) struct Target {
    namespaces: Child,
    pub(crate) pid: u32,
    process: OwnedFd,
}

/// Starts a target, or says why it cannot be.
pub(crate) fn target() -> Option<Target> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: making namespaces needs root");
        return None;
    }
    let (namespaces, pid) = namespaces::start();
    let number = Pid::from_raw(pid.try_into().expect("a small number")).expect("not 0");
    Some(Target {
        process: pidfd_open(number, PidfdFlags::empty()).expect("it is there"),
        pid,
        namespaces,
    })
}

impl Target {
    /// An agent for it, and a client that has said Hello.
    pub(crate) async fn client(&self) -> Client {
        let agent = Agent::for_process(self.pid).expect("root may do everything");
        agent.check().await.expect("root may do everything");
        let client = Client::connect(agent).await;
        client.hello("").await.expect("it is welcome");
        client
    }

    /// Makes something inside the target's network. Sockets stay there, whoever uses them.
    pub(crate) fn inside<T: Send>(&self, make: impl FnOnce() -> T + Send) -> T {
        let enter = || {
            let path = format!("/proc/{}/ns/net", self.pid);
            let namespace = fs::File::open(path).expect("the target is there");
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

    /// One of the target's paths, as root sees it from outside.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.pid))
    }

    /// Ends the target now, and waits until it has ended.
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
