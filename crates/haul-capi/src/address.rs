//! Addresses of sockets, between C and Rust.

use std::net::SocketAddr;

use libc::{sockaddr, sockaddr_storage, socklen_t};
use socket2::SockAddr;

use crate::border::NULL_OUT;
use crate::status::{Error, Result};

/// # Errors
/// NULL, too short, or neither IPv4 nor IPv6.
///
/// # Safety
/// NULL, or `len` readable bytes at `address`.
pub(crate) unsafe fn read(address: *const sockaddr, len: socklen_t) -> Result<SocketAddr> {
    let bytes = usize::try_from(len).unwrap_or(usize::MAX);
    if address.is_null()
        || !(size_of::<sockaddr>()..=size_of::<sockaddr_storage>()).contains(&bytes)
    {
        return Err(no_address(len));
    }
    let copy = |storage: *mut socket2::SockAddrStorage, room: *mut socklen_t| {
        // SAFETY: `bytes` are no more than the storage has, and readable as the caller promises.
        unsafe { std::ptr::copy_nonoverlapping(address.cast::<u8>(), storage.cast(), bytes) };
        // SAFETY: `try_init` lends the place of the length.
        unsafe { room.write(len) };
        Ok(())
    };
    // SAFETY: `copy` writes an address and its length; what it leaves of the storage is zero.
    let ((), address) =
        unsafe { SockAddr::try_init(copy) }.map_err(Error::os("reading an address"))?;
    let long_enough = match address.family() {
        family if i32::from(family) == libc::AF_INET6 => bytes >= size_of::<libc::sockaddr_in6>(),
        _ => true,
    };
    address
        .as_socket()
        .filter(|_| long_enough)
        .ok_or_else(|| no_address(len))
}

fn no_address(len: socklen_t) -> Error {
    Error::Text(format!(
        "the address of {len} bytes is no whole sockaddr_in or sockaddr_in6"
    ))
}

/// As C has it.
pub(crate) fn storage(address: SocketAddr) -> (sockaddr_storage, socklen_t) {
    let address = SockAddr::from(address);
    // SAFETY: all zeros are a value of it.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let len = address.len() as usize;
    // SAFETY: an address is no longer than the storage.
    unsafe {
        std::ptr::copy_nonoverlapping(
            address.as_ptr().cast::<u8>(),
            (&raw mut storage).cast(),
            len,
        )
    };
    (storage, address.len())
}

/// As `getsockname(2)`: as much as fits, and the whole length into `len`.
///
/// # Errors
/// NULL.
///
/// # Safety
/// NULL, or `*len` writable bytes at `out`.
pub(crate) unsafe fn write(
    address: SocketAddr,
    out: *mut sockaddr,
    len: Option<&mut socklen_t>,
) -> Result<()> {
    let len = len.ok_or(NULL_OUT)?;
    if out.is_null() {
        return Err(NULL_OUT);
    }
    let (storage, needed) = storage(address);
    let bytes = needed.min(*len) as usize;
    // SAFETY: `bytes` are in the storage, and writable as the caller promises.
    unsafe { std::ptr::copy_nonoverlapping((&raw const storage).cast::<u8>(), out.cast(), bytes) };
    *len = needed;
    Ok(())
}
