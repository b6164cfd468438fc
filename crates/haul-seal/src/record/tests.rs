use super::*;
use crate::keys::{Keys, Side};
use crate::secret::{Cipher, Secret};

/// Computed with Python's `hmac` and OpenSSL (`cryptography` 48): "hello", a KeyUpdate, "x", the
/// end, under the keys of an initiator with the secret 00 01 … 1f and the context "context".
const KNOWN: &str = "17030300165af603a4602ecc4fcb6d9038deda28e8ddb8a70bfb5c\
    1703030016521fdb048535f497208d2dcb83d350aebe28fb5d05e6\
    1703030012edf18a6c994dab57ab262fee772bfe945091\
    1703030013ee09938251a52ad1c71e0b13b77b93bccc27ea";

fn pair(per_key: u64) -> (RecordSealer, RecordOpener) {
    let secret = Secret::new(std::array::from_fn(|at| u8::try_from(at).unwrap()));
    let keys = |side| Keys::new(&secret, Cipher::Aes128Gcm, side, b"context").unwrap();
    (
        RecordSealer::with_limit(keys(Side::Initiator).sealer, per_key),
        RecordOpener::new(keys(Side::Responder).opener),
    )
}

fn append(sealer: &mut RecordSealer, out: &mut Records, data: &[u8]) {
    let fill = |room: &mut [u8]| {
        room.copy_from_slice(data);
        Ok::<_, SealError>(())
    };
    sealer.append(out, data.len(), fill).unwrap();
}

/// Cuts a stream into its records.
fn records(mut stream: &[u8]) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    while let Some(header) = stream.first_chunk() {
        let (record, rest) = stream.split_at(record_len(*header).unwrap());
        records.push(record.to_vec());
        stream = rest;
    }
    records
}

#[test]
fn records_are_those_of_another_implementation() {
    // One record under the first key, and the KeyUpdate that ends it.
    let (mut sealer, mut opener) = pair(2);
    let mut stream = Records::default();
    append(&mut sealer, &mut stream, b"hello");
    append(&mut sealer, &mut stream, b"x");
    sealer.append_end(&mut stream).unwrap();
    let hex: String = stream
        .as_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(hex, KNOWN);
    let mut records = records(stream.as_bytes());
    let mut content = records
        .iter_mut()
        .map(|record| opener.open(record).unwrap());
    assert_eq!(content.next(), Some(Content::Data(b"hello")));
    assert_eq!(content.next(), Some(Content::KeyUpdate));
    assert_eq!(content.next(), Some(Content::Data(b"x")));
    assert_eq!(content.next(), Some(Content::End));
}

#[test]
fn keys_change_before_their_limit_and_nothing_is_lost() {
    let (mut sealer, mut opener) = pair(10);
    let mut stream = Records::default();
    for at in 0..100_u8 {
        append(&mut sealer, &mut stream, &[at; 40]);
    }
    let (mut data, mut updates, mut under_key) = (0_u8, 0, 0);
    for mut record in records(stream.as_bytes()) {
        under_key += 1;
        assert!(under_key <= 10);
        match opener.open(&mut record).unwrap() {
            Content::Data(bytes) => {
                assert_eq!(bytes, [data; 40]);
                data += 1;
            }
            Content::KeyUpdate => (updates, under_key) = (updates + 1, 0),
            Content::End => panic!("no end was sent"),
        }
    }
    assert_eq!((data, updates), (100, 11));
}

#[test]
fn a_record_that_is_missing_repeated_or_changed_ends_the_stream() {
    let (mut sealer, _) = pair(1_000);
    let mut stream = Records::default();
    for data in [b"one", b"two"] {
        append(&mut sealer, &mut stream, data);
    }
    let [one, two] = records(stream.as_bytes()).try_into().unwrap();
    let open = |records: &[&[u8]]| -> Result<(), RecordError> {
        let mut opener = pair(1_000).1;
        records
            .iter()
            .try_for_each(|record| opener.open(&mut record.to_vec()).map(drop))
    };
    assert_eq!(open(&[&one, &two]), Ok(()));
    assert_eq!(open(&[&two]), Err(RecordError::Forged));
    assert_eq!(open(&[&one, &one]), Err(RecordError::Forged));
    for bit in 0..one.len() * 8 {
        let mut changed = one.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(open(&[&changed]), Err(RecordError::Forged), "bit {bit}");
    }
    assert_eq!(open(&[&one[..3]]), Err(RecordError::Header));
}

#[test]
fn only_headers_of_tls_1_3_with_possible_lengths_are_taken() {
    assert_eq!(record_len([23, 3, 3, 0, 17]), Ok(22));
    assert_eq!(record_len([23, 3, 3, 0x40, 0x11]), Ok(RECORD_MAX));
    let refused = [
        [23, 3, 3, 0, 16],
        [23, 3, 3, 0x40, 0x12],
        [22, 3, 3, 0, 17],
        [23, 3, 1, 0, 17],
        [23, 2, 3, 0, 17],
    ];
    for header in refused {
        assert_eq!(record_len(header), Err(RecordError::Header));
    }
}

#[test]
fn records_reuse_their_memory_and_a_failure_appends_no_payload() {
    let (mut sealer, mut opener) = pair(3);
    let mut out = Records::default();
    append(&mut sealer, &mut out, &[7; 100]);
    let first = out.as_bytes().to_vec();
    out.clear();
    assert_eq!(out.as_bytes(), b"");
    append(&mut sealer, &mut out, b"ab");
    // The key has sealed all that it may: a KeyUpdate comes before the record that fails.
    let failed = sealer.append(&mut out, 5, |_| Err(SealError::Length(5)));
    assert_eq!(failed, Err(SealError::Length(5)));
    append(&mut sealer, &mut out, b"cd");
    let stream = [first, out.as_bytes().to_vec()].concat();
    let content: Vec<_> = records(&stream)
        .into_iter()
        .map(|mut record| match opener.open(&mut record).unwrap() {
            Content::Data(data) => data.to_vec(),
            Content::KeyUpdate => b"update".to_vec(),
            Content::End => panic!("no end was sent"),
        })
        .collect();
    assert_eq!(content, [&[7; 100][..], b"ab", b"update", b"cd"]);
}

#[test]
fn a_sealed_message_of_another_type_is_refused() {
    let (mut sealer, mut opener) = pair(1_000);
    let mut out = Records::default();
    let nothing = |_: &mut [u8]| Ok::<_, SealError>(());
    sealer.record(&mut out, HANDSHAKE, 5, nothing).unwrap();
    assert_eq!(
        opener.open(&mut out.as_bytes().to_vec()),
        Err(RecordError::Content)
    );
}
