//! A plain UDT peer that acknowledges nothing while its keep-alives pass, and one whose application
//! pauses.

use haul_cc::Time;
use haul_cc::time::{MILLISECOND_NS, SECOND_NS};
use haul_sim::{Flow, World, scenario};
use haul_udt::{Config, Error};

const BYTES: u64 = 2_000_000;

fn plain() -> Flow {
    let mut config = Config::default();
    config.offer_placement = false;
    config.slot_memory_bytes = 400_000;
    Flow {
        client: config.clone(),
        server: config,
        stream_bytes: [BYTES, 0],
        ..Flow::default()
    }
}

#[test]
fn a_plain_peer_that_acknowledges_nothing_ends_though_its_keep_alives_pass() {
    let mut world = World::new(&scenario::plain(10_000_000, 40, 0.0), 1);
    // Acknowledgements and keep-alives are shorter than this, packets of data are not.
    world.narrow(Time::from_ns(300 * MILLISECOND_NS), 400);
    let flow = world.add(plain());
    world.run_until(Time::from_ns(29 * SECOND_NS));
    let closed = |world: &World, side| world.host(flow, side).unwrap().closed();
    assert_eq!(closed(&world, 0), None, "not before the idle timeout");
    world.run_until(Time::from_ns(32 * SECOND_NS));
    assert_eq!(closed(&world, 0), Some(Some(Error::TimedOut)));
}

#[test]
fn an_application_behind_a_plain_peer_may_pause() {
    let mut world = World::new(&scenario::plain(10_000_000, 40, 0.0), 1);
    let mut flow = plain();
    flow.rest_ns[1] = 60 * SECOND_NS;
    let flow = world.add(flow);
    world.run_until(Time::from_ns(1_200 * SECOND_NS));
    assert!(world.outcome(flow).finished.is_some());
}

#[test]
fn a_plain_peer_whose_application_never_reads_ends_as_well() {
    let mut world = World::new(&scenario::plain(10_000_000, 40, 0.0), 1);
    let mut flow = plain();
    flow.rest_ns[1] = 3_600 * SECOND_NS;
    let flow = world.add(flow);
    world.run_until(Time::from_ns(320 * SECOND_NS));
    let closed = world.host(flow, 0).unwrap().closed();
    assert_eq!(closed, Some(Some(Error::TimedOut)));
}
