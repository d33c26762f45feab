"""Loaders and their scopes: declared once, made on first use, gone with the operation they served.

A `Loaders` subclass is the declaration, an instance holds what the loaders of one request work with, and the
`DataLoader`s behind its attributes live in a `Scope`: that of the current operation, or the instance's own.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar, final
from weakref import WeakSet, ref

from loader._dataloader import DataLoader
from loader._dispatch import Activity, whole_number
from loader._hooks import Both, everywhere
from loader._hooks import current_scope as _current
from loader._limits import Limit
from loader.errors import LoaderClosedError, LoaderLoopError, SecondLevelError

if TYPE_CHECKING:
    from asyncio import Task
    from collections.abc import Callable, Hashable, Mapping
    from types import TracebackType
    from typing import Self

    from loader.observe import Observer

K = TypeVar("K")
V = TypeVar("V")
P = ParamSpec("P")


@final
class Scope:
    """The life of one operation's loaders: one set of caches, one clock of settling, one set of context variables.

    Loaders of one scope gather together: a batch of one waits while another gets new keys. Batches run in a copy of
    the context that was current when the scope was made. Whoever makes a scope closes it.

    Examples:
        >>> import asyncio
        >>> from loader import Loaders, Scope, dataloader
        >>> class AppLoaders(Loaders):
        ...     @dataloader
        ...     async def doubles(self, numbers: list[int]) -> list[int]:
        ...         return [2 * number for number in numbers]
        >>> async def main() -> int:
        ...     loaders = AppLoaders()
        ...     async with Scope():
        ...         return await loaders.doubles.load(21)
        >>> asyncio.run(main())
        42

    Attributes:
        closed: Whether it is over.
    """

    __slots__ = (
        *("__weakref__", "_activity", "_context", "_ending", "_loaders", "_name", "_observers", "_outer"),
        "closed",
    )

    def __init__(self) -> None:
        self._name = ""
        self.closed: bool = False
        self._context = contextvars.copy_context()
        self._context.run(_current.set, self)  # what a batch function loads belongs to the scope of its batch
        self._activity = Activity(ref(self))
        # The key holds the id of a `Loaders`, which the loader's batch function keeps alive.
        self._loaders: dict[
            tuple[int, Declaration[Any, Any, Any], Hashable], tuple[Loaders, DeclaredLoader[Any, Any, Any]]
        ] = {}
        self._ending: set[Task[None]] = set()  # of loaders that were closed before
        self._outer: Scope | None = None
        self._observers: list[Observer] = []  # shared with the loaders
        if everywhere:
            _tell(everywhere, "scope_opened", self)

    @property
    def name(self) -> str:
        """What observers call the scope: the operation that it serves, where something says so.

        Raises:
            TypeError: If it is set to something else than a string.
        """
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name of a scope is a string, not {name!r}")
        self._name = name

    @staticmethod
    def current() -> Scope | None:
        """The scope that loads made here belong to, None if each `Loaders` is its own."""
        return _current.get()

    def enter(self) -> Scope | None:
        """Make this the current scope from here on in this context; the one that was it before.

        It has no counterpart that resets a token, since an operation may end in another context than it began in:
        enter the previous scope again, or `Scope.leave` if there was none.
        """
        outer = _current.get()
        _current.set(self)
        return outer

    @staticmethod
    def leave(outer: Scope | None) -> None:
        """Make `outer`, what `enter` returned, the current scope again."""
        _current.set(outer)

    def observe(self, observer: Observer) -> None:
        """Tell `observer` of every batch of the scope's loaders that opens from now on, until the scope is over.

        It is also told of what batchers and triggers do for what runs in the scope. To stop earlier, use
        `loader.observe.observing(observer, scope=scope)`.

        Raises:
            TypeError: If it is no `loader.observe.Observer`.
        """
        from loader.observe import check_observer

        self._observers.append(check_observer(observer))

    def clear_all(self) -> None:
        """Forget every value of every loader of the scope; batches under way go on for those who wait for them."""
        for _, loader in self._loaders.values():
            loader.clear_all()

    def keep_nothing(self) -> None:
        """Forget every value, and from now on each one as soon as those who asked for it have it.

        That is for what goes on for long and looks for changes, in whatever tasks: the source of a subscription. A key
        that waits or is under way is still asked for once, and what is primed is kept.
        """
        self._activity.keeps = False
        self.clear_all()

    def close(self) -> None:
        """Cancel every batch and refuse more loads; who waits gets a `LoaderClosedError`.

        The cancelled batch functions end within the next turns of the loop. `aclose`, or that of their `Loaders`,
        waits for it. What the loaders knew is forgotten.

        Raises:
            LoaderLoopError: If callers wait on another event loop, or none runs here; they go on waiting.
        """
        before, self.closed = self.closed, True
        try:
            for loaders, loader in self._loaders.values():
                loaders._end(loader)
        except LoaderLoopError:
            self.closed = before
            raise
        if (everywhere or self._observers) and not before:
            _tell([*everywhere, *self._observers], "scope_closed", self)

    def _close_loaders(self, loaders: Loaders) -> None:
        """Close what belongs to `loaders`, which are over before the scope is, and let go of it."""
        for key in [key for key, (owner, _) in self._loaders.items() if owner is loaders]:
            loaders._end(self._loaders[key][1])
            del self._loaders[key]
        for task in loaders._ending:
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def aclose(self) -> None:
        """`close` the scope and wait until its batch functions have ended.

        Cancellation:
            Everybody has been answered before the wait; only the wait ends.
        """
        self.close()
        await _ended(self._ending.union(*(loaders._ending for loaders, _ in self._loaders.values())))

    async def __aenter__(self) -> Self:
        self._outer = self.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        Scope.leave(self._outer)
        await self.aclose()

    def _loader(
        self, loaders: Loaders, declaration: Declaration[K, V, P], parameters: dict[str, Any], key: Hashable
    ) -> DeclaredLoader[K, V, P]:
        """The scope's loader of this declaration with these parameters, made on first use."""
        made = self._loaders.get((id(loaders), declaration, key))
        if made is not None:
            return made[1]
        if self.closed or loaders._own.closed:
            over = (
                "the scope is closed, as the operation it served is over" if self.closed else "the loaders are closed"
            )
            raise LoaderClosedError(f"{type(loaders).__name__}.{declaration.name}: {over}")
        loader = declaration.make(loaders, parameters)
        loader._context = self._context
        loader._activity = self._activity
        loader._observers = Both(loader._observers, self._observers) if loader._observers else self._observers
        if loaders._limit is not None:
            # In this order everywhere: a batch that queues at the common limit must not hold a slot of its loader,
            # which one that has passed the common limit may wait for.
            loader._limits = (loaders._limit, *loader._limits)
        self._loaders[id(loaders), declaration, key] = (loaders, loader)
        loaders._scopes.add(self)
        return loader


class Loaders:
    """The loaders of one request: subclass it, declare them with `@dataloader`, make an instance for each request.

    An attribute gives the loader that lives in the current `Scope`, or in the instance itself where there is none.
    Instances are closed by whoever makes them, with `aclose` or `async with`; the context factories of
    `loader.strawberry` do.

    Examples:
        >>> import asyncio
        >>> from loader import Loaders, dataloader
        >>> class AppLoaders(Loaders):
        ...     def __init__(self, names: dict[int, str]) -> None:
        ...         self.names = names
        ...     @dataloader(default=None)
        ...     async def users(self, ids: list[int]) -> dict[int, str]:
        ...         return {id: self.names[id] for id in ids if id in self.names}
        >>> async def main() -> list[str | None]:
        ...     async with AppLoaders({1: "Ada"}) as loaders:
        ...         return await loaders.users.load_many([1, 2])
        >>> asyncio.run(main())
        ['Ada', None]

    Class arguments:
        max_concurrent_batches: How many batches of all the loaders of an instance run at once, in whatever scopes; 1
            where they share a database session, which serves one statement at a time. A batch that another one
            waits for runs in its place.
        tenant: The name of the attribute that says whose loaders an instance has, where a second-level cache must not
            show values of one tenant to another.
    """

    _max_concurrent_batches: int | None = None
    _tenant: str | None = None
    _own: Scope
    _limit: Limit | None
    _scopes: WeakSet[Scope]
    _ending: set[Task[None]]

    def __init_subclass__(
        cls, *, max_concurrent_batches: int | None = None, tenant: str | None = None, **rest: Any
    ) -> None:
        super().__init_subclass__(**rest)
        if tenant is not None:
            cls._tenant = tenant
        for base in cls.__mro__:
            for attribute in vars(base).values():
                if isinstance(attribute, Declaration):
                    attribute.announce(cls)
        if max_concurrent_batches is not None:
            whole_number("max_concurrent_batches", max_concurrent_batches, least=1)
            cls._max_concurrent_batches = max_concurrent_batches

    def __new__(cls, *_arguments: Any, **_named: Any) -> Self:
        # Not in __init__: a subclass has its own and need not call this one's.
        self = super().__new__(cls)
        own = Scope()
        own._context.run(_current.set, None)  # an instance is its own scope where there is no other
        limit = None if cls._max_concurrent_batches is None else Limit(cls._max_concurrent_batches)
        # So that a frozen dataclass may be a `Loaders`.
        vars(self).update(_own=own, _limit=limit, _scopes=WeakSet(), _ending=set())
        return self

    def clear_all(self) -> None:
        """Forget every value that loaders of the current scope hold."""
        (_current.get() or self._own).clear_all()

    async def aclose(self) -> None:
        """Cancel every batch, in whatever scope, refuse more loads, and wait until the batch functions have ended.

        What the loaders knew is forgotten. Each function is cancelled once: one that takes no notice is waited for,
        after its callers have been answered.

        Cancellation:
            Everybody has been answered before the wait; only the wait ends.
        """
        self._own.close()
        for scope in list(self._scopes):
            scope._close_loaders(self)
        await _ended(self._ending)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.aclose()

    def _end(self, loader: DeclaredLoader[Any, Any, Any]) -> None:
        """Close a loader, and remember cancelled tasks until they have ended.

        What they work with must not be closed before.
        """
        for task in loader._close():
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        # A circle of references, such as that of every operation of Strawberry, may keep the loader for long.
        loader._values, loader._own = None, ()


def _tell(observers: list[Observer], event: str, scope: Scope) -> None:
    from loader._watching import tell

    tell(observers, event, scope)


async def _ended(tasks: set[Task[None]]) -> None:
    """Wait until tasks have ended; one that asks is not waited for."""
    others = tasks - {asyncio.current_task()}
    if others:
        await asyncio.wait(others)


@final
class DeclaredLoader(DataLoader[K, V], Generic[K, V, P]):
    """The loader behind an attribute of a `Loaders`: a `DataLoader` that can be called with parameters."""

    _is_declared = True
    _siblings: Callable[[dict[str, Any]], DeclaredLoader[K, V, P]]

    def __call__(self, *arguments: P.args, **parameters: P.kwargs) -> DeclaredLoader[K, V, P]:
        """The loader with these parameters, and for the others those of this one: one for each distinct set of values.

        Raises:
            TypeError: If the method has no such parameter, lacks a value, or a value is not hashable.
        """
        if arguments:
            raise TypeError(f"{self.name} takes parameters by name only")
        return self._siblings(parameters)


def _tenant(loaders: Loaders) -> Hashable:
    """Whose loaders they are, None if their class does not tell tenants apart."""
    if loaders._tenant is None:
        return None
    tenant: Hashable = getattr(loaders, loaders._tenant)
    if tenant is None:
        raise SecondLevelError(
            f"{type(loaders).__name__}: {loaders._tenant} is None, and values of an unknown tenant would be shown to "
            "all others. Set it when the loaders are made, to something of its own where nobody is logged in"
        )
    return tenant


def made_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a declared loader, with a `cache_map` of its own."""
    make_map = options.get("cache_map")
    return options if make_map is None else {**options, "cache_map": make_map()}


class Declaration(Generic[K, V, P]):
    """A method of a `Loaders` that is a batch function, and the options of its loader."""

    def __init__(self, method: Callable[..., Any], options: dict[str, Any]) -> None:
        self.name: str = method.__name__
        self.method: Callable[..., Any] = method
        self.options: dict[str, Any] = options
        self.owner: type[Loaders] = Loaders  # until __set_name__ says which
        self.__doc__ = method.__doc__
        parameters = list(inspect.signature(method).parameters.values())
        if len(parameters) < 2 or parameters[1].kind not in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        ):
            raise TypeError(f"@dataloader: {self.name} must take self and a list of keys")
        self.parameters: list[inspect.Parameter] = parameters[2:]
        for parameter in self.parameters:
            if parameter.kind is not parameter.KEYWORD_ONLY:
                raise TypeError(
                    f"@dataloader: the parameter {parameter.name!r} of {self.name} must be keyword-only (put it "
                    "behind a *): the loader is called with the keys alone, and once for each set of parameters"
                )
        defaults = {parameter.name: parameter.default for parameter in self.parameters}
        self._default_key = _key(defaults) if _unhashable(defaults) is None else None

    def __set_name__(self, owner: type, name: str) -> None:
        if not issubclass(owner, Loaders):
            raise TypeError(f"@dataloader: {owner.__name__}.{name} is not in a subclass of Loaders")
        if hasattr(Loaders, name):
            raise TypeError(f"@dataloader: {owner.__name__}.{name} has the name of a method of Loaders; rename it")
        self.name = name
        self.owner = owner

    def __get__(self, loaders: Any, owner: type) -> Any:
        if loaders is None:
            return self
        # Every resolver that is written by hand comes here, so it is looked up at once what it most likely asks for.
        made = (_current.get() or loaders._own)._loaders.get((id(loaders), self, self._default_key))
        if made is not None:
            return made[1]
        if any(parameter.default is parameter.empty for parameter in self.parameters):
            return _Incomplete(self, loaders)
        return self.bound(loaders, {})

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)  # somebody looks what kind of object this is
        who = f"{self.owner.__name__}.{self.name}"
        raise AttributeError(
            f"{who} has no {name!r}: it declares a loader, which each instance has of its own, "
            f"as in {self.owner.__name__}(...).{self.name}",
            name=name,
            obj=self,
        )

    def __repr__(self) -> str:
        return f"<@dataloader {self.owner.__name__}.{self.name}>"

    def announce(self, owner: type[Loaders]) -> None:
        """Make the loader of a class known to its second-level cache, whose tags may change before it is made."""
        cache = self.options.get("second_level")
        if cache is not None:
            from loader._backed import declared_name
            from loader._backing import backing_of

            version, tags = str(self.options.get("schema_version", "")), frozenset(self.options.get("tags", ()))
            backing_of(cache).declare(declared_name(owner, self.name), version, tags)

    def bound(self, loaders: Loaders, given: dict[str, Any]) -> DeclaredLoader[K, V, P]:
        """The loader in the current scope with the parameters given, and the defaults for the others."""
        scope = _current.get()
        if scope is None:
            scope = loaders._own
        if not self.parameters and not given:
            return scope._loader(loaders, self, given, ())
        values, key = self._parameter_values(loaders, given)
        return scope._loader(loaders, self, values, key)

    def make(self, loaders: Loaders, parameters: dict[str, Any]) -> DeclaredLoader[K, V, P]:
        """A new loader of this declaration."""
        shown = ", ".join(f"{name}={value!r}" for name, value in parameters.items())
        name = f"{type(loaders).__name__}.{self.name}" + (f"({shown})" if shown else "")
        options: dict[str, Any] = {"name": name, **made_options(self.options)}
        loader: DeclaredLoader[K, V, P] = DeclaredLoader(partial(self.method, loaders, **parameters), **options)
        loader._siblings = lambda given: self.bound(loaders, {**parameters, **given})
        if loader._backed is not None:
            loader._backed.enter(type(loaders), self.name, _tenant(loaders), parameters)
        return loader

    def _parameter_values(self, loaders: Loaders, given: dict[str, Any]) -> tuple[dict[str, Any], Hashable]:
        who = f"{type(loaders).__name__}.{self.name}"
        values: dict[str, Any] = {}
        for parameter in self.parameters:
            value = given.get(parameter.name, parameter.default)
            if value is parameter.empty:
                raise TypeError(
                    f"{who}: the parameter {parameter.name!r} has no default; call {who}({parameter.name}=...)"
                )
            values[parameter.name] = value
        if unknown := given.keys() - values.keys():
            raise TypeError(f"{who} has no parameter {min(unknown)!r}; it has {sorted(values) or 'none'}")
        if (name := _unhashable(values)) is not None:
            raise TypeError(
                f"{who}: the value of {name!r} must be hashable, since each set of values has a loader of its own; "
                f"{values[name]!r} is not. Give a tuple instead of a list, or the class of the value a __hash__"
            )
        return values, _key(values)


def _key(values: Mapping[str, Any]) -> Hashable:
    """What stands for values of parameters: 1, 1.0 and True are equal, and different values all the same."""
    return tuple(map(_typed, values.values()))


def _typed(value: Any) -> Hashable:
    if isinstance(value, tuple):
        return type(value), tuple(map(_typed, value))
    if isinstance(value, frozenset):
        return type(value), frozenset(map(_typed, value))
    return type(value), value


def _unhashable(values: Mapping[str, Any]) -> str | None:
    """The name of a value that cannot be hashed, None if all can."""
    for name, value in values.items():
        try:
            hash(value)
        except TypeError:
            return name
    return None


class _Incomplete:
    """Stands for a loader with a parameter that has no default: all one can do is to call it with its parameters."""

    def __init__(self, declaration: Declaration[Any, Any, Any], loaders: Loaders) -> None:
        self._declaration = declaration
        self._loaders = loaders

    def __call__(self, **parameters: Any) -> DeclaredLoader[Any, Any, Any]:
        return self._declaration.bound(self._loaders, parameters)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # somebody looks what kind of object this is
        return getattr(self(), name)  # which says what parameter is missing
