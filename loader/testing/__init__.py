"""For the tests of programs that use `loader`: which batches were sent, and an event loop whose time is virtual.

With pytest both are fixtures, which are there wherever this package is installed beside it: `batches: Batches`, and
`virtual_clock: asyncio.Runner`, which runs coroutines on a `VirtualClockLoop`. Neither needs pytest:

- `record_batches()` records the batches of all threads and event loops of the process; what it hands out are `Batches`.
- `VirtualClockLoop` is a loop factory for `asyncio.Runner` and for the plugins that run coroutine tests.
"""

from __future__ import annotations

from loader.testing._batches import AmbiguousNameError, Batches, NoBatchError, record_batches
from loader.testing._clock import DeadlockError, VirtualClockLoop

__all__ = ["AmbiguousNameError", "Batches", "DeadlockError", "NoBatchError", "VirtualClockLoop", "record_batches"]
