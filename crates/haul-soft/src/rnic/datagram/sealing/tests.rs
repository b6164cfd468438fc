#![expect(clippy::cast_possible_truncation, reason = "small numbers of tests")]

use super::*;
use crate::hex;

const PAGE: &str = include_str!("../../../../../../docs/protocol/datagram.md");

fn at(ms: u64) -> Time {
    Time::from_ns(SECOND_NS + ms * (SECOND_NS / 1_000))
}

fn addr(number: u16) -> SocketAddr {
    let [a, b] = number.to_be_bytes();
    ([10, 0, a, b], 4_791).into()
}

fn end(key: u8) -> Sealing {
    Sealing::new(&SealKey::new([key; SealKey::LEN])).unwrap()
}

/// What `end` sends of the handshake now.
fn polled(end: &mut Sealing, now: Time) -> Vec<(SocketAddr, Vec<u8>)> {
    let mut out = [0; 64];
    std::iter::from_fn(|| {
        let (to, len) = end.poll(now, &mut out)?;
        Some((to, out[..len].to_vec()))
    })
    .collect()
}

/// `near`, at `at_near`, greets `far`, at `at_far`.
fn meet(near: &mut Sealing, at_near: SocketAddr, far: &mut Sealing, at_far: SocketAddr) {
    assert!(near.greet(at(0), at_far));
    for (_, mut greeting) in polled(near, at(0)) {
        assert!(far.handle(at(0), at_near, &mut greeting).is_none());
    }
    for (to, mut reply) in polled(far, at(0)) {
        assert_eq!(to, at_near);
        assert!(near.handle(at(0), at_far, &mut reply).is_none());
    }
    assert_eq!(near.poll_settled(), Some((at_far, true)));
}

fn seal(end: &mut Sealing, now: Time, to: SocketAddr, text: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0; sealed_len(text.len())];
    datagram[SEALED_HEAD_LEN..SEALED_HEAD_LEN + text.len()].copy_from_slice(text);
    assert!(end.seal(now, to, &mut datagram));
    datagram
}

#[test]
fn both_directions_open_once_and_out_of_order() {
    let (mut near, mut far) = (end(1), end(1));
    let (a, b) = (addr(1), addr(2));
    meet(&mut near, a, &mut far, b);
    assert!(!far.is_met(&a), "nothing is kept of a greeting");
    let sealed: Vec<_> = (0..100_u8)
        .map(|n| seal(&mut near, at(1), b, &[n; 50]))
        .collect();
    for n in (0..100_u8).rev() {
        let mut datagram = sealed[usize::from(n)].clone();
        assert_eq!(far.handle(at(2), a, &mut datagram), Some(&[n; 50][..]));
    }
    assert!(far.is_met(&a));
    for datagram in &sealed {
        assert_eq!(far.handle(at(3), a, &mut datagram.clone()), None);
    }
    assert_eq!((far.refused.replayed, far.refused.forged), (100, 0));
    let mut answer = seal(&mut far, at(4), a, b"answer");
    assert_eq!(
        near.handle(at(5), b, &mut answer.clone()),
        Some(&b"answer"[..])
    );
    assert_eq!(near.handle(at(5), b, &mut answer.clone()), None);
    // A datagram is for its direction and its pair only.
    assert_eq!(far.handle(at(5), b, &mut answer), None);
    assert_eq!(near.handle(at(5), a, &mut sealed[0].clone()), None);
}

#[test]
fn a_thousand_peers_have_keys_of_their_own() {
    let mut far = end(1);
    let b = addr(9_999);
    let mut peers: Vec<_> = (0..1_000).map(|number| (addr(number), end(1))).collect();
    for (a, near) in &mut peers {
        meet(near, *a, &mut far, b);
    }
    let sealed: Vec<_> = peers
        .iter_mut()
        .map(|(a, near)| (*a, seal(near, at(1), b, &a.ip().to_string().into_bytes())))
        .collect();
    for (a, datagram) in &sealed {
        let mut datagram = datagram.clone();
        let text = far.handle(at(2), *a, &mut datagram);
        assert_eq!(text, Some(a.ip().to_string().as_bytes()));
    }
    assert_eq!(far.associations.len(), 1_000);
    // None opens what was sent to another, nor as if another had sent it.
    for (at_peer, (a, datagram)) in sealed.iter().enumerate() {
        let (_, other) = &mut peers[(at_peer + 1) % 1_000];
        assert_eq!(other.handle(at(3), b, &mut datagram.clone()), None);
        let wrong = addr(5_000);
        assert_eq!(far.handle(at(3), wrong, &mut datagram.clone()), None);
        let mut answer = seal(&mut far, at(3), *a, b"yes");
        let (_, near) = &mut peers[at_peer];
        assert_eq!(near.handle(at(4), b, &mut answer), Some(&b"yes"[..]));
    }
}

#[test]
fn no_bit_can_be_changed() {
    let (mut near, mut far) = (end(1), end(1));
    let (a, b) = (addr(1), addr(2));
    meet(&mut near, a, &mut far, b);
    let sealed = seal(&mut near, at(1), b, b"text");
    for bit in 0..sealed.len() * 8 {
        let mut changed = sealed.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(far.handle(at(2), a, &mut changed), None, "bit {bit}");
    }
    assert!(!far.is_met(&a));
    assert_eq!(
        far.handle(at(2), a, &mut sealed.clone()),
        Some(&b"text"[..])
    );
}

#[test]
fn a_reply_is_believed_only_of_one_with_the_key_and_to_this_greeting() {
    let (mut near, b) = (end(1), addr(2));
    let mut unknown = end(2);
    assert!(near.greet(at(0), b));
    let greeting = polled(&mut near, at(0)).remove(0).1;
    assert_eq!(polled(&mut near, at(99)).len(), 0);
    unknown.handle(at(0), addr(1), &mut greeting.clone());
    let mut forged = polled(&mut unknown, at(0)).remove(0).1;
    assert_eq!(
        forged.len(),
        greeting.len(),
        "no answer is longer than its cause"
    );
    near.handle(at(1), b, &mut forged);
    assert_eq!((near.refused.forged, near.is_met(&b)), (1, false));
    // One of another greeting, of one with the key.
    let mut far = end(1);
    let mut other = end(1);
    other.greet(at(0), b);
    far.handle(at(0), addr(1), &mut polled(&mut other, at(0)).remove(0).1);
    near.handle(at(1), b, &mut polled(&mut far, at(0)).remove(0).1);
    assert!(!near.is_met(&b));
    // Nobody answers: it is given up, after eight greetings.
    let mut greetings = 1;
    for ms in 1..20_000 {
        greetings += polled(&mut near, at(ms)).len();
    }
    assert_eq!((greetings, near.poll_settled()), (8, Some((b, false))));
}

#[test]
fn an_end_that_gets_its_own_handshake_back_has_met_nobody() {
    let (mut near, b) = (end(1), addr(2));
    assert!(near.greet(at(0), b));
    let mut greeting = polled(&mut near, at(0)).remove(0).1;
    near.handle(at(1), b, &mut greeting);
    let mut reply = polled(&mut near, at(1)).remove(0).1;
    near.handle(at(2), b, &mut reply);
    assert_eq!((near.refused.forged, near.is_met(&b)), (1, false));
}

#[test]
fn an_end_that_has_forgotten_says_so_and_is_greeted_again() {
    let (mut near, mut far) = (end(1), end(1));
    let (a, b) = (addr(1), addr(2));
    meet(&mut near, a, &mut far, b);
    let before = seal(&mut near, at(1), b, b"before");
    assert!(far.handle(at(1), a, &mut before.clone()).is_some());
    // It begins anew.
    let mut far = end(1);
    let mut lost = seal(&mut near, at(2), b, b"lost");
    assert_eq!(far.handle(at(2), a, &mut lost), None);
    let stale = polled(&mut far, at(2)).remove(0).1;
    near.handle(at(2), b, &mut stale.clone());
    assert_eq!(polled(&mut near, at(2)).len(), 0, "the keys are too young");
    near.handle(at(2_000), b, &mut stale.clone());
    let mut greeting = polled(&mut near, at(2_000)).remove(0).1;
    far.handle(at(2_000), a, &mut greeting);
    let mut reply = polled(&mut far, at(2_000)).remove(0).1;
    near.handle(at(2_000), b, &mut reply);
    let mut after = seal(&mut near, at(2_001), b, b"after");
    assert_eq!(far.handle(at(2_001), a, &mut after), Some(&b"after"[..]));
    // What was sent to the end before is not opened by this one.
    assert_eq!(far.handle(at(2_002), a, &mut before.clone()), None);
}

#[test]
fn a_greeter_that_greets_again_leaves_nothing_to_be_repeated() {
    let (mut near, mut far) = (end(1), end(1));
    let (a, b) = (addr(1), addr(2));
    meet(&mut near, a, &mut far, b);
    let first = seal(&mut near, at(1), b, b"first");
    assert!(far.handle(at(1), a, &mut first.clone()).is_some());
    meet(&mut near, a, &mut far, b);
    let mut second = seal(&mut near, at(2), b, b"second");
    assert!(far.handle(at(2), a, &mut second).is_some());
    assert_eq!(far.associations.len(), 1);
    assert_eq!(far.handle(at(3), a, &mut first.clone()), None);
    assert_eq!(far.refused.replayed, 1);
    // Nor does it after the salt has changed, for want of room.
    far.change_salt();
    assert_eq!(far.handle(at(4), a, &mut first.clone()), None);
    assert!(!far.is_met(&a));
}

#[test]
fn keys_of_peers_that_have_moved_on_are_erased() {
    let mut far = end(1);
    let b = addr(1);
    let idle = |number| at(number + IDLE_NS / 1_000_000);
    let mut peers: Vec<_> = (0..2 * PEERS_IDLE as u16)
        .map(|number| (end(1), addr(10 + number)))
        .collect();
    for (near, a) in &mut peers {
        meet(near, *a, &mut far, b);
        let mut first = seal(near, at(1), b, b"first");
        assert!(far.handle(at(1), *a, &mut first).is_some());
    }
    assert_eq!(far.associations.len(), peers.len());
    // One of them is there still, when one more comes.
    let (near, a) = &mut peers[0];
    let mut second = seal(near, idle(2), b, b"second");
    assert!(far.handle(idle(2), *a, &mut second).is_some());
    let mut one_more = end(1);
    meet(&mut one_more, addr(2), &mut far, b);
    let mut first = seal(&mut one_more, idle(3), b, b"first");
    assert!(far.handle(idle(3), addr(2), &mut first).is_some());
    assert_eq!(far.associations.len(), 2);
    assert_eq!(far.by_addr.len(), 2);
    // One that was idle learns of it, and greets again.
    let (near, a) = &mut peers[1];
    let second = seal(near, idle(4), b, b"second");
    assert!(far.handle(idle(4), *a, &mut second.clone()).is_none());
    for (_, mut stale) in polled(&mut far, idle(4)) {
        near.handle(idle(4), b, &mut stale);
    }
    for (_, mut greeting) in polled(near, idle(4)) {
        far.handle(idle(4), *a, &mut greeting);
    }
    for (_, mut reply) in polled(&mut far, idle(4)) {
        near.handle(idle(4), b, &mut reply);
    }
    let mut third = seal(near, idle(5), b, b"third");
    assert!(far.handle(idle(5), *a, &mut third).is_some());
    assert!(far.handle(idle(6), *a, &mut second.clone()).is_none());
}

#[test]
fn an_error_report_quotes_a_salt_that_only_the_path_has_seen() {
    let (mut near, mut far) = (end(1), end(1));
    let (a, b, elsewhere) = (addr(1), addr(2), addr(3));
    meet(&mut near, a, &mut far, b);
    let mut there = seal(&mut near, at(1), b, b"text");
    assert!(near.has_sent(b, &there[..16]) && !near.has_sent(b, &there[..15]));
    far.handle(at(1), a, &mut there);
    let back = seal(&mut far, at(2), a, b"text");
    assert!(far.has_sent(a, &back[..16]) && !far.has_sent(elsewhere, &back));
    // Whoever greets this end has its salt, and not that of its peer.
    let from = Salt([9; SALT_LEN]);
    let mut greeting = [0; GREETING_LEN];
    let len = Sealed::Greeting { from }.emit(&mut greeting);
    far.handle(at(3), elsewhere, &mut greeting[..len]);
    let reply = polled(&mut far, at(3)).remove(0).1;
    let mut forged = back.clone();
    forged[..16].copy_from_slice(&reply[..16]);
    assert_eq!(forged[8..16], back[8..16]);
    assert!(!far.has_sent(a, &forged));
    // A greeting has no other salt than its own.
    assert!(near.greet(at(4), elsewhere));
    let greeting = polled(&mut near, at(4)).remove(0).1;
    assert!(near.has_sent(elsewhere, &greeting));
}

#[test]
fn keys_change_and_a_gap_of_generations_is_a_reason_to_greet_again() {
    let (mut near, mut far) = (end(1), end(1));
    let (a, b) = (addr(1), addr(2));
    meet(&mut near, a, &mut far, b);
    for number in (0..4_u64).flat_map(|generation| [generation << 22, (generation << 22) + 9]) {
        near.association(&b).skip_to(number);
        let mut datagram = seal(&mut near, at(1), b, b"text");
        assert_eq!(
            far.handle(at(1), a, &mut datagram),
            Some(&b"text"[..]),
            "{number}"
        );
    }
    for number in [4_u64 << 22, 5 << 22] {
        near.association(&b).skip_to(number);
        seal(&mut near, at(1), b, b"lost");
    }
    let mut ahead = seal(&mut near, at(1), b, b"text");
    assert_eq!(far.handle(at(1), a, &mut ahead), None);
    assert_eq!(polled(&mut far, at(1)).remove(0).1.len(), STALE_LEN);
}

#[test]
fn the_sealed_exchange_of_the_page_is_what_this_build_sends_and_opens() {
    let key = SealKey::new(std::array::from_fn(|at| u8::try_from(at).unwrap()));
    let page = |name: &str| hex::bytes(PAGE, &format!("sealed-{name}"));
    let (a, b) = (addr(1), addr(2));
    let mut near = Sealing::new(&key).unwrap();
    assert!(near.greet(at(0), b));
    near.greetings.get_mut(&b).unwrap().salt = Salt(std::array::from_fn(|at| 0xa0 + at as u8));
    let mut far = Sealing::new(&key).unwrap();
    far.salt = Salt(std::array::from_fn(|at| 0xb0 + at as u8));

    assert_eq!(polled(&mut near, at(0)), [(b, page("greeting"))]);
    assert_eq!(far.handle(at(0), a, &mut page("greeting")), None);
    assert_eq!(polled(&mut far, at(0)), [(a, page("reply"))]);
    assert_eq!(near.handle(at(0), b, &mut page("reply")), None);
    let send = hex::bytes(PAGE, "send");
    let (covered, _) = send.split_last_chunk::<4>().unwrap();
    assert_eq!(seal(&mut near, at(0), b, covered), page("send"));
    assert_eq!(far.handle(at(0), a, &mut page("send")), Some(covered));
    let mut other = Sealing::new(&key).unwrap();
    assert_eq!(other.handle(at(0), a, &mut page("send")), None);
    assert_eq!(polled(&mut other, at(0)), [(a, page("stale"))]);
}
