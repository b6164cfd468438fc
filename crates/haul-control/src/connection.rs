//! A control connection up to its greetings: TLS first, then one frame of each end.

use std::io::{self, Read as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_seal::Cipher;
use rustls::server::{Accepted, AcceptedAlert, Acceptor};
use rustls::{AlertDescription, ClientConnection, Error};
use zeroize::Zeroizing;

use crate::cancel::Cancel;
use crate::fault::{Code, Fault, plain};
use crate::frame::{FRAME_MAX, Frame, GREETING_MAX, Greeting};
use crate::identity::PeerIdentity;
use crate::pending::Place;
use crate::stream::Stream;
use crate::trust::{ClientConfig, Rights, ServerConfig};
use crate::{PROTOCOL, next, printable, tls};

/// Bytes read at a time.
const PIECE: usize = 16 << 10;
/// Maximum bytes of a client's first TLS message.
const HELLO_MAX: usize = 64 << 10;
/// How long each part of a last answer may take.
pub const FAREWELL: Duration = Duration::from_secs(1);
/// First bytes of TLS records: a handshake message, an alert (RFC 8446 §5.1).
const RECORDS: [[u8; 2]; 2] = [[22, 3], [21, 3]];

/// Why a client's handshake failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// The failure as users see it.
    pub fault: Fault,
    /// The reason cannot be an effect of damage or of a forged packet. Otherwise another attempt
    /// tells whether it was one.
    pub is_certain: bool,
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Self {
        Self {
            fault,
            is_certain: true,
        }
    }
}

impl From<Failed> for Fault {
    fn from(failed: Failed) -> Self {
        failed.fault
    }
}

/// A connection whose TLS handshake is complete. Its threads start with [`Connection::split`].
pub struct Connection {
    pub(crate) stream: Arc<Stream>,
    pub(crate) tls: rustls::Connection,
    /// Plaintext that has arrived.
    pub(crate) inbox: Vec<u8>,
    /// The other end in messages to the user: its address, and what it is.
    pub(crate) name: String,
    pub(crate) role: &'static str,
    peer: PeerIdentity,
    pub(crate) deadline: Instant,
    pub(crate) is_greeted: bool,
    /// An accepted connection is pending until its threads start: one that is refused, or that
    /// waits for its turn, counts as well.
    pub(crate) place: Option<Place>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("name", &self.name)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

/// A client whose first message has arrived.
pub struct Hello {
    stream: Stream,
    accepted: Accepted,
    name: String,
    deadline: Instant,
    /// Its place among the pending ones of the port that accepted it.
    pub(crate) place: Option<Place>,
}

impl std::fmt::Debug for Hello {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hello")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Hello {
    /// Reads the first message of a client. `first` is what has been read of the stream before.
    /// `name` stands for the client in messages to the user.
    ///
    /// # Errors
    /// The client speaks no TLS 1.3, or the connection failed.
    pub fn read(
        stream: Stream,
        first: &[u8],
        name: &str,
        deadline: Instant,
    ) -> Result<Self, Fault> {
        let failed = |error: io::Error| Fault::connection(&error);
        let mut acceptor = Acceptor::default();
        let (mut piece, mut got, mut total) = ([0; PIECE], first.len(), 0);
        piece
            .get_mut(..got)
            .ok_or_else(|| Fault::new(Code::NotHaul, "the client does not speak haul"))?
            .copy_from_slice(first);
        loop {
            total += got;
            let mut bytes = &piece[..got];
            while !bytes.is_empty() {
                if acceptor.read_tls(&mut bytes).map_err(failed)? == 0 {
                    return Err(Fault::new(Code::PeerGone, "the client has disconnected"));
                }
            }
            match acceptor.accept() {
                Ok(Some(accepted)) => {
                    return Ok(Self {
                        stream,
                        accepted,
                        name: name.to_owned(),
                        deadline,
                        place: None,
                    });
                }
                Ok(None) if total > HELLO_MAX => {
                    return Err(Fault::protocol("the client's first message is too long"));
                }
                Ok(None) => {}
                Err(refused) => return Err(refuse(&stream, name, deadline, refused)),
            }
            got = stream.read(&mut piece, deadline).map_err(failed)?;
            if got == 0 {
                return Err(Fault::new(Code::PeerGone, "the client has disconnected"));
            }
        }
    }

    /// Returns the byte stream below.
    #[must_use]
    pub const fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Completes the handshake, and asks admission about the client. A client that is not admitted
    /// gets the reason.
    ///
    /// # Errors
    /// The client speaks another version, is not trusted or admitted, or the connection failed.
    pub fn complete(self, config: &ServerConfig) -> Result<(Connection, Rights), Fault> {
        let Self {
            stream,
            accepted,
            name,
            deadline,
            place,
        } = self;
        let failed = |error: io::Error| Fault::connection(&error);
        let (chosen, mismatch) = match config.tls.choose(&accepted.client_hello()) {
            Ok(chosen) => chosen,
            Err(fault) => {
                // RFC 8446 §6.2: a fatal alert. Without an identity nothing else can be sent.
                let reason = match fault.code {
                    Code::NotHaul => AlertDescription::NoApplicationProtocol,
                    _ => AlertDescription::HandshakeFailure,
                };
                let _ = stream.write(&[21, 3, 3, 0, 2, 2, reason.into()], deadline);
                return Err(fault);
            }
        };
        let tls = match accepted.into_connection(chosen) {
            Ok(tls) => tls,
            Err(refused) => return Err(refuse(&stream, &name, deadline, refused)),
        };
        let mut this = Connection::over(stream, tls.into(), &name, "the client", deadline);
        this.place = place;
        this.flush().map_err(failed)?;
        if let Some(place) = &this.place {
            place.wait_for_client();
        }
        let mut piece = [0; PIECE];
        while this.tls.is_handshaking() {
            let got = this.stream.read(&mut piece, deadline).map_err(failed)?;
            if got == 0 {
                return Err(this.cut("during the handshake"));
            }
            this.feed(&piece[..got])
                .map_err(|error| tls::handshake_fault(&error, &name))?;
            this.flush().map_err(failed)?;
        }
        this.peer = tls::peer_identity(&this.tls);
        let admitted = match mismatch {
            Some(fault) => Err(fault),
            None => (config.admission)(&this.peer).map_err(Fault::from),
        };
        match admitted {
            Ok(rights) => Ok((this, rights)),
            Err(fault) => {
                this.refuse(&fault);
                Err(fault)
            }
        }
    }
}

/// Sends the alert that tells a client why its first message is refused.
fn refuse(
    stream: &Stream,
    name: &str,
    deadline: Instant,
    (error, mut alert): (Error, AcceptedAlert),
) -> Fault {
    let mut bytes = Vec::new();
    let _ = alert.write_all(&mut bytes);
    // The client may have left.
    let _ = stream.write(&bytes, deadline);
    tls::handshake_fault(&error, name)
}

impl Connection {
    /// Completes a handshake as the client. `name` stands for the server in messages to the user.
    /// This end's last handshake message leaves with the first frame that it sends.
    ///
    /// # Errors
    /// No haul answers ([`Code::Unreachable`], [`Code::NotHaul`]), one end does not trust the other
    /// ([`Code::NotAuthenticated`]), or the connection failed ([`Code::PeerGone`]).
    pub fn client(
        stream: Stream,
        config: &ClientConfig,
        name: &str,
        deadline: Instant,
    ) -> Result<Self, Failed> {
        let client = Arc::clone(&config.tls.config);
        let tls = ClientConnection::new(client, config.tls.name.clone())
            .map_err(|error| tls::handshake_fault(&error, name))?;
        let mut this = Self::over(stream, tls.into(), name, "the server", deadline);
        this.flush().map_err(|error| this.unanswered(&error))?;
        let mut is_first = true;
        while this.tls.is_handshaking() {
            let mut piece = [0; PIECE];
            let got = match this.stream.read(&mut piece, deadline) {
                Ok(got) => got,
                Err(error) if !is_first => return Err(Fault::connection(&error).into()),
                Err(error) => return Err(this.unanswered(&error)),
            };
            let bytes = &piece[..got];
            if got == 0 && is_first {
                let end = io::ErrorKind::UnexpectedEof.into();
                return Err(this.unanswered(&end));
            }
            if got == 0 {
                return Err(this.cut("during the handshake").into());
            }
            if std::mem::take(&mut is_first) {
                this.check_answer(bytes)?;
            }
            this.feed(bytes).map_err(|error| {
                let mut fault = tls::handshake_fault(&error, name);
                if let Some(key) = config.refused_key().filter(|_| is_refusal(&error)) {
                    fault.text = format!("{}: {key} ({})", fault.text, key.fingerprint());
                }
                Failed {
                    fault,
                    is_certain: !matches!(error, Error::AlertReceived(_)),
                }
            })?;
            // The last flight waits for the first frame: both leave in one packet.
            if this.tls.is_handshaking() {
                this.flush().map_err(|error| Fault::connection(&error))?;
            }
        }
        this.peer = tls::peer_identity(&this.tls);
        Ok(this)
    }

    /// Completes a handshake as the server: [`Hello::read`], then [`Hello::complete`].
    ///
    /// # Errors
    /// Those of the two.
    pub fn server(
        stream: Stream,
        first: &[u8],
        config: &ServerConfig,
        name: &str,
        deadline: Instant,
    ) -> Result<(Self, Rights), Fault> {
        Hello::read(stream, first, name, deadline)?.complete(config)
    }

    fn over(
        stream: Stream,
        mut tls: rustls::Connection,
        name: &str,
        role: &'static str,
        deadline: Instant,
    ) -> Self {
        // Bounded by `FRAME_MAX`, and sent before more is taken.
        tls.set_buffer_limit(None);
        Self {
            stream: Arc::new(stream),
            tls,
            inbox: Vec::new(),
            name: name.to_owned(),
            role,
            peer: PeerIdentity::Anonymous,
            deadline,
            is_greeted: false,
            place: None,
        }
    }

    /// Returns who the peer has proved to be.
    #[must_use]
    pub const fn peer(&self) -> &PeerIdentity {
        &self.peer
    }

    /// Returns the byte stream below.
    #[must_use]
    pub const fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Returns a secret that only the two ends of this connection have, and that differs for each
    /// label and context (RFC 8446 §7.5).
    ///
    /// # Errors
    /// None is known: the handshake is complete.
    pub fn export(&self, label: &str, context: &[u8]) -> Result<Exported, Fault> {
        export(&self.tls, label, context)
    }

    /// Returns the cipher of sealed channels whose secrets this connection gives. It is
    /// ChaCha20-Poly1305 if one of the ends has no AES instructions.
    #[must_use]
    pub fn cipher(&self) -> Cipher {
        tls::cipher(&self.tls)
    }

    /// Returns the handle that ends this connection from another thread.
    #[must_use]
    pub fn closer(&self) -> Cancel {
        let stream = Arc::clone(&self.stream);
        Cancel::by(move || stream.close())
    }

    /// Sets until when [`Self::send`] and [`Self::receive`] wait.
    pub const fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// Sends this end's greeting, and messages of the service that need no answer first.
    ///
    /// # Errors
    /// The connection failed, or a message is too long.
    pub fn greet(&mut self, greeting: &Greeting, messages: &[Vec<u8>]) -> Result<(), Fault> {
        let mut flight = Vec::new();
        let greeting = Greeting {
            service: next::service(&greeting.service),
            ..greeting.clone()
        };
        Frame::Greeting(greeting).write(&mut flight)?;
        for message in messages {
            Frame::Message(message.clone()).write(&mut flight)?;
        }
        self.write(&flight)
    }

    /// Receives the greeting of the peer.
    ///
    /// # Errors
    /// The peer refuses this end, or the connection failed.
    pub fn greeting(&mut self) -> Result<Greeting, Fault> {
        match self.frame(GREETING_MAX)? {
            Frame::Greeting(greeting) => {
                self.is_greeted = true;
                Ok(greeting)
            }
            _ => Err(Fault::protocol("the peer did not begin with its greeting")),
        }
    }

    /// Sends a message of the service.
    ///
    /// # Errors
    /// The connection failed, or the message is too long.
    pub fn send(&mut self, message: &[u8]) -> Result<(), Fault> {
        let mut bytes = Vec::new();
        Frame::Message(message.to_vec()).write(&mut bytes)?;
        self.write(&bytes)
    }

    /// Receives a message of the service.
    ///
    /// # Errors
    /// The peer gave up, or the connection failed.
    pub fn receive(&mut self) -> Result<Vec<u8>, Fault> {
        let max = if self.is_greeted {
            FRAME_MAX
        } else {
            GREETING_MAX
        };
        self.receive_within(max)
    }

    /// Receives a message whose frame has at most `max` bytes.
    pub(crate) fn receive_within(&mut self, max: usize) -> Result<Vec<u8>, Fault> {
        match self.frame(max)? {
            Frame::Message(message) => Ok(message),
            _ => Err(Fault::protocol("the peer sent a frame at the wrong time")),
        }
    }

    /// Tells the peer why this end gives up, and ends this end's direction. Reads for a moment what
    /// the peer still sends: closing with unread data would discard the reason.
    pub fn refuse(&mut self, fault: &Fault) {
        self.refuse_within(fault, FAREWELL);
    }

    /// As [`refuse`](Self::refuse); each part of it takes at most `patience`.
    pub fn refuse_within(&mut self, fault: &Fault, patience: Duration) {
        self.deadline = Instant::now() + patience;
        let mut bytes = Vec::new();
        let sent = Frame::Fault(fault.clone())
            .write(&mut bytes)
            .and_then(|()| self.write(&bytes));
        if sent.is_err() {
            return;
        }
        self.tls.send_close_notify();
        let _ = self.flush();
        self.stream.finish();
        let deadline = Instant::now() + patience;
        let mut piece = [0; PIECE];
        while self
            .stream
            .read(&mut piece, deadline)
            .is_ok_and(|got| got > 0)
        {}
    }

    /// Returns the next frame that is not a heartbeat. A fault of the peer is an error.
    fn frame(&mut self, max: usize) -> Result<Frame, Fault> {
        self.flush().map_err(|error| Fault::connection(&error))?;
        loop {
            while let Some((frame, length)) = Frame::read(&self.inbox, max)? {
                self.inbox.drain(..length);
                match frame {
                    None | Some(Frame::Ping) => {}
                    Some(Frame::Fault(fault)) => return Err(from_peer(fault, self.role)),
                    Some(frame) => return Ok(frame),
                }
            }
            let mut piece = [0; PIECE];
            let got = self
                .stream
                .read(&mut piece, self.deadline)
                .map_err(|error| Fault::connection(&error))?;
            if got == 0 {
                return Err(self.cut("during the handshake"));
            }
            if let Err(error) = self.feed(&piece[..got]) {
                return Err(tls::record_fault(&error, self.role));
            }
        }
    }

    fn write(&mut self, plain: &[u8]) -> Result<(), Fault> {
        self.tls
            .writer()
            .write_all(plain)
            .and_then(|()| self.flush())
            .map_err(|error| Fault::connection(&error))
    }

    /// Decrypts what has arrived. If that fails, tells the peer.
    fn feed(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let fed = decrypt(&mut self.tls, bytes, &mut self.inbox);
        if fed.is_err() {
            // Sends the alert, if the peer is still there.
            let _ = self.flush();
            self.stream.finish();
        }
        fed
    }

    /// Sends what TLS has to send.
    fn flush(&mut self) -> io::Result<()> {
        let bytes = encrypted(&mut self.tls)?;
        self.stream.write(&bytes, self.deadline)
    }

    fn cut(&self, when: &str) -> Fault {
        let text = format!("{} closed the connection {when}", self.role);
        Fault::new(Code::PeerGone, text).hint(crate::fault::RESUME)
    }

    /// Makes the fault of a server that has answered nothing.
    fn unanswered(&self, error: &io::Error) -> Failed {
        let how = match error.kind() {
            io::ErrorKind::ConnectionAborted => return Fault::connection(error).into(),
            io::ErrorKind::TimedOut => "sends nothing",
            io::ErrorKind::UnexpectedEof => "closes it",
            _ => "resets it",
        };
        let text = format!("{} accepts the connection and {how}", self.name);
        let fault = Fault::new(Code::Unreachable, text).hint(format!(
            "check that 'haul serve' runs there and listens on that port; a haul without TLS \
             (session protocol 4 or earlier) must be updated, this end speaks {PROTOCOL}"
        ));
        Failed {
            fault,
            // A server closes what damage has made unreadable, and what too many others crowd out.
            is_certain: error.kind() == io::ErrorKind::TimedOut,
        }
    }

    /// Checks that the server's first bytes are TLS. Damage may have flipped two bits, which TLS
    /// finds.
    fn check_answer(&self, bytes: &[u8]) -> Result<(), Fault> {
        if bytes.first_chunk().is_none_or(|first| is_tls(*first)) {
            return Ok(());
        }
        let answer = printable(&bytes[..bytes.len().min(8)]);
        let text = format!("{} is not haul; it answers '{answer}'", self.name);
        Err(Fault::new(Code::NotHaul, text).hint("check the address and the port"))
    }
}

/// Returns whether a connection that begins like this is TLS, with at most two flipped bits.
pub(crate) fn is_tls(first: [u8; 2]) -> bool {
    RECORDS
        .iter()
        .any(|record| (u16::from_be_bytes(*record) ^ u16::from_be_bytes(first)).count_ones() <= 2)
}

fn is_refusal(error: &Error) -> bool {
    let refused = rustls::CertificateError::ApplicationVerificationFailure;
    *error == Error::InvalidCertificate(refused)
}

/// Makes the peer's fault this end's, which names where it arose.
pub(crate) fn from_peer(fault: Fault, peer: &str) -> Fault {
    Fault {
        text: format!("{peer}: {}", fault.text),
        ..fault
    }
}

/// Decrypts `bytes` and appends the plaintext to `inbox`.
pub(crate) fn decrypt(
    tls: &mut rustls::Connection,
    mut bytes: &[u8],
    inbox: &mut Vec<u8>,
) -> Result<(), Error> {
    while !bytes.is_empty() {
        let taken = tls
            .read_tls(&mut bytes)
            .map_err(|error| Error::General(plain(&error)))?;
        if taken == 0 {
            // The peer has sent close_notify: the rest is ignored (RFC 8446 §6.1).
            break;
        }
        let state = tls.process_new_packets()?;
        let start = inbox.len();
        inbox.resize(start + state.plaintext_bytes_to_read(), 0);
        // Exactly these bytes are there.
        let _ = tls.reader().read_exact(&mut inbox[start..]);
    }
    Ok(())
}

/// Takes the records that TLS has to send.
pub(crate) fn encrypted(tls: &mut rustls::Connection) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while tls.wants_write() {
        tls.write_tls(&mut bytes)?;
    }
    Ok(bytes)
}

/// A secret of a connection; erased when it is dropped.
pub type Exported = Zeroizing<[u8; 32]>;

pub(crate) fn export(
    tls: &rustls::Connection,
    label: &str,
    context: &[u8],
) -> Result<Exported, Fault> {
    let mut secret = Exported::default();
    tls.export_keying_material(&mut secret[..], label.as_bytes(), Some(context))
        .map_err(|error| Fault::new(Code::Other, format!("cannot derive a secret: {error}")))?;
    Ok(secret)
}
