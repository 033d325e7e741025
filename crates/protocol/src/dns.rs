//! Dns: what a `resolv.conf` and a hosts file mean.

mod hosts;
mod resolv_conf;

pub use hosts::{HostsAnswer, find_in_hosts};
pub use resolv_conf::ResolvConf;
