//! Control connections: PDUs over TCP, plain or within TLS. No method blocks.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};

use haul_io::stream::Stream;
use rustls::Connection;
use rustls::pki_types::ServerName;
use webpki::EndEntityCert;

use crate::tls::{TlsContext, explain};

/// Bytes that may be queued to send before more is refused.
const QUEUE_BYTES_MAX: usize = 256 << 10;
/// The congestion control of control connections.
const CONGESTION: &str = "cubic";
/// Small messages are joined up to this many bytes.
const PIECE_BYTES: usize = 1_024;
/// Bytes read and discarded after TLS has failed. A close with unread bytes is a reset, which would
/// overtake the alert.
const DRAIN_BYTES_MAX: usize = 64 << 10;
/// The first bytes of an alert (RFC 8446 §5.1); no message of ours begins with them.
const TLS_ALERT: [u8; 2] = [21, 3];
/// The first bytes of a response of HTTP/1 (RFC 9112 §4).
const HTTP: &[u8] = b"HTTP/";
/// The exporter label that binds key proofs to a connection (RFC 5705, RFC 8446 §7.5).
const BINDING_LABEL: &[u8] = b"EXPORTER-haul-xsp";

/// A control connection.
#[derive(Debug)]
pub(crate) struct Control {
    stream: Stream,
    tls: Option<Box<Connection>>,
    out: VecDeque<Vec<u8>>,
    /// Bytes of the first of `out` that are sent.
    sent: usize,
    queued: usize,
    /// TLS has failed: one end could not authenticate the other.
    auth_failed: bool,
    /// Bytes have arrived.
    has_received: bool,
    /// Nothing more is sent.
    is_finished: bool,
}

impl Control {
    /// Creates a plain control connection over a stream that is connected or connecting.
    pub(crate) fn new(stream: Stream) -> Self {
        Self::over(stream, None)
    }

    /// Creates the client end of TLS. The peer's certificate must be valid for `server_name`, a
    /// host name or an address. [`Self::is_ready`] reports when the handshake is complete.
    ///
    /// # Errors
    /// No certificate can have that name.
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

    /// Creates the server end of TLS.
    ///
    /// # Errors
    /// None is known.
    pub(crate) fn tls_server(stream: Stream, context: &TlsContext) -> io::Result<Self> {
        let server = context.server().map_err(|error| invalid(explain(&error)))?;
        Ok(Self::over(stream, Some(Box::new(server.into()))))
    }

    fn over(stream: Stream, tls: Option<Box<Connection>>) -> Self {
        stream.resend_evenly();
        // Messages are few and bursty. BBR would take their rate for the path's, and pace them
        // accordingly. If the system does not allow another control, that happens.
        let _ = stream.set_congestion(CONGESTION);
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

    /// The socket, to be polled.
    pub(crate) const fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Whether the handshake is complete. Until then [`Self::read`] and [`Self::flush`] advance it.
    pub(crate) fn is_ready(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| !tls.is_handshaking())
    }

    /// Advances the handshake as far as possible, and returns whether it is complete. Bytes behind
    /// it stay for [`Self::read`].
    ///
    /// # Errors
    /// Those of [`Self::read`].
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

    /// Whether a certificate has authenticated the peer. TLS requires one here.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.tls.is_some() && self.is_ready()
    }

    /// Whether there is something to send.
    pub(crate) fn wants_write(&self) -> bool {
        let tls = self.tls.as_ref().is_some_and(|tls| tls.wants_write());
        tls || self.is_ready() && !self.out.is_empty()
    }

    /// Returns a value that binds key proofs to this connection. It is equal at both ends and on no
    /// other connection; zeros if the connection is plain or not ready.
    pub(crate) fn binding(&self) -> [u8; 32] {
        let exported = self
            .tls
            .as_ref()
            .filter(|_| self.is_ready())
            .map(|tls| tls.export_keying_material([0; 32], BINDING_LABEL, None));
        exported.and_then(Result::ok).unwrap_or_default()
    }

    /// Returns the peer's name from its certificate: the first DNS name, or the peer's address if
    /// the certificate covers it. `None` if the connection is plain or not ready.
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

    /// Reads received bytes; zero at the end.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has arrived; otherwise the error of the connection. `InvalidData`
    /// states in one line why authentication failed, and the peer has been sent the alert.
    pub(crate) fn read(&mut self, octets: &mut [u8]) -> io::Result<usize> {
        let read = match &mut self.tls {
            None => read_plain(&self.stream, octets, &mut self.has_received),
            Some(tls) => read_tls(&self.stream, tls, octets),
        };
        self.note_auth_failure(read)
    }

    /// Whether the connection has ended because authentication failed. The client may have
    /// completed its handshake before the server reports the failure.
    pub(crate) const fn auth_failed(&self) -> bool {
        self.auth_failed
    }

    fn note_auth_failure<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        let kind = result.as_ref().err().map(io::Error::kind);
        self.auth_failed |= kind == Some(io::ErrorKind::InvalidData);
        result
    }

    /// Stops sending, and notifies the peer. Data from the peer can still be read.
    pub(crate) fn finish(&mut self) {
        self.notify_close();
        self.stream.shutdown_send();
        (self.sent, self.queued) = (0, 0);
        self.out.clear();
        self.is_finished = true;
    }

    /// Notifies the peer that the end is intended.
    fn notify_close(&mut self) {
        if let Some(tls) = self.tls.as_mut().filter(|_| !self.is_finished) {
            tls.send_close_notify();
            // The peer may be gone.
            let _ = flush_tls(&self.stream, tls);
        }
    }

    /// Whether more may be queued.
    pub(crate) const fn has_room(&self) -> bool {
        self.queued < QUEUE_BYTES_MAX && !self.is_finished
    }

    /// Queues bytes to send. Small messages are joined in one packet and one record.
    pub(crate) fn push(&mut self, octets: Vec<u8>) {
        self.queued += octets.len();
        match self.out.back_mut() {
            Some(last) if last.len() + octets.len() <= PIECE_BYTES => last.extend(octets),
            _ => self.out.push_back(octets),
        }
    }

    /// Sends as much as the socket takes, and returns whether the queue is empty. Before the
    /// handshake is complete, queued bytes wait.
    ///
    /// # Errors
    /// The error of the connection.
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
                // It buffers a few records, which are sent before more is queued.
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

    /// Counts `count` bytes of the first piece as sent.
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

/// The socket as rustls needs it.
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

/// A peer that answers with a TLS alert supports only TLS. An answer of printable characters is
/// another protocol: no message of ours begins with one.
fn read_plain(stream: &Stream, octets: &mut [u8], has_received: &mut bool) -> io::Result<usize> {
    let count = stream.read(octets)?;
    let is_first = !std::mem::replace(has_received, true);
    if is_first && octets[..count].starts_with(&TLS_ALERT) {
        let text = "the peer speaks TLS only, and this end has no certificate";
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    if let (true, Some(b' '..=b'~')) = (is_first, octets[..count].first()) {
        let what = match octets[..count].starts_with(HTTP) {
            true => "an HTTP server answers",
            false => "another server answers",
        };
        let text = format!("no Longhaul gateway at this address: {what}");
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
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

/// Reads arrived records, and answers them.
fn take_records(stream: &Stream, tls: &mut Connection) -> io::Result<()> {
    let is_end = tls.read_tls(&mut Wire(stream))? == 0;
    if let Err(error) = tls.process_new_packets() {
        // Sends the alert.
        let _ = flush_tls(stream, tls);
        drain(stream);
        return Err(io::Error::new(io::ErrorKind::InvalidData, explain(&error)));
    }
    match flush_tls(stream, tls) {
        // This end has finished; what was queued before that is sent.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        flushed => drop(flushed?),
    }
    if is_end && tls.is_handshaking() {
        return Err(cut_off(tls));
    }
    Ok(())
}

/// Sends records, and returns whether all are sent.
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

/// Reads the alert with the peer's reason for closing.
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
