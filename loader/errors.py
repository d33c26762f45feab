"""Every exception that this package raises, in one hierarchy under `LoaderError`.

Where the standard library has an exception that people already catch for the same thing, it is a base here too:
`except KeyError`, `except TimeoutError` and `except RuntimeError` keep working. Arguments that make no sense are
plain `TypeError` and `ValueError`.
"""

from __future__ import annotations

__all__ = [
    "BatchCancelledError",
    "BatchFailedError",
    "BatchResultError",
    "KeyNotFoundError",
    "LoaderClosedError",
    "LoaderError",
    "LoaderLoopError",
    "LoaderOverloadedError",
    "LoaderTimeoutError",
    "RunCancelledError",
    "SecondLevelError",
    "SelfWaitError",
]


class LoaderError(Exception):
    """The base of every exception of this package."""


class KeyNotFoundError(LoaderError, KeyError):
    """The batch answered, but not for this key: only the callers of the key get this error."""

    def __str__(self) -> str:
        # KeyError prints the repr of its argument, which would put the whole sentence in quotes.
        return Exception.__str__(self)


class BatchResultError(LoaderError, TypeError, ValueError):
    """A batch function returned something else than it promised: a wrong number of results, or a wrong shape."""


class BatchFailedError(LoaderError):
    """A batch ended with an exception that is no `Exception` (such as `SystemExit`), which is the `__cause__`."""


class BatchCancelledError(LoaderError):
    """A batch was cancelled from within or from outside; nobody cancelled the caller that gets this error."""


class RunCancelledError(LoaderError):
    """A run of a debouncer, coalescer or snapshot was cancelled; nobody cancelled the caller that gets this."""


class LoaderClosedError(LoaderError, RuntimeError):
    """The object was closed before the call, or while the caller was waiting."""


class LoaderLoopError(LoaderError, RuntimeError):
    """The call came from no event loop, or from another event loop (or thread) than the object belongs to."""


class LoaderOverloadedError(LoaderError):
    """Too much is waiting already: the limit that was set as `max_pending` is reached."""


class LoaderTimeoutError(LoaderError, TimeoutError):
    """The work took longer than its `timeout`; only the callers of that piece of work get this error."""


class SecondLevelError(LoaderError, TypeError):
    """A loader cannot have a second-level cache as it is: its keys have no text, or its values no type."""


class SelfWaitError(LoaderError, RuntimeError):
    """Work waits, directly or through others, for its own result: it would never have come."""
