//! The wire carries IP packets between network namespaces, as badly as it is told to.
//!
//! The nodes of the lab's clusters talk over a bridge of the kernel. When the path between two endpoints (a cluster, or the
//! machine of the developer) shall have a fault, routes send its packets into a TUN device in each network namespace. One thread
//! of our process holds all of these devices: it looks at the destination of each packet and writes it to the device of the port
//! that owns the address, after the delay and with the loss, the rate or the cut that was asked for.
//!
//! - [`conditions`]: what can be wrong with a path, and how a person writes it down.
//! - `link`: decides which packets pass and when. It does no input or output and reads no clock.
//! - `carrier`: the thread.
//! - `tun`, `sys`, `namespace`: the devices and where they are.
//! - [`measure`]: what the wire costs compared with a cable of the kernel.
//!
//! The wire adds no routes and no addresses. It never changes a packet, so a path that only delays carries the 64 KiB bundles of
//! the kernel's segmentation offload as they are; while a path loses packets or has a rate, the senders on it send single packets.

mod carrier;
pub mod conditions;
mod counters;
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
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use nix::sys::eventfd::{EfdFlags, EventFd};
use rand::SeedableRng;
use rand::rngs::SmallRng;

pub use self::conditions::{Conditions, ConditionsError, Loss, Rate, parse_delay};
pub use self::counters::{LinkCounters, LinkReport, PortReport, Tally, VanishedPort, WireReport};

use self::carrier::{Carrier, Command};
use self::conditions::LONGEST_DELAY;
use self::namespace::NetworkNamespace;
use self::tun::Tun;

/// A running wire. Dropping it stops the thread and removes the devices.
#[derive(Debug)]
pub struct Wire {
    commands: Sender<Command>,
    /// Tells the carrier, which sleeps on descriptors, that there is a command.
    wake: Arc<EventFd>,
    /// Where devices are created before they are moved to their place. One at a time, because ports in different places may give
    /// their devices the same name.
    staging: Mutex<NetworkNamespace>,
    thread: Option<JoinHandle<()>>,
}

impl Wire {
    /// Starts a wire without ports, on which every path is perfect.
    pub fn start() -> Result<Self, WireError> {
        let staging = Mutex::new(NetworkNamespace::create()?);
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = EventFd::from_value_and_flags(0, flags)
            .map_err(|errno| WireError::Thread(errno.into()))?;
        let wake = Arc::new(wake);
        let (commands, commands_of_owner) = mpsc::channel();
        let carrier = Carrier::new(
            commands_of_owner,
            Arc::clone(&wake),
            SmallRng::from_os_rng(),
        );
        let thread = thread::Builder::new()
            .name("wire".to_owned())
            .spawn(move || carrier.run())
            .map_err(WireError::Thread)?;
        Ok(Self {
            commands,
            wake,
            staging,
            thread: Some(thread),
        })
    }

    /// Creates the TUN device `device` in a network namespace, up and without an address, and carries the packets to `addresses`
    /// there.
    ///
    /// The wire does not keep the namespace alive. When it ends, the port is detached and the report says so.
    pub fn attach(
        &self,
        endpoint: &str,
        port: &str,
        network_namespace: impl AsFd,
        device: &str,
        addresses: &[IpAddr],
    ) -> Result<(), WireError> {
        let tun = {
            let staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
            Tun::create(device, &staging, network_namespace.as_fd())?
        };
        self.ask(|answer| Command::Attach {
            endpoint: endpoint.to_owned(),
            port: port.to_owned(),
            tun,
            addresses: addresses.to_vec(),
            answer,
        })?
    }

    /// Removes the device of a port. It is no error if the port has already vanished with its namespace.
    pub fn detach(&self, port: &str) -> Result<(), WireError> {
        let device = self.ask(|answer| Command::Detach {
            port: port.to_owned(),
            answer,
        })??;
        drop(device);
        Ok(())
    }

    /// Sets what happens to the packets from one endpoint to another, now and for ports that are attached later.
    ///
    /// When this returns after a cut, nothing more arrives, not even what was under way.
    pub fn set(&self, from: &str, to: &str, conditions: Conditions) -> Result<(), WireError> {
        if conditions.delay.saturating_add(conditions.jitter) > LONGEST_DELAY {
            return Err(WireError::DelayTooLong);
        }
        self.ask(|answer| Command::Set {
            from: from.to_owned(),
            to: to.to_owned(),
            conditions,
            answer,
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

    /// Every direction that is not perfect, as (from, to, conditions).
    pub fn conditions(&self) -> Result<Vec<(String, String, Conditions)>, WireError> {
        let links = self.report()?.links.into_iter();
        Ok(links
            .filter(|link| !link.conditions.is_perfect())
            .map(|link| (link.from, link.to, link.conditions))
            .collect())
    }

    /// What became of the packets from one endpoint to another.
    pub fn counters(&self, from: &str, to: &str) -> Result<LinkCounters, WireError> {
        let mut links = self.report()?.links.into_iter();
        Ok(links
            .find(|link| link.from == from && link.to == to)
            .map(|link| link.counters)
            .unwrap_or_default())
    }

    /// Everything there is to know: the paths, the ports and what vanished.
    pub fn report(&self) -> Result<WireReport, WireError> {
        self.ask(|answer| Command::Report { answer })
    }

    fn ask<Answer>(
        &self,
        command: impl FnOnce(Sender<Answer>) -> Command,
    ) -> Result<Answer, WireError> {
        let (answer, answer_of_carrier) = mpsc::channel();
        self.commands
            .send(command(answer))
            .map_err(|_| WireError::Stopped)?;
        self.wake
            .write(1)
            .map_err(|errno| WireError::Thread(errno.into()))?;
        answer_of_carrier.recv().map_err(|_| WireError::Stopped)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // Both fail only if the thread has ended, and then there is nothing to stop.
        let _ = self.commands.send(Command::Stop);
        let _ = self.wake.write(1);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the wire had panicked");
        }
    }
}

/// Why the wire cannot do what was asked.
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
    #[error("cannot start or wake the thread of the wire")]
    Thread(#[source] io::Error),
    #[error("the thread of the wire has stopped; its log says why, and a new wire can be started")]
    Stopped,
    #[error("cannot {action} to measure the wire")]
    Measure {
        action: &'static str,
        #[source]
        source: io::Error,
    },
}
