"""What loaders and a second-level cache say to each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


@final
@dataclass(frozen=True, slots=True)
class Namespace:
    """Whose values: no key of one namespace is a key of another.

    Attributes:
        loader: The loader, as in `app.loaders.AppLoaders.flights`.
        version: The `schema_version` that the loader was declared with.
        tenant: The text of the tenant; the empty string where the class does not tell tenants apart.
        parameters: The text of the loader's parameters; the empty string where it has none.
    """

    loader: str
    version: str = ""
    tenant: str = ""
    parameters: str = ""


class Nothing(Enum):
    """The type of `NOTHING`."""

    NOTHING = "nothing"


NOTHING: Literal[Nothing.NOTHING] = Nothing.NOTHING
"""Stands where a value would: the backend has none for the key."""


class Stored(NamedTuple):
    """What a cache has of a key.

    Attributes:
        data: What the codec made of the value, or `NOTHING`.
        lease: The right to replace exactly this.
    """

    data: Any
    lease: Any


@final
@dataclass(frozen=True, slots=True)
class Found:
    """What a cache answers; a key that is in none of the three is to be loaded and not to be written.

    Attributes:
        stored: What it has, by key.
        leases: For keys that it has nothing of and that the asker shall load: the right to write them.
        busy: The keys that somebody else is loading.
    """

    stored: Mapping[str, Stored] = field(default_factory=dict)
    leases: Mapping[str, Any] = field(default_factory=dict)
    busy: Collection[str] = ()


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """What is to be written.

    Attributes:
        namespace: Whose key.
        key: Its text.
        lease: What `get_many` gave for it.
        data: What the codec made of the value, or `NOTHING`.
        fresh_for: How many seconds after the lease was given it may last be served. 0 keeps nothing: the lease is
            given back, and the next one who asks gets it.
    """

    namespace: Namespace
    key: str
    lease: Any
    data: Any
    fresh_for: float


class Codec(Protocol):
    """Makes bytes of values, and values of bytes. What it raises is counted, and the value is loaded."""

    def encode(self, value: Any, value_type: Any) -> bytes:
        """The bytes of a value of a loader that is annotated with this type."""
        ...

    def decode(self, data: bytes, value_type: Any) -> Any:
        """The value."""
        ...


class SecondLevelCache(Protocol):
    """Where values stay that outlive a request.

    **The lease.** A value that was read before a change must not be written after the change was announced. So
    whoever may write a key gets a lease when it asks, before it reads the backend, and `delete_many` ends all leases
    of its keys. `set_many` writes an entry only if its lease is still the one that stands there. At most one lease of
    a key is out; others who ask are told that it is busy. A lease runs out by itself, in case its holder is gone.

    A method may raise: that is counted, and the backend is asked. None should take longer than asking it.

    Attributes:
        codec: What values go through. None keeps the objects themselves, which all requests then share.
        shared: Whether all workers see the same entries. Then who changed something deletes for all; otherwise each
            worker does when it hears of it.
    """

    @property
    def codec(self) -> Codec | None: ...
    @property
    def shared(self) -> bool: ...

    async def get_many(self, namespace: Namespace, keys: Sequence[str], *, wait: bool = False) -> Found:
        """What there is of keys, and leases of those that there is nothing of.

        Args:
            namespace: Whose keys.
            keys: Their texts.
            wait: Whether to wait, for a bounded time, for what somebody else is loading; after that nothing is busy.
        """
        ...

    async def set_many(self, entries: Sequence[Entry]) -> None:
        """Write entries whose leases stand, or give leases back."""
        ...

    async def delete_many(self, namespace: Namespace, keys: Sequence[str] | None) -> None:
        """Delete keys and end their leases, whatever the parameters: those of the namespace do not count.

        Args:
            namespace: Whose keys.
            keys: Their texts; None for all keys of the loader, and of all tenants.
        """
        ...
