"""Failures of `haul`, by the exit code of the command."""

from __future__ import annotations

from typing import Any


class HaulError(OSError):
    """A request or a transfer failed.

    ``code`` is the name of the failure in JSON, such as ``peer_gone``; ``exit`` the exit code that
    the command has for it; ``hint`` says what to do, or is ``None``; ``summary`` is the final JSON
    object of a transfer, or is empty.
    """

    def __init__(
        self,
        text: str,
        *,
        code: str = "other",
        exit: int = 1,
        hint: str | None = None,
        summary: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(f"{text} ({hint})" if hint else text)
        self.code = code
        self.exit = exit
        self.hint = hint
        self.summary = summary or {}


class UsageError(HaulError, ValueError):
    """An option or argument is wrong (exit code 2)."""


class NotFoundError(HaulError, FileNotFoundError):
    """A directory or file does not exist (exit codes 3 and 4)."""


class UnavailableError(HaulError, ConnectionError):
    """The host cannot be reached now, or the connection was lost (exit code 5)."""


class SourceChangedError(HaulError):
    """A file changed while it was read or sent (exit code 5)."""


class RefusedError(HaulError, PermissionError):
    """One end refuses what was asked, or cannot do it (exit code 7)."""


class ExistsError(HaulError, FileExistsError):
    """The target exists and may not be replaced (exit code 7)."""


class IntegrityError(HaulError):
    """Content differs: damaged, or found different by ``verify`` (exit code 11)."""


class AuthenticationError(HaulError, PermissionError):
    """One end does not trust the other (exit code 12)."""


class NoSpaceError(HaulError):
    """The target's file system or quota is full (exit code 13)."""


class Cancelled(HaulError):
    """The caller cancelled it."""


_BY_EXIT: dict[int, type[HaulError]] = {
    2: UsageError,
    3: NotFoundError,
    4: NotFoundError,
    5: UnavailableError,
    7: RefusedError,
    11: IntegrityError,
    12: AuthenticationError,
    13: NoSpaceError,
}


def error_of(error: dict[str, Any], summary: dict[str, Any] | None = None) -> HaulError:
    """Makes the exception of an ``error`` object."""
    code, exit_code = str(error.get("code", "other")), int(error.get("exit", 1))
    kind = _BY_EXIT.get(exit_code, HaulError)
    if code == "source_changed":
        kind = SourceChangedError
    elif code == "exists":
        kind = ExistsError
    elif code == "interrupted":
        kind = Cancelled
    return kind(
        str(error.get("text", "it failed")),
        code=code,
        exit=exit_code,
        hint=error.get("hint"),
        summary=summary,
    )
