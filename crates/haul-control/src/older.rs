//! What clients without TLS send first, and the line that each of them prints.

use minicbor::Encode;

use crate::{PROTOCOL, SOFTWARE};

/// First bytes of a control connection for files before TLS (session protocol 1 to 4).
const FILES: &[u8; 8] = b"haulctl\n";
/// First bytes of a control connection of a bench before TLS.
const BENCH: &[u8; 6] = b"{\"is\":";
/// The session protocol inside TLS.
const SESSION: u16 = 5;
/// [`crate::fault::Code::Version`] on the wire.
const VERSION: u8 = 11;

/// `Hello` of session protocol 1 to 4, whose kind was 0.
#[derive(Encode)]
enum Message<'a> {
    #[n(0)]
    Hello(#[n(0)] Hello<'a>),
}

#[derive(Encode)]
struct Hello<'a> {
    #[n(0)]
    version_min: u16,
    #[n(1)]
    version_max: u16,
    #[n(2)]
    software: &'a str,
    #[cbor(n(3), with = "minicbor::bytes")]
    transfer: [u8; 16],
    #[n(4)]
    dead_after_ms: u32,
}

/// Returns the answer to an older client, in its format; `None` if these are not the first bytes of
/// one.
pub(crate) fn answer(first: [u8; 8]) -> Option<Vec<u8>> {
    if first == *FILES {
        // A version that the client does not speak makes it name both. It needs no check.
        let hello = Message::Hello(Hello {
            version_min: SESSION,
            version_max: SESSION,
            software: SOFTWARE,
            transfer: [0; 16],
            dead_after_ms: 0,
        });
        let body = minicbor::to_vec(hello).ok()?;
        let length = u32::try_from(body.len()).ok()?;
        return Some([FILES, &length.to_be_bytes()[..], &body].concat());
    }
    first.starts_with(BENCH).then(|| {
        format!(
            "{{\"is\":\"failed\",\"code\":{VERSION},\"text\":\"the server runs {SOFTWARE} and \
             speaks {PROTOCOL}; the client speaks haul-bench 3 or haul-bench-rdma 4 or earlier, \
             without TLS\",\"hint\":\"update haul at this end\"}}\n"
        )
        .into_bytes()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_older_clients_get_an_answer_without_tls() {
        assert_eq!(answer(*b"GET / HT"), None);
        assert_eq!(answer(*b"\x16\x03\x01\x02\x00\x01\x00\x01"), None);
        let files = answer(*b"haulctl\n").unwrap();
        let length = u32::from_be_bytes(files[8..12].try_into().unwrap());
        assert_eq!(files.len(), 12 + length as usize);
        assert!(
            files
                .windows(SOFTWARE.len())
                .any(|part| part == SOFTWARE.as_bytes())
        );
        let bench = answer(*b"{\"is\":\"a").unwrap();
        assert!(bench.ends_with(b"\"}\n"));
    }
}
