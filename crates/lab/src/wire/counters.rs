//! What the wire did with the packets. Nothing is dropped without being counted here.

use serde::{Deserialize, Serialize};

use super::conditions::Conditions;

/// A number of packets and the bytes in them, IP headers included.
///
/// A bundle that the kernel hands over as one packet of up to 64 KiB counts as one.
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

/// Why a link let a packet go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DropReason {
    Cut,
    Lost,
    RateQueueFull,
    DelayQueueFull,
}

/// What became of the packets from one endpoint to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCounters {
    /// Written to the device of the receiver.
    pub carried: Tally,
    /// Lost by chance, as the conditions ask.
    pub lost: Tally,
    /// Came to a cut, or were under way when it was made.
    pub cut: Tally,
    /// Came when too much was waiting for a line with a rate.
    pub dropped_by_rate_queue: Tally,
    /// Came when the link held as much as it can hold.
    pub dropped_by_delay_queue: Tally,
    /// Refused by the device of the receiver, because it was full, down or gone.
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

/// One direction between two endpoints: what was asked for and what happened.
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
    /// Packets that the port sent to an address which no port owns. A few of these are ordinary multicast; many are a wrong
    /// route.
    pub astray: Tally,
}

/// A port that went away by itself, because its network namespace ended or its device was deleted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VanishedPort {
    pub endpoint: String,
    pub port: String,
    pub reason: String,
}

/// Everything there is to know about a running wire.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WireReport {
    pub links: Vec<LinkReport>,
    pub ports: Vec<PortReport>,
    pub vanished: Vec<VanishedPort>,
}
