//! Packets with descriptors over Unix sockets.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use minicbor::{Decode, Encode};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::message::{DESCRIPTORS_MAX, MESSAGE_MAX};

/// One end of a connection for packets.
#[derive(Debug)]
pub(crate) struct Packets(OwnedFd);

/// A packet.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) bytes: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl Packets {
    /// Both ends of a connection.
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (near, far) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?;
        Ok((Self(near), far))
    }

    pub(crate) fn connect(path: &Path) -> io::Result<Self> {
        let socket = socket()?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self(socket))
    }

    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Sends one packet.
    ///
    /// # Errors
    /// `WouldBlock` if `flags` do not allow to wait, and the other end does not read.
    pub(crate) fn send(
        &self,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fits =
            descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors));
        if !fits || bytes.len() > MESSAGE_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = flags | SendFlags::NOSIGNAL;
        let sent = loop {
            match rustix::net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, flags) {
                Err(rustix::io::Errno::INTR) => {}
                sent => break sent?,
            }
        };
        if sent == bytes.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::WriteZero.into())
        }
    }

    /// Receives one packet; none when the other end is gone. Descriptors beyond those of any
    /// message are closed.
    ///
    /// # Errors
    /// `WouldBlock` if `flags` do not allow to wait; `InvalidData` for a packet that is too long.
    pub(crate) fn receive(&self, flags: RecvFlags) -> io::Result<Option<Packet>> {
        let mut bytes = vec![0; MESSAGE_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let received = loop {
            let mut buffers = [IoSliceMut::new(&mut bytes)];
            match rustix::net::recvmsg(&self.0, &mut buffers, &mut control, flags) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::CONNRESET) => return Ok(None),
                received => break received?,
            }
        };
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                descriptors.extend(more);
            }
        }
        if received.bytes == 0 {
            return Ok(None);
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        bytes.truncate(received.bytes);
        Ok(Some(Packet { bytes, descriptors }))
    }

    /// Sends a message.
    pub(crate) fn put(
        &self,
        message: &impl Encode<()>,
        descriptors: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> io::Result<()> {
        let bytes = minicbor::to_vec(message).map_err(io::Error::other)?;
        self.send(&bytes, descriptors, flags)
    }
}

impl Packet {
    /// The message that it is.
    pub(crate) fn message<T: for<'b> Decode<'b, ()>>(&self) -> io::Result<T> {
        let wrong = |_| io::Error::from(io::ErrorKind::InvalidData);
        minicbor::decode(&self.bytes).map_err(wrong)
    }
}

impl AsFd for Packets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

pub(crate) fn socket() -> io::Result<OwnedFd> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        kind,
        flags,
        None,
    )?)
}
