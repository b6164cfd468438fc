//! Applications at both ends: what they write, what they must read.

use std::collections::BTreeMap;

use haul_xsp::bag::{Data, End};
use haul_xsp::{ConnId, Time};

use super::random::Random;

/// The byte of a stream at an offset: everything that is delivered is compared with this.
pub fn pattern(conn: ConnId, from_opener: bool, offset: u64) -> u8 {
    let mixed =
        (u64::from(conn.0) << 1 | u64::from(from_opener)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed
        .wrapping_add(offset)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9)
        >> 32) as u8
}

#[derive(Debug, Default)]
pub struct Stream {
    /// To be written.
    pub total: u64,
    pub written: u64,
    /// Of it, with the request for the connection.
    pub early: u64,
    /// `None`: FIN.
    pub reset_at: Option<u64>,
    pub ended: bool,
    pub read: u64,
    pub got: Option<End>,
    pub held: Option<Data>,
    pub stalled_until: Time,
    pub open: bool,
    pub closed: bool,
    pub stopped: bool,
    pub was_reset: bool,
}

#[derive(Debug)]
pub struct App {
    pub from_opener: bool,
    pub streams: BTreeMap<ConnId, Stream>,
    pub to_open: u64,
    pub total_max: u64,
    pub resets: bool,
}

impl App {
    pub fn stream(&mut self, random: &mut Random, conn: ConnId) -> &mut Stream {
        let (most, resets) = (self.total_max, self.resets);
        self.streams.entry(conn).or_insert_with(|| {
            let total = if random.chance(200) {
                random.below(4)
            } else {
                random.below(most)
            };
            let reset_at = (resets && random.chance(150)).then(|| random.below(total + 1));
            Stream {
                total,
                reset_at,
                ..Stream::default()
            }
        })
    }

    pub fn is_done(&self) -> bool {
        self.to_open == 0 && self.streams.values().all(|stream| stream.closed)
    }
}

/// Checks that one end read exactly what the other wrote, in order, with the end at the right
/// place.
pub fn judge(seed: u64, near: &App, far: &App) {
    for (a, b) in [(near, far), (far, near)] {
        for (conn, writer) in &a.streams {
            let Some(reader) = b.streams.get(conn) else {
                assert!(
                    writer.written == writer.early,
                    "seed {seed}: {conn:?} wrote to nobody"
                );
                continue;
            };
            assert!(
                reader.read <= writer.written,
                "seed {seed}: {conn:?} {reader:?} {writer:?}"
            );
            let disturbed = reader.was_reset || writer.was_reset;
            match reader.got {
                Some(End::Fin) => {
                    assert!(
                        writer.ended,
                        "seed {seed}: {conn:?} a half close that nobody made"
                    );
                    assert_eq!(
                        reader.read, writer.written,
                        "seed {seed}: {conn:?} half close at the wrong place"
                    );
                    assert_eq!(writer.written, writer.total, "seed {seed}: {conn:?}");
                }
                Some(End::Reset(_)) => {
                    assert!(disturbed, "seed {seed}: {conn:?} a reset that nobody made")
                }
                None => assert!(
                    disturbed,
                    "seed {seed}: {conn:?} no end: {reader:?} {writer:?}"
                ),
            }
        }
    }
}
