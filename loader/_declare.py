"""`@dataloader`: makes a method of a `Loaders` a loader, with the types of its keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from loader._dataloader import DataLoader
from loader._scope import Declaration

if TYPE_CHECKING:
    from typing import Unpack

    from loader._dataloader import Options
    from loader._declare_types import Attribute, Grouped, Indexed, IndexedOr, Mapped, Pairs, Plain, PlainOr, Values
    from loader._results import By

K = TypeVar("K")
T = TypeVar("T")
D = TypeVar("D")
P = ParamSpec("P")


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
