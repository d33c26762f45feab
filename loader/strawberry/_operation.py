"""One operation: its scope, the scope of its current event, and the loaders in its context."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from loader import Declaration, Scope

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Mapping, Sequence

    from loader import DeclaredLoader, Loaders
    from loader.observe import Observer

    Outer = tuple["Operation | None", Scope | None]
    """What was current before an operation: the operation around it, and the scope."""


class Operation:
    """The scopes of one operation, from its first hook to its last frame.

    A query has one scope, and so has a mutation, whose root fields each start with empty caches. Each event of a
    subscription has a scope of its own; the source of the events has that of the operation, which keeps nothing, so
    that the source reads afresh too.

    Attributes:
        scope: The operation's scope.
        context: The context value that resolvers get.
        planned: What the plan has loaded for the list that is being completed: for each relation, with its
            parameters, the outcome for each object, by its identity. It is full only while that list is completed,
            which never waits.
        asked: The futures that relations have returned for that list; None while there is none.
        trail: For each place whose relation was asked for such a list, the identity of the last object that asked;
            kept where it matters, which is where one object came to one place at several times, or failed.
        left: Whether the last hook is over while results are still to come: then the executor closes the operation.
        finished: Whether the executor has nothing more to do.
    """

    __slots__ = ("_event", "_observers", "asked", "context", "finished", "left", "planned", "scope", "trail")

    def __init__(self, context: Any, observers: Sequence[Observer] = ()) -> None:
        self._observers = observers
        self.scope = self._open_scope()
        self.context = context
        self.planned: Mapping[Any, Mapping[Any, Any]] = {}
        self.asked: list[Future[Any]] | None = None
        self.trail: dict[tuple[str, ...], int] | None = None
        self.left = False
        self.finished = False
        self._event: Scope | None = None

    def _open_scope(self) -> Scope:
        scope = Scope()
        for observer in self._observers:
            scope.observe(observer)
        return scope

    @staticmethod
    def current() -> Operation | None:
        """The operation that is being executed here."""
        return current_operation.get()

    def enter(self) -> Outer:
        """Make the operation's scope, or that of the event under way, the current one; what was current before.

        Called wherever execution comes back to the operation in a context that may not know of it: a consumer may
        take every step of a stream in a task of its own.
        """
        outer = (current_operation.get(), Scope.current())
        current_operation.set(self)
        (self._event or self.scope).enter()
        return outer

    @staticmethod
    def leave(outer: Outer) -> None:
        """Make `outer`, what `enter` returned, current again."""
        operation, scope = outer
        current_operation.set(operation)
        Scope.leave(scope)

    def begin_event(self) -> None:
        """Start an event with nothing known."""
        self.end_event()
        self._event = self._open_scope()
        self._event.name = self.scope.name
        self.enter()

    def end_event(self) -> None:
        """End the batches of the event under way, and go back to the operation's scope."""
        if self._event is not None:
            self._event.close()
            self._event = None
        self.enter()

    def close(self) -> None:
        """End every batch."""
        if self._event is not None:
            self._event.close()
        self.scope.close()

    def loader(
        self, declaration: Declaration[Any, Any, Any], parameters: dict[str, Any]
    ) -> DeclaredLoader[Any, Any, Any]:
        """The loader of a declaration, from the `Loaders` in the operation's context.

        Raises:
            TypeError: If the context has no `Loaders` with that declaration, or the parameters do not fit it.
        """
        loaders = self._loaders(declaration)
        return declared_in(type(loaders), declaration).bound(loaders, parameters)

    def declared(self, declaration: Declaration[Any, Any, Any]) -> Declaration[Any, Any, Any]:
        """A declaration, or what stands in its place in the class of the `Loaders` in the operation's context.

        Raises:
            TypeError: If the context has no `Loaders` with that declaration.
        """
        return declared_in(type(self._loaders(declaration)), declaration)

    def _loaders(self, declaration: Declaration[Any, Any, Any]) -> Loaders:
        context = self.context
        loaders = context.get("loaders") if isinstance(context, dict) else getattr(context, "loaders", None)
        if not isinstance(loaders, declaration.owner):
            owner = declaration.owner.__name__
            raise TypeError(
                f"the loader {owner}.{declaration.name} needs an instance of {owner} in the context, as "
                f"context['loaders'] or context.loaders; there it is {loaders!r}"
            )
        return loaders


def declared_in(loaders: type[Loaders], declaration: Declaration[Any, Any, Any]) -> Declaration[Any, Any, Any]:
    """A declaration as a subclass of its class has it, which may override it as it may a method.

    Raises:
        TypeError: If the subclass has something else in its place.
    """
    declared = getattr(loaders, declaration.name)
    if not isinstance(declared, Declaration):
        raise TypeError(
            f"{loaders.__name__}.{declaration.name} stands in the place of the loader "
            f"{declaration.owner.__name__}.{declaration.name}, and is none: declare it with @dataloader"
        )
    return declared


current_operation: ContextVar[Operation | None] = ContextVar("loader.operation", default=None)
