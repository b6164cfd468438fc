use super::*;
use crate::bag::SLABS_MOVED_MAX;

#[test]
fn answers_one_after_the_other_take_64_slabs_over_data_channels_at_most() {
    for mode in [Mode::Push, Mode::Pull] {
        let mut producer = Producer::new(ProducerConfig {
            mode,
            ..ProducerConfig::default()
        })
        .unwrap();
        (producer.window_slabs, producer.window_bytes) = (256, 64 << 20);
        producer.set_rtt(80_000_000);
        let mut inline = 0;
        for index in 0..2_000_u32 {
            let (now, conn) = (Time::from_ns(u64::from(index) * 100_000), ConnId(index));
            producer.open(conn, 0);
            producer.on_credit(conn, 1 << 16);
            let fill = producer.reserve(now, conn, 1_000).unwrap();
            producer.commit(now, conn, fill.len, None);
            while let Some(seq) = producer.poll_sealed(now) {
                inline += usize::from(producer.is_inline(seq));
            }
            assert!(producer.moved <= SLABS_MOVED_MAX as usize);
            assert_eq!(producer.slabs.len(), inline + producer.moved);
        }
        // Nothing is acknowledged, and most are in flight.
        assert!(
            producer.unacked_bytes > 500_000,
            "{}",
            producer.unacked_bytes
        );
    }
}
