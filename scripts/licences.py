#!/usr/bin/env python3
"""Prints the licences of the crates that are linked into the given ones, with each text once.

Usage: licences.py TARGET CRATE…
"""

import json
import pathlib
import subprocess
import sys

PATTERNS = ("LICEN[CS]E*", "COPYING*", "COPYRIGHT*", "NOTICE*", "UNLICENSE*")


def main():
    target, *names = sys.argv[1:]
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    roots = [id for id, package in packages.items() if package["name"] in names]
    if len(roots) != len(names):
        sys.exit(f"licences: not all of {' '.join(names)} are here")
    linked = [packages[id] for id in linked_into(roots, metadata["resolve"]["nodes"])]
    linked = sorted((p for p in linked if p["source"]), key=lambda p: (p["name"], p["version"]))
    print("haul contains these libraries, under these licences. Their texts follow.\n")
    holders = {}
    for package in linked:
        print(f"{package['name']} {package['version']}: {package['license']}")
        for text in texts(pathlib.Path(package["manifest_path"]).parent):
            holders.setdefault(text, []).append(f"{package['name']} {package['version']}")
    for text, who in holders.items():
        print(f"\n{'=' * 80}\n{', '.join(who)}\n{'=' * 80}\n\n{text}")


def linked_into(roots, nodes):
    """Returns the roots and all that they depend on, without what only builds or tests them."""
    nodes = {node["id"]: node for node in nodes}
    found, left = set(), list(roots)
    while left:
        id = left.pop()
        if id in found:
            continue
        found.add(id)
        for dependency in nodes[id]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                left.append(dependency["pkg"])
    return found


def texts(folder):
    """Returns the licence texts of a crate, also those of the C library that it carries."""
    files = {file for pattern in PATTERNS for file in folder.glob(pattern)}
    files |= {file for pattern in PATTERNS for file in folder.glob(f"*/{pattern}")}
    files = sorted(file for file in files if file.is_file() and file.suffix != ".rs")
    return dict.fromkeys(file.read_text(errors="replace").strip() for file in files)


main()
