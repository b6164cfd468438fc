//! The next version of the protocols, so that tests meet what a later release may send. Builds for
//! tests have it; in released ones nothing changes (docs/adr/0054-versions.md).

#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicU8, Ordering};

/// Index of the field that the next version adds to each structure. The fields before it that a
/// structure lacks are null.
#[cfg(debug_assertions)]
const ADDED_FIELD: u8 = 15;
/// The message that the next version adds to services in CBOR: `[99, [["added"]]]`.
#[cfg(debug_assertions)]
const ADDED_MESSAGE: &[u8] = b"\x82\x18\x63\x81\x81\x65added";
/// The same of services in JSON.
#[cfg(debug_assertions)]
const ADDED_JSON: &[u8] = br#"{"is":"added","more":[1]}"#;

#[cfg(debug_assertions)]
static NEXT: AtomicU8 = AtomicU8::new(0);

/// Makes this process speak the next minor version: a field more in each message, and a message
/// more beside others. If `is_incompatible`, it speaks the next version of each service instead.
#[cfg(debug_assertions)]
pub fn pretend(is_incompatible: bool) {
    NEXT.store(1 + u8::from(is_incompatible), Ordering::Relaxed);
}

#[cfg(debug_assertions)]
fn is_minor() -> bool {
    NEXT.load(Ordering::Relaxed) == 1
}

/// Returns the name of a service as this end speaks it.
pub(crate) fn service(name: &str) -> String {
    #[cfg(debug_assertions)]
    if NEXT.load(Ordering::Relaxed) == 2 {
        let (stem, version) = name.split_once('/').unwrap_or((name, "1"));
        return format!("{stem}/{}", version.parse::<u32>().unwrap_or(0) + 1);
    }
    name.to_owned()
}

/// Adds a field to an array in CBOR, to a message `[kind, [fields]]`, or to an object in JSON.
#[must_use]
pub fn extend(message: Vec<u8>) -> Vec<u8> {
    #[cfg(debug_assertions)]
    if is_minor() {
        return match message[..] {
            [b'{', ..] => [br#"{"added":[1],"#, &message[1..]].concat(),
            [0x82, 0..0x18, 0x81, ..] => extend_array(message, 3),
            [0x82, 0x18, _, 0x81, ..] => extend_array(message, 4),
            // A message without fields.
            [0x82, _, 0x80] | [0x82, 0x18, _, 0x80] => message,
            _ => extend_array(message, 0),
        };
    }
    message
}

/// Adds a field to the array of at most 15 fields that begins at `at` and ends with the message.
#[cfg(debug_assertions)]
fn extend_array(mut message: Vec<u8>, at: usize) -> Vec<u8> {
    const ARRAY: u8 = 0x80;
    const NULL: u8 = 0xf6;
    let fields = message[at] - ARRAY;
    message[at] = ARRAY + ADDED_FIELD + 1;
    message.extend((fields..ADDED_FIELD).map(|_| NULL));
    message.push(1);
    message
}

/// Returns the frames, kind and body, that the next version sends before a message: one of a kind
/// that no version knows, and a message.
pub(crate) fn added(message: &[u8]) -> Vec<(u8, &'static [u8])> {
    #[cfg(debug_assertions)]
    if is_minor() {
        let added = match message {
            [b'{', ..] => ADDED_JSON,
            _ => ADDED_MESSAGE,
        };
        return vec![(99, b"added"), (1, added)];
    }
    let _ = message;
    Vec::new()
}

/// Returns a text that names this software, with the version that it has.
pub(crate) fn software(text: &str) -> String {
    #[cfg(debug_assertions)]
    if NEXT.load(Ordering::Relaxed) != 0 {
        return "haul 0.2.0".to_owned();
    }
    text.to_owned()
}
