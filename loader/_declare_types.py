"""The types behind `@dataloader`: what a method may look like, and what it becomes.

Only type checkers import this module: making the classes would take a tenth of the time of `import loader`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, overload

if TYPE_CHECKING:
    from typing import Self

    from loader._scope import DeclaredLoader, Loaders

K = TypeVar("K")
T = TypeVar("T")
D_co = TypeVar("D_co", covariant=True)
P = ParamSpec("P")

# What a method may look like; its keyword-only parameters are P.
Rows: TypeAlias = Callable[Concatenate[Any, list[K], P], Awaitable[Iterable[T]] | Iterable[T]]
Values: TypeAlias = Callable[
    Concatenate[Any, list[K], P], Awaitable[Iterable[T | BaseException]] | Iterable[T | BaseException]
]
Mapped: TypeAlias = Callable[
    Concatenate[Any, list[K], P], Awaitable[Mapping[K, T | BaseException]] | Mapping[K, T | BaseException]
]
Pairs: TypeAlias = Callable[Concatenate[Any, list[K], P], AsyncIterator[tuple[K, T | BaseException]]]


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
