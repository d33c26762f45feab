"""`@dataloader`: makes a method of a `Loaders` a loader, with the types of its keys and values."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from loader._dataloader import DataLoader
from loader._scope import Declaration, made_options

if TYPE_CHECKING:
    from typing import Unpack

    from loader._declare_types import (
        Attribute,
        Grouped,
        Indexed,
        IndexedOr,
        Mapped,
        Pairs,
        Plain,
        PlainOr,
        Values,
    )
    from loader._options import DeclaredOptions
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
def dataloader(*, group_by: By, **options: Unpack[DeclaredOptions]) -> Grouped: ...
@overload
def dataloader(*, index_by: By, default: D, **options: Unpack[DeclaredOptions]) -> IndexedOr[D]: ...
@overload
def dataloader(*, index_by: By, **options: Unpack[DeclaredOptions]) -> Indexed: ...
@overload
def dataloader(*, default: D, **options: Unpack[DeclaredOptions]) -> PlainOr[D]: ...
@overload
def dataloader(**options: Unpack[DeclaredOptions]) -> Plain: ...


def dataloader(method: Any = None, /, **options: Any) -> Any:
    """Declare a method of a `Loaders` to be the batch function of a loader, with the options of `DataLoader`.

    The method takes the list of keys. Keyword-only parameters make loaders of their own: with
    `async def departures(self, codes, *, first=10)`, `loaders.departures(first=5).load("JFK")` batches with other
    loads of five, and `loaders.departures.load("JFK")` with those of ten.

    One option differs: `cache_map` takes a function that makes a mapping, such as `lambda: LRUCache(1000)`, and is
    called for every loader. A mapping itself would be shared by the loaders of all requests and of all parameters, and
    show the values of one in another.

    Raises:
        TypeError: If the method does not take keys, has a parameter that is not keyword-only, or an option is unknown
            or of the wrong type.
        ValueError: If an option has no sensible meaning.
    """
    if method is None:
        return lambda method: dataloader(method, **options)
    # Options are checked where they are written, not at the first request.
    make_map = options.get("cache_map")
    if make_map is not None and not callable(make_map):
        raise TypeError(
            f"@dataloader: cache_map takes a function that makes a mapping for each loader, not {make_map!r}, which "
            "the loaders of all requests would share"
        )
    if unknown := options.keys() - _OPTIONS:
        raise TypeError(
            f"@dataloader: {_named(method)} is given the option {min(unknown)!r}, which is none of DataLoader's: "
            f"{', '.join(_OPTIONS)}"
        )
    try:
        name = f"{getattr(method, '__module__', '')}.{_named(method)}"  # as the loaders to come will be known by
        DataLoader(method, **{"name": name, **made_options(options)})
    except (TypeError, ValueError) as error:
        raise type(error)(f"@dataloader: {_named(method)}: {error}") from None
    return Declaration(method, options)


_OPTIONS = [
    name
    for name, parameter in inspect.signature(DataLoader.__init__).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
]


def _named(method: object) -> str:
    return getattr(method, "__qualname__", None) or repr(method)
