"""Adds the program `haul` to the wheel, as HAUL_BINARY or target/release has it.

HAUL_PLATFORM is the platform tag of the wheel, by default that of this machine.
"""

import os
import sysconfig
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Hook(BuildHookInterface):
    def initialize(self, version, build_data):
        if version == "editable":
            return
        built = Path(self.root).parent / "target" / "release" / "haul"
        binary = os.environ.get("HAUL_BINARY", str(built))
        if not os.access(binary, os.X_OK):
            raise SystemExit(f"{binary} is missing: build haul, or name it with HAUL_BINARY")
        system = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["shared_scripts"] = {binary: "haul"}
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{os.environ.get('HAUL_PLATFORM', system)}"
