"""carried.py FILE BYTES [KEY=VALUE...]: whether the driver's statistics say that so many bytes went through it.

Connections are counted at both ends, those that fell back to TCP not. A session of a server may leave them when its client
has gone. KEY=VALUE must hold for each (VALUE: words, one of them); connections=N for their number at each end, at most.
"""
import json
import sys

path, least, *wanted = sys.argv[1:]
connections = [json.loads(line) for line in open(path)]
connections = [one for one in connections if one["channel"] != "tcp"]
wanted = {"end": "closed left"} | dict(pair.split("=", 1) for pair in wanted)
most = wanted.pop("connections", len(connections))
sums = {key: sum(one[key] for one in connections) for key in ("tx_bytes", "rx_bytes")}
print(sums, *connections, sep="\n")
sys.exit(
    not connections
    or min(sums.values()) < int(least)
    or sums["tx_bytes"] != sums["rx_bytes"]
    or len(connections) % 2
    or len(connections) > 2 * int(most)
    or any(one[key] not in words.split() for one in connections for key, words in wanted.items())
)
