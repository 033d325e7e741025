//! Targets on this machine, for sessions that need no cluster.
//!
//! A target is a process in namespaces of its own, with a root file system that has nothing of the machine's in it. Beside
//! it, in a network that only the target reaches, are a nameserver and the servers that it knows. Both are this same
//! program, started again in a role; both end when whoever started them does, because they watch their standard input.
//!
//! ```text
//! the machine ── no way ──┐
//!                         │
//!   ┌── ground ───────────┴──┐           ┌── target ──────────────┐
//!   │ eth0 10.77.0.53, .80   ├── wire ───┤ eth0 10.77.0.2         │
//!   │ nameserver, servers    │           │ files, host name, the  │
//!   │ clients                │           │ original application   │
//!   └────────────────────────┘           └────────────────────────┘
//! ```

mod agent;
mod application;
mod ground;
mod hyper;
mod inside;
mod nameserver;
mod role;
mod servers;
mod session;
mod target;

pub use agent::{RunningAgent, Transport};
pub use hyper::command as hyper_server;
pub use role::run_if_asked;
pub use session::{Ended, Programs};
pub use target::Target;

/// What the network beside a target has.
pub mod network {
    /// Where connections come from that leave from the target.
    pub const TARGET: &str = "10.77.0.2";
    pub const TARGET6: &str = "fd77::2";
    pub const NAMESERVER: &str = "10.77.0.53";
    /// Where clients of the target come from: the first address beside it.
    pub const CLIENT: &str = NAMESERVER;
    /// The machine of all servers except the nameserver.
    pub const SERVER: &str = "10.77.0.80";
    pub const SERVER6: &str = "fd77::80";
    /// The name of that machine, in the domain that the target searches.
    pub const NAME: &str = "inventory";
    pub const DOMAIN: &str = "shop.test";
    /// What the target is called.
    pub const HOST_NAME: &str = "checkout-7d9f";

    /// Gives back what it gets, over TCP and UDP.
    pub const ECHO: u16 = 7;
    /// Takes bytes until the client has sent its last, then answers with their number and SHA-256.
    pub const SINK: u16 = 9;
    /// Sends [`SOURCE_BYTES`], ends its direction, and then listens for what the client makes of them.
    pub const SOURCE: u16 = 19;
    pub const SOURCE_BYTES: usize = 100 << 20;
    /// Sends a few bytes, waits for one, and resets the connection.
    pub const RESET: u16 = 13;
    pub const HTTP: u16 = 80;

    /// Where the target's own application answers HTTP: with `original`, the path and who asks.
    pub const APPLICATION: u16 = 8080;
    /// Where it says `original` before anybody has asked, and then gives back what it gets.
    pub const GREETER: u16 = 8070;
    /// Where it answers datagrams, with `original` before them.
    pub const DATAGRAMS: u16 = 8060;
}
