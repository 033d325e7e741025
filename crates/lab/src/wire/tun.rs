//! A TUN device in somebody's network namespace, held open by us.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::libc::{EBADFD, ENODEV, O_NONBLOCK};

use super::WireError;
use super::namespace::{NetworkNamespace, ip, path_for_others, within};
use super::sys::{self, Offload};

/// The `struct virtio_net_hdr` before each packet. It says how the kernel bundled the packet and which checksum is still to be
/// computed; we hand it on as it is, so the receiving side finishes the work, if anybody must.
pub(super) const HEADER_SIZE: usize = 10;

/// Room for the greatest packet that the kernel hands over.
pub(super) const BUFFER_SIZE: usize = HEADER_SIZE + 65536;

/// How many packets the kernel keeps for us. The default of 500 is less than one window of a fast TCP connection in single packets,
/// and what does not fit is dropped where only the statistics of the device tell.
const DEVICE_QUEUE_PACKETS: u32 = 10_000;

/// The device is gone when this has been dropped.
#[derive(Debug)]
pub(super) struct Tun {
    file: File,
    device: String,
    bundles: Option<bool>,
}

impl Tun {
    /// Creates the device in the `staging` namespace and moves it to its place.
    ///
    /// An open TUN keeps the namespace in which it was opened alive, so opening it in its place would keep a namespace after all of
    /// its processes have ended, with its addresses and its end of the bridge.
    pub(super) fn create(
        device: &str,
        staging: &NetworkNamespace,
        place: BorrowedFd<'_>,
    ) -> Result<Self, WireError> {
        let name = interface_name(device)?;
        let tun = within(staging.as_fd(), || {
            let mut tun = Self {
                file: open_driver()?,
                device: device.to_owned(),
                bundles: None,
            };
            sys::create_interface(&tun.file, &name, HEADER_SIZE)
                .map_err(|source| tun.failed("create", source))?;
            tun.set_bundles(true)?;
            ip(&format!(
                "link set dev {device} netns {}",
                path_for_others(place)
            ))?;
            Ok(tun)
        })?;
        within(place, || {
            // Without this the kernel gives the device a link-local address and asks it for routers. A kernel without IPv6 refuses
            // the setting, and needs none.
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

    /// Takes the next packet that the kernel sends, with its header, without waiting for one.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&self.file).read(buffer)
    }

    /// Hands a packet with its header to the kernel.
    pub(super) fn deliver(&self, packet: &[u8]) -> io::Result<()> {
        (&self.file).write(packet).map(drop)
    }

    /// Whether the kernel may hand over many packets as one. It takes bundles from us in any case.
    pub(super) fn set_bundles(&mut self, bundles: bool) -> Result<(), WireError> {
        if self.bundles == Some(bundles) {
            return Ok(());
        }
        if bundles {
            sys::set_offload(&self.file, Offload::TcpAndUdpBundles)
                .or_else(|_| sys::set_offload(&self.file, Offload::TcpBundles))
        } else {
            sys::set_offload(&self.file, Offload::SinglePackets)
        }
        .map_err(|source| self.failed("set the offloads of", source))?;
        self.bundles = Some(bundles);
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
    /// The kernel removes the device with the last copy of its descriptor. If another thread is just starting a program, its child
    /// has a copy until it has become that program, so closing ours would remove the device only a moment later.
    fn drop(&mut self) {
        // Without a namespace the device is gone already, or on a kernel before 5.2 goes with the descriptor.
        if let Ok(place) = sys::network_namespace(&self.file) {
            let device = &self.device;
            if let Err(error) = within(place.as_fd(), || ip(&format!("link delete dev {device}"))) {
                tracing::debug!(device, %error, "the wire leaves a device to the kernel to remove");
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
pub(super) fn means_gone(error: &io::Error) -> bool {
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
            // A device node may be there without a driver behind it.
            _ if source.raw_os_error() == Some(ENODEV) => WireError::DriverMissing(source),
            _ => WireError::DriverRefused(source),
        })
}

/// The name as the kernel wants it: at most fifteen bytes and a zero.
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
    fn device_names_that_the_kernel_or_ip_would_misread_are_refused() {
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
