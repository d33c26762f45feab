"""What changed, and what this process does about it."""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, final

from loader._backing import backings
from loader._batching import _NOWHERE
from loader._dispatch import string
from loader._entries import NOTHING, Namespace
from loader._key_text import key_text

if TYPE_CHECKING:
    from collections.abc import Hashable

    from loader._backing import Backing
    from loader._dataloader import DataLoader
    from loader._entries import SecondLevelCache


@final
@dataclass(frozen=True, slots=True)
class LoaderChange:
    """Keys of a loader whose values changed.

    Attributes:
        loader: The name of the loader, as in `Namespace`.
        version: Its schema version where the change was announced.
        tenant: The text of the tenant whose keys they are; None for all.
        keys: The keys, None for all.
    """

    loader: str
    version: str = ""
    tenant: str | None = None
    keys: frozenset[Hashable] | None = None


@final
@dataclass(frozen=True, slots=True)
class Change:
    """What changed.

    Attributes:
        loaders: The keys of loaders.
        tags: The tags that were named.
        anything: Whether nobody knows, and all that is cached may be out of date.
    """

    loaders: tuple[LoaderChange, ...] = ()
    tags: frozenset[str] = frozenset()
    anything: bool = False

    def __or__(self, other: Change) -> Change:
        """Both changes in one."""
        loaders = tuple(dict.fromkeys((*self.loaders, *other.loaders)))
        return Change(loaders, self.tags | other.tags, self.anything or other.anything)


async def invalidate(loader: DataLoader[Any, Any], keys: Iterable[Any] | None = None) -> Change:
    """Say that values of a loader changed: call it after the change was committed.

    When it returns, no load of this process gets an older value from its second-level cache or from an open scope, and
    no load that is under way, in whatever process, can write one back. Other processes' open scopes are told by what
    carries the change to them, such as a `loader.redis.RedisBus`.

    Args:
        loader: The loader, with whatever parameters: those of the call do not count.
        keys: The keys, of the tenant that the loader belongs to; None for all keys of all tenants.

    Returns:
        What changed, to be told to others.

    Raises:
        ValueError: If the loader has no second-level cache.
        TypeError: If it is no loader of an instance, or `keys` is a string or not iterable.
        SecondLevelError: If a key has no text.

    Cancellation: The keys may or may not have been deleted.
    """
    part = change_of(loader, keys)
    backed = loader._backed
    assert backed is not None
    await _delete(backed.cache, backed.backing, part)
    _clear_here(backed.backing, part)
    return Change((part,))


def change_of(loader: DataLoader[Any, Any], keys: Iterable[Any] | None = None) -> LoaderChange:
    """What a change of keys of a loader is called, without announcing one.

    Raises:
        ValueError: If the loader has no second-level cache.
        TypeError: If it is no loader of an instance, or `keys` is a string or not iterable.
    """
    backed = getattr(loader, "_backed", NOTHING)
    if backed is NOTHING:
        raise TypeError(
            f"a change is one of a loader of an instance, as in AppLoaders(...).products, not of {loader!r}"
        )
    if isinstance(keys, str | bytes) or not (keys is None or isinstance(keys, Iterable)):
        raise TypeError(f"{loader!r}: a change takes an iterable of keys, not {keys!r}; one key is [{keys!r}]")
    if backed is None:
        raise ValueError(
            f"{loader!r} has no second_level: its values live as long as its scope. There, call its clear()"
        )
    namespace = backed.namespace
    if keys is None:
        return LoaderChange(namespace.loader, namespace.version)
    return LoaderChange(namespace.loader, namespace.version, namespace.tenant, frozenset(map(backed.identity, keys)))


async def invalidate_tags(*tags: str) -> Change:
    """Say that something changed which loaders were declared with: `invalidate` for all keys of each of them.

    Args:
        tags: What changed.

    Returns:
        What changed, to be told to others.

    Raises:
        TypeError: If a tag is no string.
    """
    change = Change(tags=frozenset(string("each of the tags", tag) for tag in tags))
    for cache, backing in backings():
        for part in _tagged(backing, change):
            await _delete(cache, backing, part)
            _clear_here(backing, part)
            change |= Change((part,))
    return change


async def receive(change: Change) -> None:
    """Do here what a change asks for that another process announced, and deleted from a cache that all share.

    Cancellation: Part of it may not have been done.
    """
    for cache, backing in backings():
        for part in _concerned(backing, change):
            # What the change itself names was deleted from a shared cache by whoever announced it.
            if part not in change.loaders or not cache.shared:
                await _delete(cache, backing, part)
            _clear_here(backing, part)
        if change.anything:
            for name, version in list(backing.declared):
                part = LoaderChange(name, version)
                if not cache.shared:  # else whoever changed something has deleted it
                    await _delete(cache, backing, part)
                _clear_here(backing, part)


def _concerned(backing: Backing, change: Change) -> Iterable[LoaderChange]:
    """What a change means for the loaders in front of a cache, under the versions that this process has of them."""
    parts = _tagged(backing, change)
    for name, version in backing.declared:
        parts += [replace(part, version=version) for part in change.loaders if part.loader == name]
    return dict.fromkeys(parts)


def _tagged(backing: Backing, change: Change) -> list[LoaderChange]:
    """All keys of each loader that was declared with one of the tags."""
    return [LoaderChange(name, version) for (name, version), tags in backing.declared.items() if tags & change.tags]


async def _delete(cache: SecondLevelCache, backing: Backing, part: LoaderChange) -> None:
    namespace = Namespace(part.loader, part.version, part.tenant or "")
    texts = None if part.keys is None else list(map(key_text, part.keys))
    await backing.guarded(partial(cache.delete_many, namespace, texts))


def _clear_here(backing: Backing, part: LoaderChange) -> None:
    """Clear the open scopes of this loop."""
    loop = get_running_loop()
    for loader in list(backing.live):
        backed = loader._backed
        assert backed is not None
        namespace = backed.namespace
        if namespace.loader != part.loader or part.tenant not in (None, namespace.tenant):
            continue
        if loader._loop is not loop and loader._loop is not _NOWHERE:
            continue  # another thread's, whose scopes only it may touch
        if part.keys is None:
            loader._clear_all()
        else:
            for key in part.keys:
                loader._clear(key)
