"""The DataLoader that Strawberry users deserve.

`DataLoader` answers one key at a time from batches. `Loaders` with `@dataloader` declares the loaders of a request,
whose batches and values live in a `Scope`. `Batcher` sends items, each with a result of its own, in batches.
`Debouncer` and `Coalescer` run work once for many triggers, `Keyed` does so for each key, `SingleFlight` joins equal
calls, and `Snapshot` keeps one value fresh.
Importing this package imports the standard library only; what belongs to a framework is imported by its own name.

- `loader.errors`: every exception.
- `loader.inspector`: a page that shows operations as they happen, an ASGI app to mount.
- `loader.observe`, `loader.timeline`, `loader.hints`: what loaders did, and what to change.
- `loader.otel`, `loader.prometheus`: spans and metrics for OpenTelemetry, metrics for Prometheus.
- `loader.second_level`: values that outlive a request. `loader.redis`: those of all workers, and what changed.
- `loader.sqlalchemy`: rows by key, grouped rows with a limit per key, and pages, for SQLAlchemy.
- `loader.streams`: debounce, throttle and conflate for subscriptions.
- `loader.strawberry`: scopes for operations, relations, and context factories for Starlette and FastAPI.
- `loader.testing`: the batches of a test, and an event loop whose time is virtual; as fixtures for pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    SecondLevelError,
    SelfWaitError,
)

if TYPE_CHECKING:
    from loader._batcher import Batcher, BatcherStatistics
    from loader._coalescer import Coalescer
    from loader._debouncer import Debouncer
    from loader._keyed import Keyed
    from loader._runs import Trigger, TriggerStatistics
    from loader._single_flight import SingleFlight
    from loader._snapshot import Changes, Snapshot, SnapshotStatistics, Versioned

__all__ = [
    "RAISE",
    "BatchCancelledError",
    "BatchFailedError",
    "BatchResultError",
    "Batcher",
    "BatcherStatistics",
    "Changes",
    "Coalescer",
    "DataLoader",
    "DataLoaderStatistics",
    "Debouncer",
    "Declaration",
    "DeclaredLoader",
    "Histogram",
    "KeyNotFoundError",
    "Keyed",
    "LoaderClosedError",
    "LoaderError",
    "LoaderLoopError",
    "LoaderOverloadedError",
    "LoaderTimeoutError",
    "Loaders",
    "RunCancelledError",
    "Scope",
    "SecondLevelError",
    "SelfWaitError",
    "Settle",
    "SingleFlight",
    "Snapshot",
    "SnapshotStatistics",
    "Trigger",
    "TriggerStatistics",
    "Versioned",
    "dataloader",
]

# What many programs never use is imported when it is first asked for: it would double the time of `import loader`.
_ON_DEMAND = {
    "Batcher": "loader._batcher",
    "BatcherStatistics": "loader._batcher",
    "Changes": "loader._snapshot",
    "Coalescer": "loader._coalescer",
    "Debouncer": "loader._debouncer",
    "Keyed": "loader._keyed",
    "SingleFlight": "loader._single_flight",
    "Snapshot": "loader._snapshot",
    "SnapshotStatistics": "loader._snapshot",
    "Trigger": "loader._runs",
    "TriggerStatistics": "loader._runs",
    "Versioned": "loader._snapshot",
}


def __getattr__(name: str) -> Any:
    module = _ON_DEMAND.get(name)
    if module is None:
        raise AttributeError(f"module 'loader' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
