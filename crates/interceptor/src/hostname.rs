//! `uname`: the result of this machine with the host name of the target.

use std::os::unix::ffi::OsStrExt;

use crate::supervisor::{Decision, Supervisor};
use crate::sys::process::system_names;

pub(crate) fn decide(supervisor: &Supervisor) -> Decision {
    let Some(name) = supervisor.host.hostname() else {
        return Decision::Pass;
    };
    Decision::defer(move |_, notification| {
        let mut names = system_names();
        names.nodename = [0; 65];
        // The last byte must stay zero.
        let (room, _) = names.nodename.split_at_mut(64);
        for (slot, byte) in room.iter_mut().zip(name.as_bytes()) {
            *slot = libc::c_char::from_ne_bytes([*byte]);
        }
        let written = notification.write_plain(notification.argument(0), &names);
        notification.finish(written.map(|()| 0));
    })
}
