"""The DataLoader that Strawberry users deserve.

`DataLoader` answers one key at a time from batches. `Loaders` with `@dataloader` declares the loaders of a request,
whose batches and values live in a `Scope`. `Batcher` sends items, each with a result of its own, in batches.
Importing this package imports the standard library only; what belongs to a framework is imported by its own name.

- `loader.errors`: every exception.
- `loader.sqlalchemy`: rows by key, grouped rows with a limit per key, and pages, for SQLAlchemy.
- `loader.strawberry`: scopes for operations, and context factories for Starlette and FastAPI.
"""

from loader._batcher import Batcher, BatcherStatistics
from loader._dataloader import DataLoader, DataLoaderStatistics
from loader._declare import dataloader
from loader._dispatch import Settle
from loader._histogram import Histogram
from loader._results import RAISE
from loader._scope import Declaration, DeclaredLoader, Loaders, Scope
from loader.errors import (
    BatchCancelledError,
    BatchFailedError,
    BatchResultError,
    KeyNotFoundError,
    LoaderClosedError,
    LoaderError,
    LoaderLoopError,
    LoaderOverloadedError,
    LoaderTimeoutError,
    RunCancelledError,
    SelfWaitError,
)

__all__ = [
    "RAISE",
    "BatchCancelledError",
    "BatchFailedError",
    "BatchResultError",
    "Batcher",
    "BatcherStatistics",
    "DataLoader",
    "DataLoaderStatistics",
    "Declaration",
    "DeclaredLoader",
    "Histogram",
    "KeyNotFoundError",
    "LoaderClosedError",
    "LoaderError",
    "LoaderLoopError",
    "LoaderOverloadedError",
    "LoaderTimeoutError",
    "Loaders",
    "RunCancelledError",
    "Scope",
    "SelfWaitError",
    "Settle",
    "dataloader",
]
