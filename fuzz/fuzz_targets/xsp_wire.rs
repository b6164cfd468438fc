//! Bytes as PDUs of XSP version 2: what parses is written and read again alike.

#![no_main]

use haul_xsp::SessionId;
use haul_xsp::wire::{HEADER_LEN, Header, Pdu};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(head) = bytes.first_chunk::<HEADER_LEN>()
        && let Ok(header) = Header::parse(head)
    {
        assert_eq!(header.emit(), *head);
    }
    let Some((&kind, body)) = bytes.split_first() else {
        return;
    };
    if let Ok(pdu) = Pdu::parse(u16::from(kind), body) {
        let written = pdu.emit(SessionId([0; 16]), 0, 1);
        assert_eq!(Pdu::parse(u16::from(kind), &written[HEADER_LEN..]), Ok(pdu));
    }
});
