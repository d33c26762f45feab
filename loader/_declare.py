"""`@dataloader`: makes a method of a `Loaders` a loader, with the types of its keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from loader._dataloader import DataLoader
from loader._scope import Declaration, DeclaredLoader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
    from typing import Self, Unpack

    from loader._dataloader import Options
    from loader._results import By
    from loader._scope import Loaders

K = TypeVar("K")
T = TypeVar("T")
D = TypeVar("D")
D_co = TypeVar("D_co", covariant=True)
P = ParamSpec("P")

if TYPE_CHECKING:
    # What a method may look like; its keyword-only parameters are P.
    Rows = Callable[Concatenate[Any, list[K], P], Awaitable[Iterable[T]] | Iterable[T]]
    Values = Callable[
        Concatenate[Any, list[K], P], Awaitable[Iterable[T | BaseException]] | Iterable[T | BaseException]
    ]
    Mapped = Callable[
        Concatenate[Any, list[K], P], Awaitable[Mapping[K, T | BaseException]] | Mapping[K, T | BaseException]
    ]
    Pairs = Callable[Concatenate[Any, list[K], P], AsyncIterator[tuple[K, T | BaseException]]]


class Attribute(Protocol[K, T, P]):
    """The class attribute that `@dataloader` leaves: read through an instance, it is the current scope's loader."""

    @overload
    def __get__(self, loaders: None, owner: type) -> Self: ...
    @overload
    def __get__(self, loaders: Loaders, owner: type) -> DeclaredLoader[K, T, P]: ...


class Grouped(Protocol):
    """`@dataloader(group_by=...)`."""

    def __call__(self, method: Rows[K, P, T]) -> Attribute[K, list[T], P]: ...


class Indexed(Protocol):
    """`@dataloader(index_by=...)`."""

    def __call__(self, method: Rows[K, P, T]) -> Attribute[K, T, P]: ...


class IndexedOr(Protocol[D_co]):
    """`@dataloader(index_by=..., default=...)`."""

    def __call__(self, method: Rows[K, P, T]) -> Attribute[K, T | D_co, P]: ...


class Plain(Protocol):
    """`@dataloader` or `@dataloader(...)` without any of the three."""

    @overload
    def __call__(self, method: Pairs[K, P, T]) -> Attribute[K, T, P]: ...
    @overload
    def __call__(self, method: Mapped[K, P, T]) -> Attribute[K, T, P]: ...
    @overload
    def __call__(self, method: Values[K, P, T]) -> Attribute[K, T, P]: ...


class PlainOr(Protocol[D_co]):
    """`@dataloader(default=...)`."""

    @overload
    def __call__(self, method: Pairs[K, P, T]) -> Attribute[K, T | D_co, P]: ...
    @overload
    def __call__(self, method: Mapped[K, P, T]) -> Attribute[K, T | D_co, P]: ...
    @overload
    def __call__(self, method: Values[K, P, T]) -> Attribute[K, T, P]: ...


@overload
def dataloader(method: Pairs[K, P, T], /) -> Attribute[K, T, P]: ...
@overload
def dataloader(method: Mapped[K, P, T], /) -> Attribute[K, T, P]: ...
@overload
def dataloader(method: Values[K, P, T], /) -> Attribute[K, T, P]: ...
@overload
def dataloader(*, group_by: By, **options: Unpack[Options]) -> Grouped: ...
@overload
def dataloader(*, index_by: By, default: D, **options: Unpack[Options]) -> IndexedOr[D]: ...
@overload
def dataloader(*, index_by: By, **options: Unpack[Options]) -> Indexed: ...
@overload
def dataloader(*, default: D, **options: Unpack[Options]) -> PlainOr[D]: ...
@overload
def dataloader(**options: Unpack[Options]) -> Plain: ...


def dataloader(method: Any = None, /, **options: Any) -> Any:
    """Declare a method of a `Loaders` to be the batch function of a loader, with the options of `DataLoader`.

    The method takes the list of keys. Keyword-only parameters make loaders of their own: with
    `async def departures(self, codes, *, first=10)`, `loaders.departures(first=5).load("JFK")` batches with other
    loads of five, and `loaders.departures.load("JFK")` with those of ten.

    Raises:
        TypeError: If the method does not take keys, has a parameter that is not keyword-only, or an option is unknown
            or of the wrong type.
        ValueError: If an option has no sensible meaning.
    """
    if method is None:
        return lambda method: dataloader(method, **options)
    # Options are checked where they are written, not at the first request.
    DataLoader(method, **options)
    return Declaration(method, options)
