//! Which file is which, in numbers that an application of this machine can compare.
//!
//! All files of the target are on one device here, so that `stat` of a path and `fstat` of its descriptor agree. At the
//! target they may be on several, where inodes repeat; those of further devices are told apart by their upper bits.

use std::sync::{Mutex, PoisonError};

use protocol::rpc::Metadata;

/// A file at the target: the two numbers of its device, and its own.
pub(crate) type Identity = (u32, u32, u64);

pub(crate) fn identity(metadata: &Metadata) -> Identity {
    let Metadata {
        device_major,
        device_minor,
        inode,
        ..
    } = metadata;
    (*device_major, *device_minor, *inode)
}

/// The devices that were seen, in order.
#[derive(Debug, Default)]
pub(crate) struct Inodes(Mutex<Vec<(u32, u32)>>);

impl Inodes {
    /// The number of a file, which on the device that was seen first is the target's own.
    pub(crate) fn number(&self, (major, minor, inode): Identity) -> u64 {
        let mut devices = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = devices.iter().position(|device| *device == (major, minor));
        let index = known.unwrap_or_else(|| {
            devices.push((major, minor));
            devices.len() - 1
        });
        inode ^ (index as u64) << 48
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_device_keeps_its_numbers_and_others_do_not_collide() {
        let inodes = Inodes::default();
        assert_eq!(inodes.number((8, 1, 5)), 5);
        let other = inodes.number((0, 30, 5));
        assert_ne!(other, 5);
        assert_eq!(inodes.number((8, 1, 5)), 5);
        assert_eq!(inodes.number((0, 30, 5)), other);
    }
}
