//! Unix sockets by path.

use std::path::Path;

use super::Destination;
use super::address::{Parsed, parse};
use crate::files::{normalized, working_directory};
use crate::host::{Intent, Notice, PathChoice};
use crate::notification::Notification;
use crate::supervisor::Supervisor;

/// Where a connection goes, and whether the kernel would look for it elsewhere: a relative path starts in the caller's
/// working directory, which may be one of the target's.
pub(super) fn located(
    supervisor: &Supervisor,
    from: &Notification,
    destination: Destination,
) -> (Destination, bool) {
    match destination {
        Destination::Unix(path) if path.is_relative() => {
            match working_directory(supervisor, from.thread()) {
                Some((start, detached)) => {
                    let path = normalized(&start.join(path));
                    (Destination::Unix(path), detached)
                }
                None => (Destination::Unix(path), false),
            }
        }
        other => (other, false),
    }
}

/// `bind` is only looked at: a socket is made on this machine, also where files are the target's.
pub(crate) fn look_at_bind(supervisor: &Supervisor, from: &Notification, address: &[u8]) {
    if let Parsed::To(destination @ Destination::Unix(_)) = parse(address)
        && let (Destination::Unix(path), _) = located(supervisor, from, destination)
        && is_remote(supervisor, &path)
    {
        supervisor.host.notice(&Notice::SocketHere { path });
    }
}

fn is_remote(supervisor: &Supervisor, path: &Path) -> bool {
    let choice = supervisor.host.choose_path(path, Intent::Write);
    matches!(choice, PathChoice::Remote(_))
}
