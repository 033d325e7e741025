//! Targets on this machine, for sessions that need no cluster.
//!
//! A target is a process in its own namespaces, whose root file system contains nothing of the machine. A second
//! process, the peer network, has the nameserver and the servers that the target uses. The machine itself has no route
//! to either. Both processes are this same program, started again in a role. Both exit when their parent exits, because
//! their standard input then ends.
//!
//! ```text
//! the machine ── no route ──┐
//!                           │
//!   ┌── peer network ───────┴──┐           ┌── target ──────────────┐
//!   │ eth0 10.77.0.53, .80     ├── veth ───┤ eth0 10.77.0.2         │
//!   │ nameserver, servers      │           │ files, host name, the  │
//!   │ clients                  │           │ original application   │
//!   └──────────────────────────┘           └────────────────────────┘
//! ```

mod agent;
mod application;
mod hyper;
mod nameserver;
mod peer_network;
mod role;
mod servers;
mod session;
mod target;
mod target_process;

pub use agent::{RunningAgent, Transport};
pub use hyper::command as hyper_server;
pub use role::run_role_if_requested;
pub use session::{ProgramOutput, Programs};
pub use target::Target;

/// Addresses and ports of a target and its peer network.
pub mod network {
    /// The source address of connections that leave the target.
    pub const TARGET: &str = "10.77.0.2";
    pub const TARGET6: &str = "fd77::2";
    pub const NAMESERVER: &str = "10.77.0.53";
    /// The source address of the target's clients: the first address of the peer network.
    pub const CLIENT: &str = NAMESERVER;
    /// The address of all servers except the nameserver.
    pub const SERVER: &str = "10.77.0.80";
    pub const SERVER6: &str = "fd77::80";
    /// The DNS name of that address, in the search domain of the target.
    pub const SERVER_NAME: &str = "inventory";
    pub const DOMAIN: &str = "shop.test";
    /// The host name of the target.
    pub const HOST_NAME: &str = "checkout-7d9f";

    /// Echoes what it receives, over TCP and UDP.
    pub const ECHO: u16 = 7;
    /// Reads until the client closes its direction, then responds with the number and SHA-256 of the bytes.
    pub const SINK: u16 = 9;
    /// Sends [`SOURCE_BYTES`], closes its direction, and then reads the client's count and SHA-256 of them.
    pub const SOURCE: u16 = 19;
    pub const SOURCE_BYTES: usize = 100 << 20;
    /// Sends a few bytes, waits for one, and resets the connection.
    pub const RESET: u16 = 13;
    pub const HTTP: u16 = 80;

    /// The HTTP port of the target's own application. It responds with `original`, the path and the client's address.
    pub const APPLICATION: u16 = 8080;
    /// The port on which it sends `original` first, and then echoes what it receives.
    pub const GREETER: u16 = 8070;
    /// The port on which it responds to datagrams, with `original` before their content.
    pub const DATAGRAMS: u16 = 8060;
}
