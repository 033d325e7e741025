//! Dns: what a `resolv.conf` and a hosts file mean, and messages.

mod hosts;
pub mod message;
mod resolv_conf;

pub use hosts::{HostsAnswer, HostsLine, find_in_hosts, hosts_lines};
pub use message::{Judgement, Query, judge};
pub use resolv_conf::ResolvConf;
