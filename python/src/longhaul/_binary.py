"""Where the program `haul` is."""

from __future__ import annotations

import os
import shutil
import sysconfig

from .errors import HaulError


def binary() -> str:
    """Returns the path of the program: $HAUL_BINARY, the one of this wheel, or the first of PATH."""
    given = os.environ.get("HAUL_BINARY")
    if given and not os.access(given, os.X_OK):
        raise HaulError(f"HAUL_BINARY is {given!r}, which cannot be run", hint="name the program haul")
    own = os.path.join(sysconfig.get_path("scripts"), "haul")
    found = given or (own if os.access(own, os.X_OK) else shutil.which("haul"))
    if not found:
        raise HaulError("the program haul is not installed", hint="install the wheel, or a package")
    return found
