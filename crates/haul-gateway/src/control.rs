//! Control connections: octets of PDUs over TCP, plain or within TLS, that never wait.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};

use haul_io::stream::Stream;
use rustls::Connection;
use rustls::pki_types::ServerName;
use webpki::EndEntityCert;

use crate::tls::{TlsContext, explain};

/// Octets that wait to be sent. Beyond, nothing more is to be put in.
const QUEUE_BYTES_MAX: usize = 256 << 10;
/// Octets that go together.
const PIECE_BYTES: usize = 1_024;
/// Octets that are read and thrown away when TLS has failed: a close with octets unread is a reset,
/// which overtakes the alert.
const DRAIN_BYTES_MAX: usize = 64 << 10;
/// How an alert begins (RFC 8446 §5.1); no message of ours does.
const TLS_ALERT: [u8; 2] = [21, 3];
/// What binds proofs of keys to a connection (RFC 5705, RFC 8446 §7.5).
const BINDING_LABEL: &[u8] = b"EXPORTER-haul-xsp";

/// A control connection.
#[derive(Debug)]
pub(crate) struct Control {
    stream: Stream,
    tls: Option<Box<Connection>>,
    out: VecDeque<Vec<u8>>,
    /// Octets of the first of `out` that are sent.
    sent: usize,
    queued: usize,
    /// TLS has failed: one of the ends does not verify_chain the other.
    auth_failed: bool,
    /// Octets have come.
    has_received: bool,
    /// Nothing more goes out.
    is_finished: bool,
}

impl Control {
    /// Plain, over a stream that is connected, or being connected.
    pub(crate) fn new(stream: Stream) -> Self {
        Self::over(stream, None)
    }

    /// Within TLS, at the end that connected to `server_name`: a host's name or an address, for
    /// which the peer's certificate must be. It is ready when [`Self::is_ready`] says so.
    ///
    /// # Errors
    /// A name that no certificate can have.
    pub(crate) fn tls_client(
        stream: Stream,
        context: &TlsContext,
        server_name: &str,
    ) -> io::Result<Self> {
        let name = ServerName::try_from(server_name.to_owned());
        let name = name.map_err(|_| invalid(format!("'{server_name}' is no name of a host")))?;
        let client = context
            .client(name)
            .map_err(|error| invalid(explain(&error)))?;
        Ok(Self::over(stream, Some(Box::new(client.into()))))
    }

    /// Within TLS, at the end that was connected to.
    ///
    /// # Errors
    /// None is known.
    pub(crate) fn tls_server(stream: Stream, context: &TlsContext) -> io::Result<Self> {
        let server = context.server().map_err(|error| invalid(explain(&error)))?;
        Ok(Self::over(stream, Some(Box::new(server.into()))))
    }

    const fn over(stream: Stream, tls: Option<Box<Connection>>) -> Self {
        Self {
            stream,
            tls,
            out: VecDeque::new(),
            sent: 0,
            queued: 0,
            auth_failed: false,
            has_received: false,
            is_finished: false,
        }
    }

    /// The socket, to be waited for.
    pub(crate) const fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Whether octets can go through: TLS has shown who is who. Until then [`Self::read`] and
    /// [`Self::flush`] bring it on.
    pub(crate) fn is_ready(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| !tls.is_handshaking())
    }

    /// Brings the handshake on as far as it goes without waiting; octets behind it stay for
    /// [`Self::read`]. Whether it is done.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn handshake(&mut self) -> io::Result<bool> {
        self.flush()?;
        while let Some(tls) = self.tls.as_mut().filter(|tls| tls.is_handshaking()) {
            match take_records(&self.stream, tls) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                result => result?,
            }
        }
        Ok(true)
    }

    /// Whether the peer has shown who it is by a certificate: here nobody gets through TLS without.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.tls.is_some() && self.is_ready()
    }

    /// Whether there is something to send as soon as there is room.
    pub(crate) fn wants_write(&self) -> bool {
        let tls = self.tls.as_ref().is_some_and(|tls| tls.wants_write());
        tls || self.is_ready() && !self.out.is_empty()
    }

    /// What binds proofs of keys to this connection: the same at both ends and on no other
    /// connection; zeros where it is plain, or not ready.
    pub(crate) fn binding(&self) -> [u8; 32] {
        let exported = self
            .tls
            .as_ref()
            .filter(|_| self.is_ready())
            .map(|tls| tls.export_keying_material([0; 32], BINDING_LABEL, None));
        exported.and_then(Result::ok).unwrap_or_default()
    }

    /// Who the peer is by its certificate: the first host's name in it, or the address that it
    /// comes from if it is for that. None where the connection is plain or not ready.
    pub(crate) fn peer_name(&self) -> Option<String> {
        let tls = self.tls.as_ref().filter(|_| self.is_ready())?;
        let certificate = EndEntityCert::try_from(tls.peer_certificates()?.first()?).ok()?;
        if let Some(name) = certificate.valid_dns_names().next() {
            return Some(name.to_owned());
        }
        let ip = self.stream.peer_addr()?.ip().to_canonical();
        let is_for = certificate.verify_is_valid_for_subject_name(&ServerName::from(ip));
        is_for.is_ok().then(|| ip.to_string())
    }

    /// Octets that have arrived; zero at the end.
    ///
    /// # Errors
    /// `WouldBlock` where nothing has arrived; else that of the connection. `InvalidData` says in a
    /// line why the ends do not verify_chain each other, and the peer has been told.
    pub(crate) fn read(&mut self, octets: &mut [u8]) -> io::Result<usize> {
        let read = match &mut self.tls {
            None => read_plain(&self.stream, octets, &mut self.has_received),
            Some(tls) => read_tls(&self.stream, tls, octets),
        };
        self.note_auth_failure(read)
    }

    /// Whether it has ended because one of the ends does not verify_chain the other. The end that
    /// connects has shown what it has, and may go on, before the other says so.
    pub(crate) const fn auth_failed(&self) -> bool {
        self.auth_failed
    }

    fn note_auth_failure<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        let kind = result.as_ref().err().map(io::Error::kind);
        self.auth_failed |= kind == Some(io::ErrorKind::InvalidData);
        result
    }

    /// Sends nothing more, and has the peer know: what it has sent, and still sends, can be read.
    pub(crate) fn finish(&mut self) {
        self.notify_close();
        self.stream.shutdown_send();
        (self.sent, self.queued) = (0, 0);
        self.out.clear();
        self.is_finished = true;
    }

    /// Tells the peer that the end is meant.
    fn notify_close(&mut self) {
        if let Some(tls) = self.tls.as_mut().filter(|_| !self.is_finished) {
            tls.send_close_notify();
            // Whoever is gone need not be told.
            let _ = flush_tls(&self.stream, tls);
        }
    }

    /// Whether more may be put in.
    pub(crate) const fn has_room(&self) -> bool {
        self.queued < QUEUE_BYTES_MAX && !self.is_finished
    }

    /// Puts octets behind those that wait. What is little goes together, in one packet and one
    /// record.
    pub(crate) fn push(&mut self, octets: Vec<u8>) {
        self.queued += octets.len();
        match self.out.back_mut() {
            Some(last) if last.len() + octets.len() <= PIECE_BYTES => last.extend(octets),
            _ => self.out.push_back(octets),
        }
    }

    /// Sends what there is room for; whether nothing waits for room. Until it is ready, what was
    /// put in waits for the peer.
    ///
    /// # Errors
    /// That of the connection.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        let flushed = self.flush_all();
        self.note_auth_failure(flushed)
    }

    fn flush_all(&mut self) -> io::Result<bool> {
        if self.is_finished {
            return Ok(true);
        }
        loop {
            if let Some(tls) = &mut self.tls
                && !flush_tls(&self.stream, tls)?
            {
                return Ok(false);
            }
            let is_ready = self.is_ready();
            let Some(first) = self.out.front().filter(|_| is_ready) else {
                return Ok(true);
            };
            let rest = &first[self.sent..];
            let written = match &mut self.tls {
                None => self.stream.write(rest),
                // It keeps a few records, which go before more is put in.
                Some(tls) => tls.writer().write(rest),
            };
            match written {
                Ok(0) if !rest.is_empty() => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.forget(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// `count` octets of the first piece are sent.
    fn forget(&mut self, count: usize) {
        self.sent += count;
        self.queued -= count;
        if self
            .out
            .front()
            .is_some_and(|first| first.len() == self.sent)
        {
            self.out.pop_front();
            self.sent = 0;
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.notify_close();
    }
}

/// The socket as TLS wants it.
struct Wire<'a>(&'a Stream);

impl io::Read for Wire<'_> {
    fn read(&mut self, octets: &mut [u8]) -> io::Result<usize> {
        self.0.read(octets)
    }
}

impl io::Write for Wire<'_> {
    fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        self.0.write(octets)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What answers with an alert of TLS speaks nothing else.
fn read_plain(stream: &Stream, octets: &mut [u8], has_received: &mut bool) -> io::Result<usize> {
    let count = stream.read(octets)?;
    let is_first = !std::mem::replace(has_received, true);
    if is_first && octets[..count].starts_with(&TLS_ALERT) {
        let text = "the peer speaks TLS only, and this end has no certificate";
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(count)
}

fn read_tls(stream: &Stream, tls: &mut Connection, octets: &mut [u8]) -> io::Result<usize> {
    loop {
        match tls.reader().read(octets) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(cut_off(tls)),
            count => return count,
        }
        take_records(stream, tls)?;
    }
}

/// Takes records that have arrived, and answers them.
fn take_records(stream: &Stream, tls: &mut Connection) -> io::Result<()> {
    let is_end = tls.read_tls(&mut Wire(stream))? == 0;
    if let Err(error) = tls.process_new_packets() {
        // The alert that says so.
        let _ = flush_tls(stream, tls);
        drain(stream);
        return Err(io::Error::new(io::ErrorKind::InvalidData, explain(&error)));
    }
    match flush_tls(stream, tls) {
        // This end has finished; what it would still say was put in before that.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        flushed => drop(flushed?),
    }
    if is_end && tls.is_handshaking() {
        return Err(cut_off(tls));
    }
    Ok(())
}

/// Sends records; whether all are sent.
fn flush_tls(stream: &Stream, tls: &mut Connection) -> io::Result<bool> {
    while tls.wants_write() {
        match tls.write_tls(&mut Wire(stream)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(alert(stream, tls).unwrap_or(error)),
        }
    }
    Ok(true)
}

/// Why the peer takes nothing more, where it has said so.
fn alert(stream: &Stream, tls: &mut Connection) -> Option<io::Error> {
    while tls.read_tls(&mut Wire(stream)).is_ok_and(|count| count > 0) {
        if let Err(error) = tls.process_new_packets() {
            return Some(io::Error::new(io::ErrorKind::InvalidData, explain(&error)));
        }
    }
    None
}

fn cut_off(tls: &Connection) -> io::Error {
    let when = if tls.is_handshaking() {
        "before TLS was agreed on"
    } else {
        "without ending TLS"
    };
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        format!("the peer closed the connection {when}"),
    )
}

fn drain(stream: &Stream) {
    stream.shutdown_send();
    let (mut octets, mut left) = ([0; 4096], DRAIN_BYTES_MAX);
    while left > 0 {
        match stream.read(&mut octets) {
            Ok(count) if count > 0 => left = left.saturating_sub(count),
            _ => return,
        }
    }
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

#[cfg(test)]
mod tests;
