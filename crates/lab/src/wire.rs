//! The wire forwards IP packets between network namespaces with configurable delay, jitter, loss, rate limit or cut.
//!
//! The nodes of the lab's clusters communicate over a bridge of the kernel. When the path between two endpoints (a cluster, or
//! the developer's machine) has a fault, routes send its packets into a TUN device in each network namespace. One thread of our
//! process owns all of these devices. It reads the destination of each packet and writes the packet to the device of the port
//! that owns the address, subject to the conditions of the path.
//!
//! - [`conditions`]: the faults of a path, and their text form.
//! - `link`: decides which packets pass and when. It does no I/O and reads no clock.
//! - `forwarder`: the thread.
//! - `tun`, `sys`, `namespace`: the devices and their network namespaces.
//! - [`measure`]: the overhead of the wire compared with a veth pair of the kernel.
//!
//! The wire adds no routes and no addresses. It never changes a packet, so a path that only delays forwards the 64 KiB packets of
//! the kernel's segmentation offload as they are. While a path has loss or a rate limit, its senders send single packets.

pub mod conditions;
mod counters;
mod forwarder;
mod link;
pub mod measure;
mod namespace;
mod packet;
mod sys;
#[cfg(test)]
mod tests;
mod tun;

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::SmallRng;

pub use self::conditions::{Conditions, ConditionsError, Loss, Rate, parse_delay};
pub use self::counters::{LinkCounters, LinkReport, PortReport, Tally, VanishedPort, WireReport};

use self::conditions::MAX_DELAY;
use self::forwarder::{Command, Forwarder};
use self::namespace::NetworkNamespace;
use self::tun::Tun;

/// A running wire. Dropping it stops the thread and removes the devices.
#[derive(Debug)]
pub struct Wire {
    commands: Sender<Command>,
    /// Wakes the forwarder, which polls descriptors, when there is a command.
    wake: Arc<EventFd>,
    /// Where devices are created before they are moved to their namespace. Only one at a time, because ports in different
    /// namespaces may use the same device name.
    staging: Mutex<NetworkNamespace>,
    thread: Option<JoinHandle<()>>,
}

impl Wire {
    /// Starts a wire without ports and without faults.
    pub fn start() -> Result<Self, WireError> {
        let staging = Mutex::new(NetworkNamespace::create()?);
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = EventFd::from_value_and_flags(0, flags)
            .map_err(|errno| WireError::Thread(errno.into()))?;
        let wake = Arc::new(wake);
        let (commands, command_receiver) = mpsc::channel();
        let forwarder =
            Forwarder::new(command_receiver, Arc::clone(&wake), SmallRng::from_os_rng());
        let thread = thread::Builder::new()
            .name("wire".to_owned())
            .spawn(move || forwarder.run())
            .map_err(WireError::Thread)?;
        Ok(Self {
            commands,
            wake,
            staging,
            thread: Some(thread),
        })
    }

    /// Creates the TUN device `device` in a network namespace, up and without an address, and forwards the packets for `addresses`
    /// to it.
    ///
    /// The wire does not keep the namespace alive. When the namespace ends, the port is detached and listed as vanished.
    pub fn attach(
        &self,
        endpoint: &str,
        port: &str,
        network_namespace: impl AsFd,
        device: &str,
        addresses: &[IpAddr],
    ) -> Result<(), WireError> {
        let tun = {
            let staging = self.staging.lock();
            Tun::create(device, &staging, network_namespace.as_fd())?
        };
        self.call(|response| Command::Attach {
            endpoint: endpoint.to_owned(),
            port: port.to_owned(),
            tun,
            addresses: addresses.to_vec(),
            response,
        })?
    }

    /// Removes the device of a port. It is no error if the port has already vanished with its namespace.
    pub fn detach(&self, port: &str) -> Result<(), WireError> {
        let device = self.call(|response| Command::Detach {
            port: port.to_owned(),
            response,
        })??;
        drop(device);
        Ok(())
    }

    /// Sets the conditions from one endpoint to another, also for ports that are attached later.
    ///
    /// When this returns after a cut, no more packets are delivered, not even those in flight.
    pub fn set(&self, from: &str, to: &str, conditions: Conditions) -> Result<(), WireError> {
        if conditions.delay.saturating_add(conditions.jitter) > MAX_DELAY {
            return Err(WireError::DelayTooLong);
        }
        self.call(|response| Command::Set {
            from: from.to_owned(),
            to: to.to_owned(),
            conditions,
            response,
        })?
    }

    /// Sets the same conditions in both directions.
    pub fn set_both(
        &self,
        one: &str,
        other: &str,
        conditions: Conditions,
    ) -> Result<(), WireError> {
        self.set(one, other, conditions.clone())?;
        self.set(other, one, conditions)
    }

    /// Every direction with a fault, as (from, to, conditions).
    pub fn conditions(&self) -> Result<Vec<(String, String, Conditions)>, WireError> {
        let links = self.report()?.links.into_iter();
        Ok(links
            .filter(|link| !link.conditions.is_perfect())
            .map(|link| (link.from, link.to, link.conditions))
            .collect())
    }

    /// The counters of the packets from one endpoint to another.
    pub fn counters(&self, from: &str, to: &str) -> Result<LinkCounters, WireError> {
        let mut links = self.report()?.links.into_iter();
        Ok(links
            .find(|link| link.from == from && link.to == to)
            .map(|link| link.counters)
            .unwrap_or_default())
    }

    /// The state of all paths and ports, and the ports that vanished.
    pub fn report(&self) -> Result<WireReport, WireError> {
        self.call(|response| Command::Report { response })
    }

    fn call<Response>(
        &self,
        command: impl FnOnce(Sender<Response>) -> Command,
    ) -> Result<Response, WireError> {
        let (response, response_receiver) = mpsc::channel();
        self.commands
            .send(command(response))
            .map_err(|_| WireError::Stopped)?;
        self.wake
            .write(1)
            .map_err(|errno| WireError::Thread(errno.into()))?;
        response_receiver.recv().map_err(|_| WireError::Stopped)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // Both fail only if the thread has already ended.
        let _ = self.commands.send(Command::Stop);
        let _ = self.wake.write(1);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("wire thread panicked");
        }
    }
}

/// The errors of the wire.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    #[error(
        "the TUN driver is missing; load it with `modprobe tun`, or if it is built in, `mkdir -p /dev/net && mknod /dev/net/tun c 10 200`"
    )]
    DriverMissing(#[source] io::Error),
    #[error("cannot open /dev/net/tun; run as root, and in a container allow the device 10:200")]
    DriverRefused(#[source] io::Error),
    #[error("cannot {action} the TUN device {device}")]
    Device {
        action: &'static str,
        device: String,
        #[source]
        source: io::Error,
    },
    #[error("`{0}` cannot name a device; use 1 to 15 letters, digits, dashes, dots or underscores")]
    DeviceName(String),
    #[error("cannot {action} a network namespace; run as root")]
    Namespace {
        action: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("cannot run `ip`; install it with `apt-get install iproute2`")]
    IpNotRun(#[source] io::Error),
    #[error("`ip {arguments}` failed: {message}")]
    IpFailed { arguments: String, message: String },
    #[error("the wire has a port {0} already; detach it first")]
    PortTaken(String),
    #[error("the address {address} belongs to port {port} already; detach that port first")]
    AddressTaken { address: IpAddr, port: String },
    #[error("the wire has no port {0}; its report lists those it has")]
    UnknownPort(String),
    #[error("delay and jitter together are longer than one minute; shorten them")]
    DelayTooLong,
    #[error("cannot start or wake the wire's thread")]
    Thread(#[source] io::Error),
    #[error("the wire's thread has stopped; see its log for the reason, and start a new wire")]
    Stopped,
    #[error("cannot {action} to measure the wire")]
    Measure {
        action: &'static str,
        #[source]
        source: io::Error,
    },
}
