//! What an application's process knows: its table, and which descriptor is which record.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use crate::sys;
use crate::table::{Options, Protocol, Socket, Table, Why, is_alive, words};

/// Descriptors that are looked after; higher ones are the kernel's alone.
const DESCRIPTORS: usize = 1 << 17;
/// The two lowest bits of an entry: as `haul_socket_kind` returns it.
const KIND_MASK: u32 = 3;

/// For each descriptor its record's number plus one, and its kind.
static ENTRIES: [AtomicU32; DESCRIPTORS] = [const { AtomicU32::new(0) }; DESCRIPTORS];
static HIGHEST: AtomicI32 = AtomicI32::new(-1);
/// Two descriptors may be the same record.
static DUPLICATED: AtomicBool = AtomicBool::new(false);
static PROCESS: OnceLock<Process> = OnceLock::new();

/// Who takes the calls of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    Kernel = 0,
    Datagram = 1,
    Stream = 2,
}

/// A process under `haul run`.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) table: Table,
    /// The process id of its `haul run`.
    run: u32,
    pub(crate) options: Options,
}

/// A descriptor that has a record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) process: &'static Process,
    pub(crate) number: usize,
    pub(crate) socket: &'static Socket,
    pub(crate) kind: u32,
    pub(crate) fd: c_int,
}

fn slot(fd: c_int) -> Option<&'static AtomicU32> {
    ENTRIES.get(usize::try_from(fd).ok()?)
}

/// The value of `haul_socket_kind`.
#[inline]
pub(crate) fn kind(fd: c_int) -> u32 {
    slot(fd).map_or(0, |entry| entry.load(Ordering::Relaxed) & KIND_MASK)
}

/// Joins the table; false if the process is under no `haul run` that is there.
pub(crate) fn start(table: Table, run: u32) -> bool {
    let Some(options) = table.options(run) else {
        return false;
    };
    table.note_loaded(run);
    let process = Process {
        table,
        run,
        options,
    };
    PROCESS.set(process).is_ok()
}

/// The process, once it has joined.
#[inline]
pub(crate) fn get() -> Option<&'static Process> {
    PROCESS.get()
}

/// The record of a descriptor.
#[inline]
pub(crate) fn entry(fd: c_int) -> Option<Entry> {
    let value = slot(fd)?.load(Ordering::Acquire);
    let number = (value >> 2).checked_sub(1)? as usize;
    let process = PROCESS.get()?;
    Some(Entry {
        process,
        number,
        socket: process.table.socket(number)?,
        kind: value & KIND_MASK,
        fd,
    })
}

/// Notes that a descriptor is that record.
pub(crate) fn set(fd: c_int, number: usize, kind: Kind) {
    let value = u32::try_from(number + 1).unwrap_or(0) << 2 | kind as u32;
    if let Some(slot) = slot(fd) {
        slot.store(value, Ordering::Release);
        HIGHEST.fetch_max(fd, Ordering::Relaxed);
    }
}

/// Takes a descriptor's entry away; its record, and whether no other descriptor of this process is
/// the same record.
pub(crate) fn clear(fd: c_int) -> Option<(Entry, bool)> {
    let entry = entry(fd)?;
    slot(fd)?.store(0, Ordering::Release);
    let is_last =
        !DUPLICATED.load(Ordering::Relaxed) || entries().all(|other| other.number != entry.number);
    Some((entry, is_last))
}

/// All descriptors that have a record.
pub(crate) fn entries() -> impl Iterator<Item = Entry> {
    (0..=HIGHEST.load(Ordering::Relaxed)).filter_map(entry)
}

/// The second descriptor is the first one's record too.
pub(crate) fn duplicate(from: c_int, to: c_int) {
    DUPLICATED.store(true, Ordering::Relaxed);
    let value = slot(from).map_or(0, |slot| slot.load(Ordering::Acquire));
    if let Some(slot) = slot(to) {
        slot.store(value, Ordering::Release);
        HIGHEST.fetch_max(to, Ordering::Relaxed);
    }
}

impl Process {
    /// The process id of its `haul run`.
    pub(crate) const fn run(&self) -> u32 {
        self.run
    }

    /// Whether somebody asks and answers for this process.
    pub(crate) fn has_agent(&self) -> bool {
        let agent = self.table.agent().load(Ordering::Acquire);
        agent != 0 && is_alive(agent)
    }

    /// A record for a new socket of the application.
    pub(crate) fn open(&'static self, fd: c_int, protocol: Protocol) -> Option<Entry> {
        slot(fd)?;
        let (number, socket) = self.table.take_socket()?;
        socket.run.store(self.run, Ordering::Relaxed);
        socket.pid.store(sys::process_id(), Ordering::Relaxed);
        let descriptor = u32::try_from(fd).unwrap_or(0);
        socket.descriptor.store(descriptor, Ordering::Relaxed);
        socket.protocol.store(protocol as u32, Ordering::Release);
        let wanted = match protocol {
            Protocol::Udp => self.options.datagram,
            Protocol::Tcp => self.options.stream,
        };
        let goes_through = protocol == Protocol::Tcp && self.options.gateway;
        if !(wanted || goes_through) {
            socket.refuse(Why::Excluded);
        }
        let kind = if wanted && protocol == Protocol::Udp {
            Kind::Datagram
        } else {
            Kind::Kernel
        };
        set(fd, number, kind);
        entry(fd)
    }
}

impl Entry {
    /// Whether the socket may be carried at all.
    pub(crate) fn is_wanted(&self) -> bool {
        let why = Why::from_number(self.socket.why.load(Ordering::Relaxed));
        !matches!(why, Why::Excluded | Why::Option | Why::Inherited)
    }

    /// Notes the socket's own address, and lets agents announce it.
    pub(crate) fn publish(&self) {
        let Some(local) = sys::local(self.fd).filter(|local| local.port() != 0) else {
            return;
        };
        self.socket.local.store(words(local));
        if let Some(inode) = sys::inode(self.fd) {
            self.socket.inode.store(inode, Ordering::Release);
        }
        if self.is_wanted() {
            let named = self.process.table.named(Protocol::Udp, local.port());
            self.socket.set_named(named);
            self.socket.published.store(1, Ordering::Release);
        }
    }

    /// Notes the addresses of a connection: its peer, and its own, if it has got one.
    pub(crate) fn note_addresses(&self, peer: std::net::SocketAddr) {
        self.socket.remote.store(words(peer));
        self.note_local();
    }

    /// Notes the address that a connection has got.
    pub(crate) fn note_local(&self) {
        let error = sys::errno();
        if let Some(local) = sys::local(self.fd).filter(|local| local.port() != 0) {
            self.socket.local.store(words(local));
        }
        sys::set_errno(error);
    }

    /// The port that the socket is bound to, if it is known to be.
    pub(crate) fn port(&self) -> u16 {
        u16::try_from(self.socket.local.load()[4]).unwrap_or(0)
    }

    /// From now on the kernel's alone.
    pub(crate) fn give_back(&self, why: Why) {
        self.socket.published.store(0, Ordering::Release);
        self.socket.refuse(why);
        set(self.fd, self.number, Kind::Kernel);
    }
}
