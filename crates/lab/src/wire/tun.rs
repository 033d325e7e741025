//! A TUN device in the network namespace of a node or of the host.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::libc::{EBADFD, ENODEV, O_NONBLOCK};

use super::WireError;
use super::namespace::{NetworkNamespace, in_namespace, ip, proc_path};
use super::sys::{self, Offload};

/// The `struct virtio_net_hdr` before each packet. It describes the segmentation of the packet and a checksum that is not
/// computed yet. It is forwarded unchanged, so the receiving kernel finishes the work if necessary.
pub(super) const HEADER_SIZE: usize = 10;

/// Large enough for any packet of the kernel.
pub(super) const BUFFER_SIZE: usize = HEADER_SIZE + 65536;

/// How many packets the kernel queues for us. The default of 500 is less than one window of a fast TCP connection in single
/// packets, and packets that do not fit are dropped where only the statistics of the device show it.
const DEVICE_QUEUE_PACKETS: u32 = 10_000;

/// Dropping it removes the device.
#[derive(Debug)]
pub(super) struct Tun {
    file: File,
    device: String,
    segmentation_offload: Option<bool>,
}

impl Tun {
    /// Creates the device in the `staging` namespace and moves it to the namespace `target`.
    ///
    /// An open TUN device keeps the namespace in which it was opened alive. If it were opened in `target`, that namespace would
    /// outlive all of its processes, with its addresses and its veth device.
    pub(super) fn create(
        device: &str,
        staging: &NetworkNamespace,
        target: BorrowedFd<'_>,
    ) -> Result<Self, WireError> {
        let name = interface_name(device)?;
        let tun = in_namespace(staging.as_fd(), || {
            let mut tun = Self {
                file: open_driver()?,
                device: device.to_owned(),
                segmentation_offload: None,
            };
            sys::create_interface(&tun.file, &name, HEADER_SIZE)
                .map_err(|source| tun.failed("create", source))?;
            tun.set_segmentation_offload(true)?;
            ip(&format!(
                "link set dev {device} netns {}",
                proc_path(target)
            ))?;
            Ok(tun)
        })?;
        in_namespace(target, || {
            // Without this the kernel gives the device a link-local address and sends router solicitations. A kernel without IPv6
            // rejects the setting and does not need it.
            let _refused_without_ipv6 = ip(&format!("link set dev {device} addrgenmode none"));
            ip(&format!(
                "link set dev {device} mtu 1500 txqueuelen {DEVICE_QUEUE_PACKETS} up"
            ))
        })?;
        Ok(tun)
    }

    pub(super) fn device(&self) -> &str {
        &self.device
    }

    /// Reads the next packet of the kernel, with its header, without blocking.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&self.file).read(buffer)
    }

    /// Writes a packet with its header to the kernel.
    pub(super) fn deliver(&self, packet: &[u8]) -> io::Result<()> {
        (&self.file).write(packet).map(drop)
    }

    /// Sets whether the kernel may pass several packets to us as one. It accepts such packets from us in any case.
    pub(super) fn set_segmentation_offload(
        &mut self,
        segmentation_offload: bool,
    ) -> Result<(), WireError> {
        if self.segmentation_offload == Some(segmentation_offload) {
            return Ok(());
        }
        if segmentation_offload {
            sys::set_offload(&self.file, Offload::TcpAndUdpSegmentation)
                .or_else(|_| sys::set_offload(&self.file, Offload::TcpSegmentation))
        } else {
            sys::set_offload(&self.file, Offload::ChecksumOnly)
        }
        .map_err(|source| self.failed("set the offloads of", source))?;
        self.segmentation_offload = Some(segmentation_offload);
        Ok(())
    }

    fn failed(&self, action: &'static str, source: io::Error) -> WireError {
        WireError::Device {
            action,
            device: self.device.clone(),
            source,
        }
    }
}

impl Drop for Tun {
    /// The kernel removes the device with the last copy of its descriptor. If another thread is just starting a program, the
    /// forked child has a copy until it calls exec, so closing ours might not remove the device at once.
    fn drop(&mut self) {
        // Without a namespace the device is already gone, or on a kernel before 5.2 is removed with the descriptor.
        if let Ok(namespace) = sys::network_namespace(&self.file) {
            let device = &self.device;
            if let Err(error) = in_namespace(namespace.as_fd(), || {
                ip(&format!("link delete dev {device}"))
            }) {
                tracing::debug!(device, %error, "device not deleted, the kernel removes it on close");
            }
        }
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Whether this is the error of a device that was deleted, alone or with its namespace.
pub(super) fn is_device_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(EBADFD)
}

fn open_driver() -> Result<File, WireError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(O_NONBLOCK)
        .open("/dev/net/tun")
        .map_err(|source| match source.kind() {
            ErrorKind::NotFound => WireError::DriverMissing(source),
            // A device node may exist without a driver behind it.
            _ if source.raw_os_error() == Some(ENODEV) => WireError::DriverMissing(source),
            _ => WireError::DriverRefused(source),
        })
}

/// The name in the kernel's format: at most fifteen bytes and a zero byte.
fn interface_name(device: &str) -> Result<[u8; 16], WireError> {
    let plain = device
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if device.is_empty() || device.len() > 15 || !plain || device.starts_with(['-', '.']) {
        return Err(WireError::DeviceName(device.to_owned()));
    }
    let mut name = [0; 16];
    name[..device.len()].copy_from_slice(device.as_bytes());
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_device_names_are_rejected() {
        for (device, good) in [
            ("wire0", true),
            ("exactly15bytes.", true),
            ("sixteen-bytes-16", false),
            ("", false),
            (".", false),
            ("-all", false),
            ("a b", false),
            ("a/b", false),
            ("wire%d", false),
        ] {
            assert_eq!(interface_name(device).is_ok(), good, "{device:?}");
        }
    }
}
