//! Counters of forwarded and dropped packets. Every dropped packet is counted here.

use serde::{Deserialize, Serialize};

use super::conditions::Conditions;

/// A number of packets and the bytes in them, IP headers included.
///
/// A packet of up to 64 KiB from the kernel's segmentation offload counts as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    pub packets: u64,
    pub bytes: u64,
}

impl Tally {
    pub(super) fn add(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// Why a link dropped a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DropReason {
    Cut,
    Lost,
    RateQueueFull,
    DelayQueueFull,
}

/// Counters of the packets from one endpoint to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCounters {
    /// Written to the device of the receiver.
    pub forwarded: Tally,
    /// Dropped at random, as configured by the loss.
    pub lost: Tally,
    /// Dropped because of a cut, including those in flight when it was set.
    pub cut: Tally,
    /// Dropped because the queue of the rate limit was full.
    pub dropped_by_rate_queue: Tally,
    /// Dropped because the delay queue was full.
    pub dropped_by_delay_queue: Tally,
    /// Rejected by the device of the receiver, because it was full, down or gone.
    pub undeliverable: Tally,
}

impl LinkCounters {
    pub(super) fn count_drop(&mut self, reason: DropReason, bytes: usize) {
        let tally = match reason {
            DropReason::Cut => &mut self.cut,
            DropReason::Lost => &mut self.lost,
            DropReason::RateQueueFull => &mut self.dropped_by_rate_queue,
            DropReason::DelayQueueFull => &mut self.dropped_by_delay_queue,
        };
        tally.add(bytes);
    }
}

/// One direction between two endpoints: its conditions and its counters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    pub from: String,
    pub to: String,
    pub conditions: Conditions,
    pub counters: LinkCounters,
}

/// An attached port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortReport {
    pub endpoint: String,
    pub port: String,
    pub device: String,
    /// Packets that the port sent to an address that no port owns. A few of these are ordinary multicast; many indicate a wrong
    /// route.
    pub unroutable: Tally,
}

/// A port that disappeared because its network namespace ended or its device was deleted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VanishedPort {
    pub endpoint: String,
    pub port: String,
    pub reason: String,
}

/// The state of a running wire.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WireReport {
    pub links: Vec<LinkReport>,
    pub ports: Vec<PortReport>,
    pub vanished: Vec<VanishedPort>,
}
