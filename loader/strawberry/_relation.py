"""`relation`: a field that a loader answers, declared in one line."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from graphql import GraphQLInputObjectType, get_named_type
from strawberry.annotation import StrawberryAnnotation
from strawberry.extensions.field_extension import FieldExtension
from strawberry.permission import BasePermission
from strawberry.types.arguments import StrawberryArgument
from strawberry.types.base import StrawberryList
from strawberry.types.field import StrawberryField

from loader import Declaration, Loaders
from loader.observe import asked_from
from loader.strawberry._connection import paging_of
from loader.strawberry._operation import current_operation, declared_in
from loader.strawberry._places import place_of_field
from loader.strawberry._several import UNKNOWN, Pending, Several, names_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Hashable, Sequence
    from typing import Self

    from strawberry import Schema

    from loader.strawberry._connection import Paging

    Key = str | tuple[str, ...] | Callable[[Any], Any]


T = TypeVar("T")

RESERVED = {"info", "_source"}
"""The names under which Strawberry gives a field what is no argument."""


def relation(
    loader: Any,
    key: Key,
    *,
    parameters: Mapping[str, Any] | None = None,
    max_results: int | None = None,
    name: str | None = None,
    description: str | None = None,
    deprecation_reason: str | None = None,
    permission_classes: list[type[BasePermission]] | None = None,
    directives: Sequence[object] = (),
    extensions: list[FieldExtension] | None = None,
    metadata: Mapping[Any, Any] | None = None,
) -> Any:
    """A field whose value a loader has, under a key that the object knows.

    The annotation of the field says its type: one object, one or None, or a list, as the loader gives it, or a Relay
    connection, made of the page or list that it gives; then the field has the arguments of a connection. The schema
    needs `loader.strawberry.install`, the context an instance of the loader's class as `loaders`. A list above the
    field loads the keys of all its items at once and the field then costs what an attribute costs, unless it has
    permission classes or extensions, which run first.

    Examples:
        >>> import asyncio, strawberry
        >>> from loader import Loaders, dataloader
        >>> from loader.strawberry import install, relation
        >>> @strawberry.type
        ... class Airline:
        ...     name: str
        >>> class AppLoaders(Loaders):
        ...     @dataloader
        ...     async def airlines(self, codes: list[str]) -> dict[str, Airline]:
        ...         return {code: Airline(name=f"{code} Airlines") for code in codes}
        >>> @strawberry.type
        ... class Flight:
        ...     carrier_code: strawberry.Private[str]
        ...     carrier: Airline = relation(AppLoaders.airlines, "carrier_code")
        >>> @strawberry.type
        ... class Query:
        ...     @strawberry.field
        ...     def flights(self) -> list[Flight]:
        ...         return [Flight(carrier_code="UA"), Flight(carrier_code="AA")]
        >>> schema = strawberry.Schema(Query)
        >>> install(schema, loaders=AppLoaders)
        >>> async def main() -> None:
        ...     async with AppLoaders() as loaders:
        ...         context = {"loaders": loaders}
        ...         result = await schema.execute("{ flights { carrier { name } } }", context_value=context)
        ...         print(result.data)
        >>> asyncio.run(main())
        {'flights': [{'carrier': {'name': 'UA Airlines'}}, {'carrier': {'name': 'AA Airlines'}}]}

    Args:
        loader: The loader, as the attribute of its class: `AppLoaders.airlines`. Its keyword parameters become
            arguments of the field, with their types and defaults; it gets a list as a tuple.
        key: Where the object has the key: the name of an attribute, a tuple of names for a composite key, or a
            function of the object. A key that is None, or has a part that is None, asks nothing: the field is null,
            or an empty list or connection where its type is one that cannot be null.
        parameters: Values for parameters of the loader, which then are no arguments of the field.
        max_results: The most items of a page, if the field is a connection; None for the schema's `relay_max_results`.
        name: The name in the schema, if it is not the attribute's.
        description: As for `strawberry.field`, and so are the following.
        deprecation_reason: Why the field should not be used any more.
        permission_classes: Asked before the loader is.
        directives: Schema directives of the field.
        extensions: Field extensions.
        metadata: Metadata of the dataclass field.

    Raises:
        TypeError: If `loader` is no declared loader, `key` or another argument is none of the above, or the loader has
            no such parameter.
        ValueError: If `max_results` leaves no room for an item.
    """
    if not isinstance(loader, Declaration):
        raise TypeError(
            f"relation takes a loader as the attribute of its class, as in relation(AppLoaders.airlines, ...), "
            f"not {loader!r}"
        )
    if parameters is not None and not isinstance(parameters, Mapping):
        raise TypeError(
            f"relation(parameters=) takes a mapping from names of the loader's parameters to values, not {parameters!r}"
        )
    for option, text in (("name", name), ("description", description), ("deprecation_reason", deprecation_reason)):
        if text is not None and not isinstance(text, str):
            raise TypeError(f"relation({option}=) takes a string, not {text!r}")
    permission_classes = _listed("permission_classes", permission_classes)
    for each in permission_classes:
        if not (isinstance(each, type) and issubclass(each, BasePermission)):
            raise TypeError(f"relation(permission_classes=) takes subclasses of BasePermission, not {each!r}")
    extensions = _listed("extensions", extensions)
    for extension in extensions:
        if not isinstance(extension, FieldExtension):
            raise TypeError(f"relation(extensions=) takes instances of FieldExtension, not {extension!r}")
    if max_results is not None and (isinstance(max_results, bool) or not isinstance(max_results, int)):
        raise TypeError(f"relation(max_results=) takes how many items a page has at most, not {max_results!r}")
    if max_results is not None and max_results < 1:
        raise ValueError(f"relation(max_results=) is at least 1, not {max_results!r}")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise TypeError(f"relation(metadata=) takes a mapping, as dataclasses.field does, not {metadata!r}")
    field = RelationField(
        graphql_name=name,
        description=description,
        deprecation_reason=deprecation_reason,
        permission_classes=permission_classes,
        directives=_listed("directives", directives),
        extensions=extensions,
        metadata=metadata,
    )
    field.relate(loader, key, dict(parameters or {}), max_results)
    return field


def _listed(option: str, values: Iterable[T] | None) -> list[T]:
    if values is not None and (isinstance(values, str) or not isinstance(values, Iterable)):
        raise TypeError(f"relation({option}=) takes a list, not {values!r}")
    return list(values or ())


class RelationField(StrawberryField):
    """The field of a `relation`. It is no argument of its class's constructor.

    It overrides `get_result`, which is the fastest resolver that Strawberry supports: it takes part in everything
    that fields do, and without arguments and extensions runs without an `Info`.
    """

    declaration: Declaration[Any, Any, Any]
    has_handlers = False
    """Whether the schema turns exceptions of this field into values; the schema says so when it is installed."""

    paging: Paging | None = None
    """How what the loader has becomes a connection, if that is the field's type; known when the schema is built."""

    _key: Key = ""
    _default_resolver: Callable[[Any, str], Any] = getattr

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.init = self.repr = self.compare = False

    def __call__(self, resolver: Any) -> Any:
        """Refuse to be a decorator: what would be the resolver is never called.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            f"relation is no decorator of {resolver!r}: it is a field, as in `author: Author = relation(...)`"
        )

    def __copy__(self) -> Self:
        arguments = super().__copy__().arguments  # an extension may have changed them
        copied = super().__copy__()
        copied.relate(self.declaration, self._key, self._fixed, self._max_results)
        copied._arguments = arguments
        return copied

    def relate(
        self, declaration: Declaration[Any, Any, Any], key: Key, fixed: dict[str, Any], max_results: int | None
    ) -> None:
        """Say what the field asks: the second half of making one, since Strawberry copies fields by the first."""
        if unknown := fixed.keys() - {parameter.name for parameter in declaration.parameters}:
            raise TypeError(f"the loader {declaration.name} has no parameter {min(unknown, key=repr)!r}")
        fixed = as_parameters(fixed)
        for name, value in fixed.items():
            try:
                hash(value)
            except TypeError as error:
                raise TypeError(
                    f"relation(parameters=) gives {name!r} of the loader {declaration.name} a value that is not "
                    f"hashable, {value!r}: each set of values has a loader of its own"
                ) from error
        self.declaration = declaration
        self._key = key
        self._fixed = fixed
        self._max_results = max_results
        self.find_key = _key_function(key, getattr)
        self.arguments = [
            _argument(declaration, parameter) for parameter in declaration.parameters if parameter.name not in fixed
        ]

    @property
    def is_basic_field(self) -> bool:
        """Whether Strawberry may call `get_result` without arguments and `Info`."""
        return not self.extensions and not self.arguments and self.paging is None

    @property
    def may_be_planned(self) -> bool:
        """Whether the loader may be asked before the field is resolved: nothing has to run first or afterwards."""
        if self.paging is not None and self.paging.needs_info:
            return False
        return not self.extensions and not self.has_handlers

    @property
    def default_resolver(self) -> Callable[[Any, str], Any]:
        """How the schema reads an object's attributes; the schema says so when it is built."""
        return self._default_resolver

    @default_resolver.setter
    def default_resolver(self, resolver: Callable[[Any, str], Any]) -> None:
        self._default_resolver = resolver
        self.find_key = _key_function(self._key, resolver)
        if self.paging is None:
            self.paging = paging_of(self.type, self.declaration, self._fixed, self._max_results)
            if self.paging is not None:
                self.arguments = self.paging.arguments(self.arguments)

    def parameters(self, arguments: dict[str, Any] | None) -> dict[str, Any]:
        """The loader's parameters, given the field's arguments."""
        if self.paging is not None and arguments:
            arguments = self.paging.parameters(arguments)
        return {**self._fixed, **arguments} if arguments else self._fixed

    def planned_as(self, arguments: dict[str, Any]) -> Hashable:
        """What the outcomes of this field with these arguments stand under while a planned list is completed."""
        return (self, *arguments.items()) if arguments else self

    def get_result(self, source: Any, info: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:  # noqa: ARG002  # the base's signature
        """The value if it is known, else a future of it."""
        kwargs = as_parameters(kwargs)
        return self.resolve(source, info, kwargs if self.paging is None else self.paging.read_at(info, kwargs))

    def resolve(self, source: Any, info: Any, kwargs: dict[str, Any] | None = None) -> Any:
        """The same, as a resolver that GraphQL calls directly where the field has neither arguments nor extensions.

        This is what every item of a planned list goes through: nothing is called that need not be.
        """
        operation = current_operation.get()
        if operation is None:
            raise RuntimeError(
                f"the relation {self.python_name!r} is resolved outside of an operation that has a scope: "
                "call loader.strawberry.install(schema)"
            )
        key: Any = UNKNOWN
        if operation.planned:
            if operation.trail is not None:
                operation.trail[names_of(info.path)] = id(source)
            try:
                outcome = operation.planned[(self, *kwargs.items()) if kwargs else self][id(source)]
            except (KeyError, TypeError):
                pass  # it is not planned, or an argument is not hashable
            else:
                if type(outcome) is not Several:
                    return outcome
                outcome = outcome.at(info.path, operation.trail or {})
                if type(outcome) is Pending:
                    key = outcome.key  # found anew it may be another one
                elif outcome is not UNKNOWN:
                    return outcome
        if key is UNKNOWN:
            key = self._key_in(source)
        if asks_nothing(key):
            if self.paging is not None:
                return self.paging.connection(None, kwargs or {}, info)
            return [] if self._never_null_list else None
        loader = operation.loader(self.declaration, self.parameters(kwargs))
        if loader.observed and info is not None:
            value = asked_from(place_of_field(info), loader.load, key)
        else:
            value = loader.load(key)
        if value.done() and self.paging is None:
            # At once, as the plan has it: a future would take turns of the loop to be awaited.
            return unless_awaitable(value.result(), value)
        value.add_done_callback(seen)
        if operation.asked is not None:
            operation.asked.append(value)
        return value if self.paging is None else self.paging.later(value, kwargs or {}, info)

    def _key_in(self, source: Any) -> Any:
        try:
            return self.find_key(source)
        except AttributeError as error:
            if callable(self._key):
                raise
            where = f"{type(source).__name__}.{self.python_name}"
            raise AttributeError(f"the relation {where} finds no key {self._key!r}: {error}") from error

    @cached_property
    def _never_null_list(self) -> bool:
        return isinstance(self.type, StrawberryList)


def unless_awaitable(value: Any, future: asyncio.Future[Any]) -> Any:
    """A value, or a future of it if it could be awaited itself, which GraphQL would do with what a field returns."""
    return future if hasattr(type(value), "__await__") else value


def seen(future: asyncio.Future[Any]) -> None:
    """Look at a failure: an operation that was cancelled does not, and asyncio need not miss that."""
    if not future.cancelled():
        future.exception()


def as_parameters(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a field as its loader gets them, for which they have to be hashable: lists become tuples."""
    return {name: _tuples(value) for name, value in arguments.items()}


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _argument(declaration: Declaration[Any, Any, Any], parameter: inspect.Parameter) -> StrawberryArgument:
    """The argument of a field that a parameter of its loader becomes."""
    if parameter.annotation is parameter.empty:
        raise TypeError(
            f"the parameter {parameter.name!r} of the loader {declaration.name} needs a type to become an argument; "
            f"give it one, or a value: relation(..., parameters={{{parameter.name!r}: ...}})"
        )
    if parameter.name in RESERVED:
        raise TypeError(
            f"the parameter {parameter.name!r} of the loader {declaration.name} cannot become an argument, as "
            f"Strawberry calls fields with something of this name; rename it, or give it a value: "
            f"relation(..., parameters={{{parameter.name!r}: ...}})"
        )
    annotation = StrawberryAnnotation(parameter.annotation, namespace=declaration.method.__globals__)
    # The text of an annotation may hide what `strawberry.argument` says; a name in it may be known later only.
    with suppress(NameError):
        annotation = StrawberryAnnotation(annotation.evaluate(), namespace=annotation.namespace)
    return StrawberryArgument(
        python_name=parameter.name, graphql_name=None, type_annotation=annotation, default=parameter.default
    )


def asks_nothing(key: Any) -> bool:
    """Whether a key, or a part of it, is None."""
    return key is None or (type(key) is tuple and None in key)


def _key_function(key: Key, resolver: Callable[[Any, str], Any]) -> Callable[[Any], Any]:
    if callable(key):
        if inspect.iscoroutinefunction(key):
            raise TypeError(f"the key of a relation is known at once: {key!r} must not be async")
        return partial(_found_by, key)
    names = (key,) if isinstance(key, str) else key
    if not isinstance(names, tuple) or not names or not all(isinstance(name, str) and name for name in names):
        raise TypeError(f"the key of a relation is a name, a tuple of names or a function of the object, not {key!r}")
    if resolver is getattr and (isinstance(key, str) or len(names) > 1):
        return attrgetter(*names)  # which gives a tuple for several names
    if isinstance(key, str):
        return lambda source: resolver(source, key)
    return lambda source: tuple(resolver(source, name) for name in names)


def _found_by(function: Callable[[Any], Any], source: Any) -> Any:
    key = function(source)
    if hasattr(key, "__await__"):  # of a function that is not async itself: each would be a key of its own
        if inspect.iscoroutine(key):
            key.close()
        raise TypeError(f"the key of a relation is known at once: {function!r} returned a {type(key).__name__}")
    return key


def prepare_relations(schema: Schema, loaders: type[Loaders] | None) -> None:
    """Let GraphQL call plain relations directly, and make sure that `loaders`, if given, answers every relation.

    Raises:
        TypeError: If one is answered by another class, or `loaders` is no class of loaders.
    """
    if loaders is not None and not (isinstance(loaders, type) and issubclass(loaders, Loaders)):
        raise TypeError(f"install(loaders=) takes a subclass of Loaders, not {loaders!r}")
    for graphql_type in schema._schema.type_map.values():
        for field_name, graphql_field in getattr(graphql_type, "fields", {}).items():
            field = graphql_field.extensions.get("strawberry-definition")
            if not isinstance(field, RelationField):
                continue
            if isinstance(graphql_type, GraphQLInputObjectType):
                raise TypeError(f"{graphql_type.name}.{field_name} is a relation, which an input type cannot have")
            declaration = field.declaration
            for name, argument in graphql_field.args.items():
                named = get_named_type(argument.type)
                if field.extensions or not isinstance(named, GraphQLInputObjectType):
                    continue  # what the loader gets of it is known later
                of_input = named.extensions["strawberry-definition"].origin
                if of_input.__hash__ is None:
                    raise TypeError(
                        f"the argument {name!r} of the relation {graphql_type.name}.{field_name} takes a "
                        f"{of_input.__name__}, which is not hashable, and each set of values has a loader of its own: "
                        f"give {of_input.__name__} a __hash__"
                    )
            if loaders is not None and not issubclass(loaders, declaration.owner):
                owner = declaration.owner.__name__
                raise TypeError(
                    f"the relation {graphql_type.name}.{field_name} asks {owner}.{declaration.name}, but the loaders "
                    f"in the context are {loaders.__name__}, which is no {owner}"
                )
            if loaders is not None:
                declared_in(loaders, declaration)
            # Strawberry's way to turn exceptions into values; versions before it have none.
            handlers_of = getattr(schema.schema_converter, "_get_field_exception_handlers", lambda _: ())
            field.has_handlers = bool(handlers_of(field))
            if field.is_basic_field and not field.has_handlers and getattr(graphql_field.resolve, "_is_default", False):
                graphql_field.resolve = field.resolve
