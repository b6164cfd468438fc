//! What the ends say to each other: four numbers.

use haul_verbs::{DeviceCaps, Mr, Remote};

/// Bytes of a message.
pub(crate) const MESSAGE_BYTES: usize = 32;

/// A question, or an answer, whose meaning depends on the question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message(pub(crate) [u64; 4]);

impl Message {
    pub(crate) fn parse(bytes: &[u8; MESSAGE_BYTES]) -> Self {
        let mut numbers = [0; 4];
        for (number, bytes) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
            *number = u64::from_be_bytes(bytes.try_into().expect("chunks of 8"));
        }
        Self(numbers)
    }

    pub(crate) fn emit(self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        for (bytes, number) in bytes.chunks_exact_mut(8).zip(self.0) {
            bytes.copy_from_slice(&number.to_be_bytes());
        }
        bytes
    }

    /// How a peer reaches a memory region, and what it can ask for.
    pub(crate) fn of_memory(memory: &Mr, served: DeviceCaps) -> Self {
        let Remote { addr, rkey } = memory.remote(0);
        let caps = served.bits().into();
        Self([addr, rkey.into(), memory.len() as u64, caps])
    }

    pub(crate) fn served(self) -> DeviceCaps {
        DeviceCaps::from_bits_truncate(u32::try_from(self.0[3]).unwrap_or(0))
    }

    pub(crate) fn memory(self) -> Remote {
        Remote {
            addr: self.0[0],
            rkey: u32::try_from(self.0[1]).unwrap_or(u32::MAX),
        }
    }
}

/// Questions: the first number of a message.
pub(crate) mod ask {
    /// Answered as it is.
    pub(crate) const ECHO: u64 = 1;
    /// The checksum of `[offset, length)` of the memory.
    pub(crate) const SUM: u64 = 2;
    /// Fill `[offset, length)` of the memory from a seed.
    pub(crate) const FILL: u64 = 3;
    /// The rest of this message, up to a length, is payload: its checksum.
    pub(crate) const SUM_OF_MESSAGE: u64 = 4;
    /// The immediate data that the last message, or the last RDMA Write, came with.
    pub(crate) const IMM: u64 = 5;
    /// Another memory region: address, key, length.
    pub(crate) const MEMORY: u64 = 6;
    /// The key that the last Send with Invalidate has ended.
    pub(crate) const INVALIDATED: u64 = 7;
    /// End the connection from that end. Not answered.
    pub(crate) const DISCONNECT: u64 = 8;
}

/// Private data of a request that is to be rejected, and of the rejection.
pub(crate) const REJECT_ME: &[u8] = b"reject me";
/// Of a request for a queue pair with a shared receive queue.
pub(crate) const SHARED: &[u8] = b"shared";
/// Of the last request.
pub(crate) const LAST: &[u8] = b"last";

/// Private data arrive padded over RoCE; and behind what a Longhaul end says of itself, which a
/// device passes on.
pub(crate) fn is(private_data: &[u8], wanted: &[u8]) -> bool {
    private_data
        .windows(wanted.len())
        .any(|window| window == wanted)
}
