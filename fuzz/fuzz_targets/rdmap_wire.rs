//! Bytes as what RDMAP carries: what parses is written and read again alike; a Terminate is never
//! refused.

#![no_main]

use haul_iwarp::wire::rdmap::{
    AtomicRequest, AtomicResponse, Opcode, ReadRequest, TERMINATE_LEN_MAX, Terminate,
    parse_immediate,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((&control, payload)) = bytes.split_first() else {
        return;
    };
    assert!(Opcode::header_len(control, payload.len()) <= payload.len());
    if let Ok(request) = ReadRequest::parse(payload) {
        assert_eq!(request.emit(), *payload);
    }
    if let Ok(request) = AtomicRequest::parse(payload) {
        assert_eq!(AtomicRequest::parse(&request.emit()), Ok(request));
        let _ = request.op.apply(request.to);
    }
    if let Ok(response) = AtomicResponse::parse(payload) {
        assert_eq!(response.emit(), *payload);
    }
    if let Ok(data) = parse_immediate(payload) {
        assert_eq!(data.to_be_bytes(), *payload);
    }
    let terminate = Terminate::parse(payload);
    let mut written = [0; TERMINATE_LEN_MAX];
    let len = terminate.emit(&mut written);
    if terminate.code.is_known_layer() {
        assert_eq!(Terminate::parse(&written[..len]), terminate);
    }
});
