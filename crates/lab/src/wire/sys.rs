//! The calls to the TUN driver that no safe crate wraps.
#![allow(
    unsafe_code,
    reason = "ioctl is the only interface of the TUN driver; each call has a safety comment"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use nix::libc::c_int;

/// The part of `struct ifreq` that TUNSETIFF reads, padded to the size that the kernel copies.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    flags: u16,
    padding: [u8; 22],
}

const IFF_TUN: u16 = 0x0001;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;

const TUN_F_CSUM: u64 = 0x01;
const TUN_F_TSO4: u64 = 0x02;
const TUN_F_TSO6: u64 = 0x04;
const TUN_F_TSO_ECN: u64 = 0x08;
const TUN_F_USO4: u64 = 0x20;
const TUN_F_USO6: u64 = 0x40;

/// The offloads that the kernel may use in packets that it passes to us. A header before each packet says which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offload {
    /// Checksums only: every packet fits the MTU.
    ChecksumOnly,
    /// Checksums and the segmentation of TCP.
    TcpSegmentation,
    /// Checksums and the segmentation of TCP and UDP, which kernels before 6.2 refuse.
    TcpAndUdpSegmentation,
}

mod request {
    use nix::libc::c_int;

    use super::InterfaceRequest;

    // The driver declares the argument of TUNSETIFF as an int but reads a `struct ifreq`, so the request code is built by hand.
    nix::ioctl_readwrite_bad!(
        set_interface,
        nix::request_code_write!(b'T', 202, size_of::<c_int>()),
        InterfaceRequest
    );
    nix::ioctl_write_int!(set_offload, b'T', 208);
    nix::ioctl_write_ptr!(set_header_size, b'T', 216, c_int);
    nix::ioctl_none!(get_network_namespace, b'T', 227);
}

/// Turns an open `/dev/net/tun` into a new device for IP packets with a `struct virtio_net_hdr` before each.
pub(super) fn create_interface(
    tun: impl AsFd,
    name: &[u8; 16],
    header_size: usize,
) -> io::Result<()> {
    let mut interface = InterfaceRequest {
        name: *name,
        flags: IFF_TUN | IFF_NO_PI | IFF_VNET_HDR,
        padding: [0; 22],
    };
    let header_size = c_int::try_from(header_size).map_err(io::Error::other)?;
    let tun = tun.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open for the whole call, and TUNSETIFF reads and writes at most the 40 bytes of `struct ifreq`,
    // which `InterfaceRequest` has and in which every value is valid.
    unsafe { request::set_interface(tun, &raw mut interface) }?;
    // SAFETY: the descriptor is open for the whole call, and TUNSETVNETHDRSZ reads one int from the pointer.
    unsafe { request::set_header_size(tun, &raw const header_size) }?;
    Ok(())
}

/// Sets the offloads that the kernel may use from now on.
pub(super) fn set_offload(tun: impl AsFd, offload: Offload) -> io::Result<()> {
    let tcp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
    let flags = match offload {
        Offload::ChecksumOnly => TUN_F_CSUM,
        Offload::TcpSegmentation => tcp,
        Offload::TcpAndUdpSegmentation => tcp | TUN_F_USO4 | TUN_F_USO6,
    };
    // SAFETY: the descriptor is open for the whole call, and TUNSETOFFLOAD takes its argument by value.
    unsafe { request::set_offload(tun.as_fd().as_raw_fd(), flags) }?;
    Ok(())
}

/// The network namespace in which the device is now.
pub(super) fn network_namespace(tun: impl AsFd) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is open for the whole call, and TUNGETDEVNETNS takes no argument.
    let namespace = unsafe { request::get_network_namespace(tun.as_fd().as_raw_fd()) }?;
    // SAFETY: the call succeeded, so this is a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(namespace) })
}
