"""What the command line prints to standard output, which may be a full disk, or be read by somebody who leaves."""

from __future__ import annotations

import os
import sys

from example_app.settings import StartError


class UnwritableError(StartError):
    """Standard output takes nothing more."""


def write(what: str, text: str) -> None:
    """Print `text`, unless nobody reads it any more: that is no mistake, as in `| head`.

    Raises:
        UnwritableError: If it cannot be written; the error says `what` it is.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # leave nothing to flush at exit
        if not isinstance(error, BrokenPipeError):
            raise UnwritableError(f"cannot write {what}: {error.strerror}") from error
