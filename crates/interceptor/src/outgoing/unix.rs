//! Unix sockets by path.

use std::path::Path;

use super::Destination;
use super::address::{Parsed, parse};
use crate::files::{normalized, working_directory};
use crate::host::{Intent, Notice, PathChoice};
use crate::notification::Notification;
use crate::supervisor::Supervisor;

/// Resolves the destination of a connection, and tells whether the kernel would resolve it differently: a relative path
/// starts in the caller's working directory, which may be on the target.
pub(super) fn resolve_destination(
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

/// Reports a `bind` to a remote path: the socket is created on this machine, even if the files at its path are on the
/// target.
pub(crate) fn report_unix_bind(supervisor: &Supervisor, from: &Notification, address: &[u8]) {
    if let Parsed::To(destination @ Destination::Unix(_)) = parse(address)
        && let (Destination::Unix(path), _) = resolve_destination(supervisor, from, destination)
        && is_remote(supervisor, &path)
    {
        supervisor.host.notice(&Notice::LocalUnixSocket { path });
    }
}

fn is_remote(supervisor: &Supervisor, path: &Path) -> bool {
    let choice = supervisor.host.choose_path(path, Intent::Write);
    matches!(choice, PathChoice::Remote(_))
}
