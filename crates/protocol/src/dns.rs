//! DNS: `resolv.conf`, the hosts file, and messages.

mod hosts;
pub mod message;
mod resolv_conf;

pub use hosts::{HostsEntry, HostsMatch, find_in_hosts, hosts_entries};
pub use message::{Query, ResponseClass, classify_response};
pub use resolv_conf::ResolvConf;
