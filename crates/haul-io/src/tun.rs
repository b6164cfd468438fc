//! TUN devices with offloads: whole super-packets cross between a kernel's network stack and a user
//! program.
//!
//! With `IFF_VNET_HDR` each packet comes with a [`VnetHeader`] that describes its pending
//! segmentation (TSO, USO) and checksum. A program that passes the header on delivers the same
//! super-packet to the receiving kernel, so a gigabit costs a few thousand packets per second
//! instead of a hundred thousand.

use std::ffi::{c_int, c_short, c_uint};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Where Linux keeps the device that makes TUN devices.
pub const TUN_DEVICE: &str = "/dev/net/tun";

/// Bytes of a [`VnetHeader`] in front of each packet.
pub const VNET_HEADER_LEN: usize = 10;

/// The largest result of [`Tun::recv`]: a header and the largest IP packet.
pub const TUN_PACKET_MAX: usize = VNET_HEADER_LEN + 65_535;

/// A non-blocking TUN device (layer 3, no packet information). The device goes away when this is
/// dropped.
#[derive(Debug)]
pub struct Tun {
    fd: OwnedFd,
    offloads: Offloads,
}

/// Offloads that the kernel leaves pending in the packets that it hands over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Checksums may be left for later.
    pub checksum: bool,
    /// TCP super-packets come whole (TSO).
    pub tcp: bool,
    /// UDP super-packets come whole (USO, Linux 6.2).
    pub udp: bool,
}

/// `struct virtio_net_hdr` (virtio 1.2, §5.1.6), little-endian on every machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHeader {
    /// [`Self::NEEDS_CHECKSUM`], [`Self::CHECKSUM_VALID`].
    pub flags: u8,
    /// One of the `GSO_*`, perhaps with [`Self::GSO_ECN`].
    pub gso_type: u8,
    /// Bytes of IP and transport header. The kernel takes it as a hint.
    pub header_len: u16,
    /// Payload bytes of each segment but the last.
    pub gso_size: u16,
    /// Where the checksummed bytes begin, from the start of the IP packet.
    pub checksum_start: u16,
    /// Where the checksum goes, from `checksum_start`.
    pub checksum_offset: u16,
}

impl VnetHeader {
    /// The checksum field holds the sum of the pseudo-header; the rest is left to do.
    pub const NEEDS_CHECKSUM: u8 = 1;
    /// The checksum has been verified.
    pub const CHECKSUM_VALID: u8 = 2;
    /// Not a super-packet.
    pub const GSO_NONE: u8 = 0;
    /// TCP over IPv4.
    pub const GSO_TCPV4: u8 = 1;
    /// TCP over IPv6.
    pub const GSO_TCPV6: u8 = 4;
    /// UDP, cut into datagrams.
    pub const GSO_UDP_L4: u8 = 5;
    /// The first segment alone carries CWR.
    pub const GSO_ECN: u8 = 0x80;

    /// Reads a header.
    #[must_use]
    pub fn parse(bytes: &[u8; VNET_HEADER_LEN]) -> Self {
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Self {
            flags: bytes[0],
            gso_type: bytes[1],
            header_len: word(2),
            gso_size: word(4),
            checksum_start: word(6),
            checksum_offset: word(8),
        }
    }

    /// Writes a header.
    #[must_use]
    pub fn emit(&self) -> [u8; VNET_HEADER_LEN] {
        let mut bytes = [0; VNET_HEADER_LEN];
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        bytes[2..4].copy_from_slice(&self.header_len.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.gso_size.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.checksum_start.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.checksum_offset.to_le_bytes());
        bytes
    }
}

impl Tun {
    /// Makes the device `name` in the network namespace of the calling thread, through the control
    /// device at `control` (see [`TUN_DEVICE`]), with every offload that the kernel knows.
    ///
    /// # Errors
    /// `NotFound` without the control device, `PermissionDenied` without the right to open it or
    /// without `CAP_NET_ADMIN` in the namespace, `ResourceBusy` if the name is taken,
    /// `InvalidInput` if it is too long.
    pub fn open(control: &Path, name: &str) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::open(control, flags, Mode::empty())?;
        let mode = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        let mut request = interface_request(name)?;
        request.ifr_ifru.ifru_flags = c_short::try_from(mode).map_err(io::Error::other)?;
        // SAFETY: `fd` is open and `request` is the initialised `ifreq` that TUNSETIFF reads and
        // writes.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
        set_value(
            &fd,
            libc::TUNSETVNETHDRSZ,
            c_int::try_from(VNET_HEADER_LEN).map_err(io::Error::other)?,
        )?;
        set_value(&fd, libc::TUNSETVNETLE, 1)?;
        let offloads = enable_offloads(&fd)?;
        Ok(Self { fd, offloads })
    }

    /// The offloads agreed with the kernel.
    #[must_use]
    pub fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Takes the next packet that the kernel sends out of this device: header, then IP packet.
    /// Answers the bytes of both.
    ///
    /// # Errors
    /// `WouldBlock` if there is none. A packet larger than `buffer` is cut off (see
    /// [`TUN_PACKET_MAX`]).
    #[inline]
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.fd, buffer)?)
    }

    /// Hands the kernel a packet as if it had arrived on this device: the concatenation of `parts`
    /// is the header and the IP packet.
    ///
    /// # Errors
    /// `InvalidInput` if header and packet contradict each other; an OS error if the device is
    /// down.
    #[inline]
    pub fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        rustix::io::writev(&self.fd, parts)?;
        Ok(())
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Asks for all offloads, then for ever fewer: kernels before 6.2 have no USO.
fn enable_offloads(fd: &OwnedFd) -> io::Result<Offloads> {
    let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    let udp = libc::TUN_F_USO4 | libc::TUN_F_USO6;
    let choices = [
        (
            tcp | udp,
            Offloads {
                checksum: true,
                tcp: true,
                udp: true,
            },
        ),
        (
            tcp,
            Offloads {
                checksum: true,
                tcp: true,
                udp: false,
            },
        ),
        (
            libc::TUN_F_CSUM,
            Offloads {
                checksum: true,
                tcp: false,
                udp: false,
            },
        ),
    ];
    for (features, offloads) in choices {
        match set_features(fd, features) {
            Ok(()) => return Ok(offloads),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Offloads::default())
}

fn set_features(fd: &OwnedFd, features: c_uint) -> io::Result<()> {
    // SAFETY: `fd` is an open TUN device, and TUNSETOFFLOAD takes its argument by value.
    check(unsafe {
        libc::ioctl(
            fd.as_raw_fd(),
            libc::TUNSETOFFLOAD,
            libc::c_ulong::from(features),
        )
    })
}

fn set_value(fd: &OwnedFd, request: libc::Ioctl, value: c_int) -> io::Result<()> {
    // SAFETY: `fd` is an open TUN device, and both requests read one `int` behind the pointer.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw const value) })
}

/// An `ifreq` that names an interface and is zero otherwise.
pub(crate) fn interface_request(name: &str) -> io::Result<libc::ifreq> {
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "an interface name has 1 to 15 bytes",
        ));
    }
    // SAFETY: `ifreq` is made of integers, arrays of them and pointers, for all of which zero is a
    // value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    Ok(request)
}

pub(crate) fn check(result: c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_round_trip() {
        let header = VnetHeader {
            flags: VnetHeader::NEEDS_CHECKSUM,
            gso_type: VnetHeader::GSO_UDP_L4,
            header_len: 28,
            gso_size: 1472,
            checksum_start: 20,
            checksum_offset: 6,
        };
        let bytes = header.emit();
        assert_eq!(bytes, [1, 5, 28, 0, 0xc0, 0x05, 20, 0, 6, 0]);
        assert_eq!(VnetHeader::parse(&bytes), header);
    }

    #[test]
    fn a_missing_control_device_is_not_found() {
        let error = Tun::open(Path::new("/nonexistent/tun"), "wan").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn names_that_no_interface_can_have_are_refused() {
        for name in ["", "a-name-of-16-char", "a\0b"] {
            assert_eq!(
                interface_request(name).unwrap_err().kind(),
                io::ErrorKind::InvalidInput
            );
        }
    }
}
