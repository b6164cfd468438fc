//! How a client and the agent that ssh started find each other: the agent's line, behind whatever a
//! login prints, then one message in each direction.

use std::io::{self, BufRead};

use haul_control::abridged;
use minicbor::{Decode, Encode};

use crate::fault::{Code, Fault};
use crate::{SOFTWARE, printable};

/// First word of the agent's line.
const MAGIC: &str = "haul-agent";
/// Version of the messages and frames behind the line.
const VERSION: u16 = 1;
/// Maximum output of a login before the agent's line, bytes.
const NOISE_MAX: usize = 256 << 10;
/// Maximum length of a line that is examined, bytes.
const LINE_MAX: usize = 256;

/// Client to agent: open a server for this client.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Introduction {
    /// Software and its version, for people.
    #[n(0)]
    pub(crate) software: String,
    /// The client's public key, which the server is to accept, and no other.
    #[cbor(n(1), with = "minicbor::bytes")]
    pub(crate) key: [u8; 32],
    /// First and last port that the server may listen on, unless the agent's environment names
    /// others.
    #[n(2)]
    pub(crate) ports: Option<(u16, u16)>,
    /// Open every port of the range for a check of the path, instead of a server.
    #[n(3)]
    pub(crate) probe: bool,
}

/// Agent to client: the server is open, or why it is not.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Welcome {
    /// The server's public key.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub(crate) key: [u8; 32],
    /// The ports that are open, TCP and UDP: of a server one; none if the agent could open none.
    #[n(1)]
    pub(crate) ports: Vec<u16>,
    /// The agent's own address in SSH_CONNECTION.
    #[n(2)]
    pub(crate) address: Option<String>,
    /// The range that was tried, first and last port.
    #[n(3)]
    pub(crate) range: (u16, u16),
    /// Why there is no server.
    #[n(4)]
    pub(crate) failure: Option<String>,
    /// Bytes that a probe of the path must carry.
    #[cbor(n(5), with = "minicbor::bytes")]
    pub(crate) token: [u8; 16],
}

/// Returns the agent's line. It begins with a line break: what a login printed before may lack one.
pub(super) fn line() -> String {
    format!("\n{MAGIC} {VERSION} {SOFTWARE}\n")
}

/// Reads up to and with the agent's line; returns the agent's software.
///
/// # Errors
/// [`Code::NotHaul`] if no line comes, with the last line that did; [`Code::Version`] if the agent
/// has another version.
pub(super) fn skip_to_agent(input: &mut impl BufRead) -> Result<String, Fault> {
    let mut last = String::new();
    let mut left = NOISE_MAX;
    loop {
        let line = match read_line(input, &mut left) {
            Ok(Some(line)) => line,
            Ok(None) => return Err(nobody(&last)),
            Err(error) => return Err(Fault::connection(&error)),
        };
        if let Some((version, software)) = parse(&line) {
            if version == VERSION {
                return Ok(software);
            }
            return Err(Fault::new(
                Code::Version,
                format!("the other host runs {software}, with which {SOFTWARE} cannot talk by ssh"),
            )
            .hint("install the same version of haul at both ends"));
        }
        let text = printable(line.trim_ascii());
        if !text.is_empty() {
            last = text;
        }
    }
}

fn nobody(last: &str) -> Fault {
    let said = match last {
        "" => String::new(),
        last => format!("; its last line is '{}'", abridged(last)),
    };
    Fault::new(
        Code::NotHaul,
        format!("ssh logged in, but no haul answered{said}"),
    )
}

/// Reads a line; one that is too long is cut into pieces. `None` at the end of the input or of what
/// may be `left`.
fn read_line(input: &mut impl BufRead, left: &mut usize) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    while line.len() < LINE_MAX && *left > 0 {
        let ready = input.fill_buf()?;
        let room = ready.len().min(LINE_MAX - line.len()).min(*left);
        if room == 0 {
            break;
        }
        let end = ready[..room].iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(room, |end| end + 1);
        line.extend_from_slice(&ready[..taken]);
        input.consume(taken);
        *left -= taken;
        if end.is_some() {
            break;
        }
    }
    Ok((!line.is_empty()).then_some(line))
}

/// Parses the agent's line: its version and software.
pub(crate) fn parse(line: &[u8]) -> Option<(u16, String)> {
    let text = std::str::from_utf8(line).ok()?.trim_end();
    let rest = text.strip_prefix(MAGIC)?.strip_prefix(' ')?;
    let (version, software) = rest.split_once(' ')?;
    Some((version.parse().ok()?, printable(software.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_found_behind_what_a_login_prints() {
        let noise = format!(
            "Last login: today\r\n{}\x1b[1m$ {}behind it",
            "x".repeat(1000),
            line()
        );
        let mut input = noise.as_bytes();
        assert_eq!(skip_to_agent(&mut input).unwrap(), SOFTWARE);
        assert_eq!(input, b"behind it");
    }

    #[test]
    fn without_the_line_the_last_words_are_told() {
        let mut input: &[u8] = b"hello\nThis account is not available.\n";
        let fault = skip_to_agent(&mut input).unwrap_err();
        assert_eq!(fault.code, Code::NotHaul);
        assert!(fault.text.contains("'This account is not available.'"));
        // No end, no line: it does not read for ever.
        let mut endless = io::BufReader::new(io::repeat(b'x'));
        assert_eq!(skip_to_agent(&mut endless).unwrap_err().code, Code::NotHaul);
    }

    #[test]
    fn another_version_is_one_line_with_both() {
        let mut input: &[u8] = b"haul-agent 99 haul 9.9\n";
        let fault = skip_to_agent(&mut input).unwrap_err();
        assert_eq!(fault.code, Code::Version);
        assert!(fault.text.contains("haul 9.9") && fault.text.contains(SOFTWARE));
    }
}
