use std::time::Duration;

use super::*;
use crate::time::MILLISECOND_NS;

const PACKET: u64 = 1_500;

fn full_ack(window: &Window<impl Law>) -> Ack {
    Ack {
        acked_bytes: window.window_bytes(),
        smoothed_rtt_ns: 100 * MILLISECOND_NS,
        in_flight_bytes: window.window_bytes(),
        ..Ack::default()
    }
}

#[test]
fn slow_start_doubles_per_round_trip() {
    let mut cubic = Window::new(Cubic::default(), PACKET);
    let before = cubic.window_bytes();
    cubic.handle_ack(Time::ZERO, &full_ack(&cubic));
    assert_eq!(cubic.window_bytes(), 2 * before);
}

#[test]
fn one_reduction_per_round_trip_by_beta() {
    let mut cubic = Window::new(Cubic::default(), PACKET);
    let before = cubic.window_bytes();
    cubic.handle_loss(
        Time::ZERO,
        &Loss {
            first_packet: 5,
            next_packet: 64,
            ..Loss::default()
        },
    );
    cubic.handle_loss(
        Time::ZERO,
        &Loss {
            first_packet: 9,
            next_packet: 64,
            ..Loss::default()
        },
    );
    assert_eq!(cubic.window_bytes(), before * 7 / 10);
}

#[test]
fn regains_the_old_window_in_about_the_cubic_time() {
    let mut cubic = Window::new(Cubic::default(), PACKET);
    for _ in 0..7 {
        cubic.handle_ack(Time::ZERO, &full_ack(&cubic));
    }
    let before = cubic.window_bytes();
    cubic.handle_loss(
        Time::ZERO,
        &Loss {
            first_packet: 1,
            next_packet: 2,
            ..Loss::default()
        },
    );
    let packets = f64::from(u32::try_from(before / PACKET).unwrap());
    let regain_rounds = (packets * 0.3 / 0.4).cbrt() / 0.1;
    let mut rounds = 0_u32;
    while cubic.window_bytes() < before * 99 / 100 {
        let now =
            Time::from_ns(MILLISECOND_NS * 100).after(100 * MILLISECOND_NS * u64::from(rounds));
        cubic.handle_ack(now, &full_ack(&cubic));
        rounds += 1;
        assert!(rounds < 1_000);
    }
    let rounds = f64::from(rounds);
    assert!(
        rounds > regain_rounds * 0.6 && rounds < regain_rounds * 1.2,
        "{rounds} {regain_rounds}"
    );
}

#[test]
fn an_idle_sender_does_not_grow() {
    let mut cubic = Window::new(Cubic::default(), PACKET);
    let before = cubic.window_bytes();
    let ack = Ack {
        acked_bytes: PACKET,
        app_limited: true,
        smoothed_rtt_ns: 1,
        ..Ack::default()
    };
    cubic.handle_ack(Time::ZERO, &ack);
    assert_eq!(cubic.window_bytes(), before);
}

#[test]
fn nothing_grows_until_what_was_in_flight_at_a_loss_is_acknowledged() {
    let mut reno = Window::new(Reno, PACKET);
    let loss = Loss {
        first_packet: 5,
        next_packet: 64,
        in_flight_bytes: 20 * PACKET,
        ..Loss::default()
    };
    reno.handle_loss(Time::ZERO, &loss);
    let reduced = reno.window_bytes();
    let acked = |reno: &mut Window<Reno>, packets: u64| {
        let ack = Ack {
            acked_bytes: packets * PACKET,
            smoothed_rtt_ns: MILLISECOND_NS,
            ..Ack::default()
        };
        reno.handle_ack(Time::ZERO, &ack);
        reno.window_bytes()
    };
    assert_eq!(acked(&mut reno, 15), reduced);
    let again = Loss {
        lost_bytes: 3 * PACKET,
        ..loss
    };
    reno.handle_loss(Time::ZERO, &again);
    assert_eq!(acked(&mut reno, 2), reduced);
    assert!(acked(&mut reno, 1) > reduced);
}

/// The window that `law` leaves of `packets` by a loss.
fn left_by(law: impl Law, packets: f64) -> f64 {
    let mut window = Window::new(law, PACKET);
    window.window = packets;
    window.handle_loss(Time::ZERO, &Loss::default());
    window.window
}

#[test]
fn a_loss_leaves_what_the_papers_say() {
    let left = [
        left_by(Reno, 1_000.0),
        left_by(Cubic::default(), 1_000.0),
        left_by(Bic::default(), 1_000.0),
        left_by(Htcp::default(), 1_000.0),
        left_by(Scalable, 1_000.0),
        left_by(Vegas::default(), 1_000.0),
    ];
    assert_eq!(left, [500.0, 700.0, 800.0, 500.0, 875.0, 500.0]);
    assert!((left_by(HighSpeed::settled(), 1_058.0) - 1_058.0 * 0.67).abs() < 15.0);
}

#[test]
fn vegas_keeps_a_few_packets_in_the_queue() {
    let mut vegas = Window::new(Vegas::default(), PACKET);
    let pipe = 200.0;
    let mut now = Time::ZERO;
    for _ in 0..200 {
        let queued = (vegas.window - pipe).max(0.0);
        let rtt = Duration::from_millis(100).mul_f64(1.0 + queued / pipe);
        let rtt_ns = u64::try_from(rtt.as_nanos()).unwrap();
        now = now.after(rtt_ns);
        let ack = Ack {
            rtt_ns: Some(rtt_ns),
            smoothed_rtt_ns: rtt_ns,
            ..full_ack(&vegas)
        };
        vegas.handle_ack(now, &ack);
    }
    let queued = vegas.window - pipe;
    assert!((1.0..=5.0).contains(&queued), "{queued} packets");
}
