//! Inode numbers of the target's files, as the application sees them.
//!
//! On this machine all files of the target are on one device, so that `stat` of a path and `fstat` of its descriptor
//! agree. At the target they may be on several devices, whose inode numbers overlap. The numbers of all devices but the
//! first are distinguished by their upper bits.

use parking_lot::Mutex;
use protocol::rpc::Metadata;

/// Identifies a file at the target: major and minor number of its device, and its inode.
pub(crate) type FileId = (u32, u32, u64);

pub(crate) fn file_id(metadata: &Metadata) -> FileId {
    let Metadata {
        device_major,
        device_minor,
        inode,
        ..
    } = metadata;
    (*device_major, *device_minor, *inode)
}

/// The devices in the order in which they were first seen.
#[derive(Debug, Default)]
pub(crate) struct Inodes(Mutex<Vec<(u32, u32)>>);

impl Inodes {
    /// The inode number of a file on this machine. On the device that was seen first it is the target's own.
    pub(crate) fn number(&self, (major, minor, inode): FileId) -> u64 {
        let mut devices = self.0.lock();
        let position = devices.iter().position(|device| *device == (major, minor));
        let index = position.unwrap_or_else(|| {
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
