use super::*;

const HEAD: &[u8] = b"head";
const PLAIN: &[u8] = b"payload of a datagram";

/// Computed with Python's `hmac` and OpenSSL (`cryptography` 48): secret 00 01 … 1f, context
/// "context", number 0x1234567 plus the generation.
const KNOWN: [(Cipher, [&str; 3], [&str; 3]); 2] = [
    (
        Cipher::Aes128Gcm,
        [
            "aeee5406c93d3d439e742438f3aa9f05f667aa05863577131fe6d02cdcb1a82f9f535ea7ed",
            "dbf14656401763a7b3576d29780e0ec72d251cbedb7c1a1cd0a61ac74dba387aaece9186b0",
            "7c198e410b17eaa100200b402a8867c9d10827670d218225d916308b57340641ce71b2cb96",
        ],
        [
            "521f21277305e92cfef937d7d031e999618ee49ecf61eef3f3463178dc75443bb52763262b",
            "433dfd179e578fe8465ef6ffa2a0c529bde02bf186860f214021f9b037ab585d228f002aa1",
            "0e37a70ae02dd612396fc51dd1bb1da0dcf9733881835baa90b2ce658ce72253f6a87d9251",
        ],
    ),
    (
        Cipher::ChaCha20Poly1305,
        [
            "4abb79f488f916536d2fad75ecc7988fd3eaca236f24c4c52a0621688e0d6345a81941aeb0",
            "a5950ec5937dea94b527e70db7d5f3800b0ba7ecad22344f2fbf3b9dc0d0a885e364469de6",
            "715228823e6a3b70846c7b33f80473bca63f57d4418aa1831a256fe8b301241e01c28ef469",
        ],
        [
            "66f21b757e1c6a97be892211fb06b91a850c1a598ac43263bc3daee0f16f7bcb0879656c5e",
            "d54f3464bf06e0af89a76bd2cf8d360f64ff93639529ad6714bb564013e105facd1c296fa8",
            "fb51d27cf2c4b4025abaa9f9b3efd57997148b1f99910532d58181caffbcd3dc1f97126478",
        ],
    ),
];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn secret() -> Secret {
    Secret::new(std::array::from_fn(|at| u8::try_from(at).unwrap()))
}

fn keys(cipher: Cipher, side: Side) -> Keys {
    Keys::new(&secret(), cipher, side, b"context").unwrap()
}

fn sealed(sealer: &mut Sealer, generation: u64, number: u64) -> Vec<u8> {
    let mut out = vec![0; PLAIN.len() + TAG_LEN];
    sealer
        .seal(generation, number, HEAD, PLAIN, &mut out)
        .unwrap();
    out
}

#[test]
fn ciphertexts_are_those_of_another_implementation_in_both_directions() {
    for (cipher, initiator, responder) in KNOWN {
        for (side, expected) in [(Side::Initiator, initiator), (Side::Responder, responder)] {
            let peer = match side {
                Side::Initiator => Side::Responder,
                Side::Responder => Side::Initiator,
            };
            let mut sealer = keys(cipher, side).sealer;
            let mut opener = keys(cipher, peer).opener;
            for (generation, expected) in (0..).zip(expected) {
                let number = 0x0123_4567 + generation;
                let mut out = sealed(&mut sealer, generation, number);
                assert_eq!(hex(&out), expected, "{cipher:?} {side:?} {generation}");
                let len = opener.open(generation, number, HEAD, &mut out);
                assert_eq!(len.map(|len| &out[..len]), Some(PLAIN));
            }
        }
    }
}

#[test]
fn sealing_in_place_gives_the_same_bytes() {
    let mut one = keys(Cipher::Aes128Gcm, Side::Initiator).sealer;
    let mut two = keys(Cipher::Aes128Gcm, Side::Initiator).sealer;
    let mut in_place = [PLAIN, &[0; TAG_LEN]].concat();
    two.seal_in_place(0, 9, HEAD, &mut in_place).unwrap();
    assert_eq!(in_place, sealed(&mut one, 0, 9));
}

#[test]
fn a_number_seals_once() {
    let mut sealer = keys(Cipher::Aes128Gcm, Side::Initiator).sealer;
    let mut out = vec![0; PLAIN.len() + TAG_LEN];
    let mut seal = |generation, number| sealer.seal(generation, number, HEAD, PLAIN, &mut out);
    assert_eq!(seal(0, 5), Ok(()));
    assert_eq!(seal(0, 5), Err(SealError::Repeated(5)));
    assert_eq!(seal(0, 4), Err(SealError::Repeated(4)));
    assert_eq!(seal(2, 6), Err(SealError::Generation(2)));
    assert_eq!(seal(1, 6), Ok(()));
    assert_eq!(seal(0, 7), Err(SealError::Generation(0)));
}

#[test]
fn nothing_opens_that_was_changed_or_belongs_elsewhere() {
    let original = sealed(
        &mut keys(Cipher::Aes128Gcm, Side::Initiator).sealer,
        0,
        1 << 32,
    );
    let mut opener = keys(Cipher::Aes128Gcm, Side::Responder).opener;
    let mut opens = |number, head: &[u8], bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        opener.open(0, number, head, &mut bytes).is_some()
    };
    for bit in 0..original.len() * 8 {
        let mut changed = original.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(!opens(1 << 32, HEAD, &changed), "bit {bit}");
    }
    for len in 0..original.len() {
        assert!(!opens(1 << 32, HEAD, &original[..len]), "{len} bytes");
    }
    assert!(!opens((1 << 32) + 1, HEAD, &original), "another number");
    assert!(!opens(0, HEAD, &original), "the number's lower half");
    assert!(!opens(1 << 32, b"heaD", &original), "another head");
    assert!(opens(1 << 32, HEAD, &original));
    let elsewhere = [
        keys(Cipher::Aes128Gcm, Side::Initiator),
        Keys::new(&secret(), Cipher::Aes128Gcm, Side::Responder, b"other").unwrap(),
        Keys::new(
            &Secret::new([7; 32]),
            Cipher::Aes128Gcm,
            Side::Responder,
            b"context",
        )
        .unwrap(),
    ];
    for keys in elsewhere {
        let (mut opener, mut bytes) = (keys.opener, original.clone());
        assert_eq!(opener.open(0, 1 << 32, HEAD, &mut bytes), None);
    }
}

#[test]
fn the_previous_generation_opens_until_it_is_forgotten() {
    let mut sealer = keys(Cipher::Aes128Gcm, Side::Initiator).sealer;
    let mut opener = keys(Cipher::Aes128Gcm, Side::Responder).opener;
    let (late, later) = (sealed(&mut sealer, 0, 1), sealed(&mut sealer, 0, 2));
    let fresh = sealed(&mut sealer, 1, 3);
    let mut open = |generation, number, bytes: &[u8], forget: bool| {
        if forget {
            opener.forget_previous();
        }
        opener
            .open(generation, number, HEAD, &mut bytes.to_vec())
            .is_some()
    };
    let forged = [9; 40];
    assert!(!open(1, 9, &forged, false), "a forgery changes no key");
    assert!(open(1, 3, &fresh, false));
    assert!(open(0, 1, &late, false));
    assert!(!open(0, 2, &later, true));
}
