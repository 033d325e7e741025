//! `uname`: this machine's answer with the target's name in it.

use std::os::unix::ffi::OsStrExt;

use crate::supervisor::{Decision, Supervisor};
use crate::sys::process::system_names;

pub(crate) fn decide(supervisor: &Supervisor) -> Decision {
    let Some(name) = supervisor.host.hostname() else {
        return Decision::Pass;
    };
    Decision::later(move |_, notification| {
        let mut names = system_names();
        names.nodename = [0; 65];
        // The last byte stays zero.
        let (room, _) = names.nodename.split_at_mut(64);
        for (place, byte) in room.iter_mut().zip(name.as_bytes()) {
            *place = libc::c_char::from_ne_bytes([*byte]);
        }
        let written = notification.write_plain(notification.argument(0), &names);
        notification.finish(written.map(|()| 0));
    })
}
