#!/usr/bin/env python3
"""Removes each guard of SECURITY.md's promises in turn, and runs the test that must then fail.

Usage: scripts/guards.py COPY [--only TEXT] [--patience SECONDS]

COPY is a copy of this repository that may be changed (`git worktree add COPY`), with a target folder of its
own. For each guard the script removes it in the copy, runs its test, and restores the file. It prints one line
for each: `caught` if the test failed, `SURVIVED` if it passed, `no build` if the change did not compile. The
exit code is 1 unless all were caught. Before that it runs each test once without a change.
"""

import argparse
import pathlib
import subprocess
import sys
import time

# What the guard prevents; file; the guard; what replaces it; package and target; test.
GUARDS = [
    ("a number seals twice under one key", "crates/haul-seal/src/keys.rs",
     "if number < self.free {", "if false && number < self.free {",
     ["haul-seal", "--lib"], "a_number_seals_once"),
    ("a datagram opens with another header", "crates/haul-seal/src/keys.rs",
     ".open_in_place(phase.nonce(number), Aad::from(head), sealed)",
     ".open_in_place(phase.nonce(number), Aad::from(&head[..0]), sealed)",
     ["haul-seal", "--lib"], "nothing_opens_that_was_changed_or_belongs_elsewhere"),
    ("an old key opens for ever", "crates/haul-seal/src/keys.rs",
     "        self.previous = None;\n    }\n}", "    }\n}",
     ["haul-seal", "--lib"], "the_previous_generation_opens_until_it_is_forgotten"),
    ("a replay is taken", "crates/haul-udt/src/numbering.rs",
     "if self.is_replayed(number) {", "if false && self.is_replayed(number) {",
     ["haul-udt", "--lib"], "a_number_opens_once_in_any_order_within_the_window"),
    ("a number below the window is taken", "crates/haul-udt/src/numbering.rs",
     "number + WINDOW < self.end || self.opened", "self.opened",
     ["haul-udt", "--lib"], "a_number_opens_once_in_any_order_within_the_window"),
    ("a forged number moves the window", "crates/haul-udt/src/numbering.rs",
     "        };\n        Some(Sealed { generation, number })",
     "        };\n        self.end = self.end.max(number + 1);\n        Some(Sealed { generation, number })",
     ["haul-udt", "--lib"], "a_forged_number_moves_nothing"),
    ("keys change before the last change is acknowledged", "crates/haul-udt/src/numbering.rs",
     "if is_acknowledged && self", "if (is_acknowledged || true) && self",
     ["haul-udt", "--lib"], "a_key_change_waits_for_the_acknowledgement_of_the_one_before"),
    ("a key seals without limit", "crates/haul-udt/src/numbering.rs",
     "(end - self.since <= KEY_MAX).then(", "(end - self.since <= KEY_MAX || true).then(",
     ["haul-udt", "--lib"], "a_key_never_seals_more_than_it_may"),
    ("late datagrams open for ever", "crates/haul-udt/src/numbering.rs",
     ".is_some_and(|until| now < until)", ".is_some_and(|until| now < until || true)",
     ["haul-udt", "--lib"], "an_end_follows_its_peer_and_takes_late_datagrams_for_three_timeouts"),
    ("a batch that waited is sealed again from changed memory", "crates/haul-soft/src/udt/link.rs",
     "        if sealing.is_empty() {\n            let sealed = if let",
     "        if skip == 0 {\n            sealing.clear();\n            let sealed = if let",
     ["haul-soft", "--lib"], "a_batch_that_waited_for_room_leaves_as_it_was_sealed"),
    ("another code gives the same proofs on another connection", "crates/haul-control/src/pairing.rs",
     "Identity::new(&[role, binding].concat())", "Identity::new(&[role, &binding[..0]].concat())",
     ["haul-control", "--lib"], "another_code_or_another_connection_gives_others"),
    ("a paired receiver admits another client", "crates/haul-control/src/pairing.rs",
     "            state.paired = Some(key);\n", "",
     ["haul-control", "--lib"], "after_a_client_was_paired_no_other_is_admitted"),
    ("a key file that others may read is used", "crates/haul-control/src/identity.rs",
     "if metadata.permissions().mode() & 0o077 != 0 {", "if metadata.permissions().mode() & 0 != 0 {",
     ["haul-control", "--lib"], "a_key_file_is_private_and_is_read_again"),
    ("sources with a penalty are without number", "crates/haul-control/src/penalty.rs",
     "                sources.remove(&first);\n", "                let _ = first;\n",
     ["haul-control", "--lib"], "a_network_of_ipv6_is_one_source_and_their_number_is_bounded"),
    ("a protected connection admits any key", "crates/haul-control/src/protect.rs",
     "if keys.contains(key) => None", "if keys.contains(key) || true => None",
     ["haul-control", "--lib"], "a_client_without_an_admitted_key_is_refused_with_a_line_and_counted"),
    ("a handshake for one transport gives keys for another", "crates/haul-control/src/protect.rs",
     'b"udt stream"', 'b"udt"',
     ["haul-control", "--lib"], "each_handshake_and_each_transport_has_other_keys"),
    ("an expired line admits", "crates/haul-control/src/authorized.rs",
     "(Some(end), expiry) if now >= end =>", "(Some(end), expiry) if now >= end && false =>",
     ["haul-control", "--lib"], "authorized::tests"),
    ("a session keeps rights that were taken away", "crates/haul-control/src/server.rs",
     "            cancel.cancel();\n", "            let _ = cancel;\n",
     ["haul-control", "--lib"], "a_session_ends_with_the_rights_that_it_began_with"),
    ("failed logins have a line each", "crates/haul-control/src/server.rs",
     "fault.code != Code::NotAuthenticated || had_penalty", "fault.code != Code::NotAuthenticated",
     ["haul-control", "--lib"], "a_known_key_is_admitted_from_an_address_with_a_penalty"),
    ("a channel without encryption is served", "crates/haul/src/server.rs",
     "if seal.is_none() && !rights.plain {", "if seal.is_none() && !rights.plain && false {",
     ["haul", "--test", "sealed"], "a_channel_without_encryption_is_refused_with_a_line_at_both_ends"),
    ("a sender with a code replaces files", "crates/haul/src/server.rs",
     "            replace: false,\n", "            replace: policy.replace,\n",
     ["haul", "--test", "sealed"], "one_who_may_only_drop_files_chooses_no_directory"),
    ("a changed offer gives the same keys", "crates/haul/src/channel/setup.rs",
     "        context.extend(wire::encode(&Message::OpenChannel(self.to_message()))?);\n", "",
     ["haul", "--lib"], "channel::setup::tests"),
    ("a channel has another cipher than TLS agreed on", "crates/haul/src/channel/setup.rs",
     "cipher != agreed)", "cipher != agreed && false)",
     ["haul", "--lib"], "channel::setup::tests"),
    ("the server has no say on the cipher", "crates/haul-control/src/tls.rs",
     "config.ignore_client_order = cipher == Cipher::ChaCha20Poly1305;", "",
     ["haul-control", "--lib"], "both_ends_have_a_say_on_the_cipher"),
    ("an error report quotes what everybody can have", "crates/haul-soft/src/rnic/datagram/sealing.rs",
     "head == (Some(&to.0[..]), Some(&own.0[..]))", "head.1 == Some(&own.0[..])",
     ["haul-soft", "--lib"], "an_error_report_quotes_a_salt_that_only_the_path_has_seen"),
    ("a listener returns a stream that has no keys", "crates/haul-soft/src/udt/stream.rs",
     "polled(stream).contains(Ready::OPEN);", "polled(stream).contains(Ready::OPEN) || true;",
     ["haul-soft", "--test", "stream"], "a_protected_stream_is_for_admitted_peers_only"),
    ("keys of peers that moved on stay", "crates/haul-soft/src/rnic/datagram/sealing.rs",
     "            !is_idle\n", "            !is_idle || true\n",
     ["haul-soft", "--lib"], "keys_of_peers_that_have_moved_on_are_erased"),
    ("an agent admits any client", "crates/haul/src/ssh/agent.rs",
     "if *peer == client {", "if *peer == client || true {",
     ["haul", "--lib"], "only_the_client_of_the_login_is_admitted"),
    ("ssh forwards its agent", "crates/haul/src/ssh/mod.rs",
     '    "-oForwardAgent=no",\n', '    "-oForwardX11=no",\n',
     ["haul", "--lib"], "ssh_forwards_no_agent"),
    ("the other host names a privileged port", "crates/haul/src/ssh/mod.rs",
     "port >= UNPRIVILEGED || own", "port >= 1 || own",
     ["haul", "--lib"], "the_other_host_names_an_ip_address_and_a_port_of_its_range"),
    ("the ssh pipe crosses the loopback device", "crates/haul/src/ssh/agent.rs",
     "tcp::local_pair()?", "tcp::pair()?",
     ["haul", "--lib"], "the_pipe_needs_no_loopback_device_at_either_end"),
    ("a stream that was cut off ends in order", "crates/haul/src/channel/sealed.rs",
     "Ok(0) => return Err(lost(io::ErrorKind::ConnectionAborted.into())),",
     "Ok(0) => return place(sink, &buffer, &mut ready),",
     ["haul", "--lib"], "a_stream_that_was_cut_off_changed_or_is_another_ones_is_an_error"),
    ("a host's name becomes an option of ssh", "crates/haul-cli/src/operand.rs",
     "if destination.starts_with('-') {", "if destination.starts_with('-') && false {",
     ["haul-cli", "--bin", "haul"], "operand::tests"),
    ("a code is tried without limit", "crates/haul-control/src/pairing.rs",
     "                state.tries_left -= 1;\n", "",
     ["haul-cli", "--test", "cli"], "three_wrong_codes_end_a_receiver"),
    ("a server dumps core", "crates/haul-cli/src/main.rs",
     "let _ = haul::forbid_core_dumps();", "",
     ["haul-cli", "--test", "cli"], "servers_and_gateways_leave_no_core_dump"),
]


def test(copy, target, name, patience):
    """Runs a test; returns `passed`, `failed`, `no build` or `none`, and the seconds it took."""
    command = ["cargo", "test", "--offline", "-p", *target, name]
    begun = time.monotonic()
    try:
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=patience, check=False)
    except subprocess.TimeoutExpired:
        # A guard may end a wait.
        return "failed", time.monotonic() - begun
    took = time.monotonic() - begun
    if "could not compile" in done.stderr:
        return "no build", took
    if "test result:" not in done.stdout or " 0 passed; 0 failed" in done.stdout:
        return "none", took
    if "SKIPPED" in done.stdout:
        return "skipped", took
    return ("passed" if done.returncode == 0 else "failed"), took


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("copy", type=pathlib.Path)
    parser.add_argument("--only", default="", help="guards whose description or file contains this")
    parser.add_argument("--patience", type=float, default=900, help="seconds for one build and its test")
    args = parser.parse_args()
    chosen = [guard for guard in GUARDS if args.only in guard[0] or args.only in guard[1]]
    # All at first, and no build of a restored file: the next guard's build brings it back.
    tests = {(*target, name): (target, name) for *_, target, name in chosen}
    with_guard = {key: test(args.copy, *one, args.patience)[0] for key, one in tests.items()}
    is_good = True
    for what, file, guard, change, target, name in chosen:
        path = args.copy / file
        text = path.read_text()
        before = with_guard[*target, name]
        if before != "passed" or text.count(guard) != 1:
            verdict = f"with guard: {before}" if before != "passed" else "NO GUARD"
            took = 0
        else:
            try:
                path.write_text(text.replace(guard, change))
                without, took = test(args.copy, target, name, args.patience)
            finally:
                path.write_text(text)
            verdict = {"failed": "caught", "passed": "SURVIVED"}.get(without, without)
        is_good &= verdict == "caught"
        print(f"{verdict:9} {what}: {' '.join(target)} {name} ({took:.0f} s)", flush=True)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
