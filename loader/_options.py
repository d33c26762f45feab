"""The options of `DataLoader` and `@dataloader` that have nothing to do with the type of the values.

Only type checkers import this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, MutableMapping

    from loader._caches import CacheObject
    from loader._dispatch import Settle
    from loader._entries import SecondLevelCache
    from loader.observe import Observer


class Options(TypedDict, total=False):
    """The options of a `DataLoader` that have nothing to do with the type of its values."""

    max_batch_size: int | None
    window: float | Settle | None
    cache: bool
    cache_key_fn: Callable[[Any], Hashable] | None
    max_concurrent_batches: int | None
    max_pending: int | None
    timeout: float | None
    abandoned: Literal["finish", "cancel"]
    name: str | None
    observer: Observer | None
    second_level: SecondLevelCache | None
    fresh_for: float | None
    missing_fresh_for: float
    schema_version: str | int
    tags: Collection[str]


class CachedOptions(Options, total=False):
    """The same with a place to keep values in."""

    cache_map: MutableMapping[Any, Any] | CacheObject | None


class DeclaredOptions(Options, total=False):
    """The options of `@dataloader`: each of its loaders has a place of its own to keep values in."""

    cache_map: Callable[[], MutableMapping[Any, Any] | CacheObject] | None
