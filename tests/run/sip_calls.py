#!/usr/bin/env python3
"""A SIP client with a socket for each call: what sipp -sn uac does, timed from before the socket is made to the first answer.

Usage: sip_calls.py u|t HERE SERVER PORT CALLS GAP_MS

Prints calls, and median, first and last decile of their times in microseconds; the first fifth of the calls is left out. SIPp itself
has a clock that ticks every 4 ms, and no time in its log for an INVITE that waits for a connection.
"""

import socket
import sys
import time

PATIENCE_S = 5
SDP = "v=0\r\no=user1 1 1 IN IP4 {here}\r\ns=-\r\nc=IN IP4 {here}\r\nt=0 0\r\nm=audio 6000 RTP/AVP 0\r\n"


def message(method, sequence, ends, call, to_tag="", body=""):
    """A request of a call; `ends` is (transport, here, own port, server, port)."""
    transport, here, own, server, port = ends
    return (
        f"{method} sip:service@{server}:{port} SIP/2.0\r\n"
        f"Via: SIP/2.0/{transport} {here}:{own};branch=z9hG4bK-{call}-{sequence}-{method}\r\n"
        f"From: caller <sip:caller@{here}:{own}>;tag={call}\r\n"
        f"To: service <sip:service@{server}:{port}>{to_tag}\r\n"
        f"Call-ID: {call}@{here}\r\n"
        f"CSeq: {sequence} {method}\r\n"
        f"Contact: sip:caller@{here}:{own}\r\n"
        "Max-Forwards: 70\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


class Answers:
    """The responses of one call. By TCP they come in a row; SIPp's have no body, but for the 200 of an INVITE."""

    def __init__(self, peer):
        self.peer = peer
        self.held = b""

    def next(self):
        while True:
            head, end, rest = self.held.partition(b"\r\n\r\n")
            if end:
                fields = dict(
                    line.split(":", 1) for line in head.decode().split("\r\n")[1:] if ":" in line
                )
                length = int(fields.get("Content-Length", "0"))
                if len(rest) >= length:
                    self.held = rest[length:]
                    return int(head.split()[1]), fields
            octets = self.peer.recv(65536)
            if not octets:
                raise ConnectionError("the server has closed the connection")
            self.held += octets


def call(kind, here, server, port, number):
    """One call; the seconds from before its socket was made until its first answer was read."""
    begin = time.perf_counter()
    peer = socket.socket(socket.AF_INET, socket.SOCK_STREAM if kind == "t" else socket.SOCK_DGRAM)
    with peer:
        peer.settimeout(PATIENCE_S)
        peer.connect((server, port))
        ends = ("TCP" if kind == "t" else "UDP", here, peer.getsockname()[1], server, port)
        answers = Answers(peer)
        peer.sendall(message("INVITE", 1, ends, number, body=SDP.format(here=here)))
        status, fields = answers.next()
        took = time.perf_counter() - begin
        while status < 200:
            status, fields = answers.next()
        if status != 200:
            raise ConnectionError(f"the call was answered with {status}")
        tag = ";" + fields["To"].split(";", 1)[1].strip()
        peer.sendall(message("ACK", 1, ends, number, tag))
        peer.sendall(message("BYE", 2, ends, number, tag))
        while (answer := answers.next())[1]["CSeq"].split()[1] != "BYE":
            pass
        if answer[0] != 200:
            raise ConnectionError(f"the end of the call was answered with {answer[0]}")
    return took


def main():
    kind, here, server, port, calls, gap_ms = sys.argv[1:]
    times = []
    for number in range(int(calls)):
        times.append(call(kind, here, server, int(port), number))
        time.sleep(int(gap_ms) / 1000)
    times = sorted(times[len(times) // 5 :])
    median, low, high = (times[len(times) * part // 10] * 1e6 for part in (5, 1, 9))
    print(f"{len(times)} calls, median {median:.0f} us, 10% {low:.0f}, 90% {high:.0f}")


if __name__ == "__main__":
    main()
