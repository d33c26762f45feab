"""Resolvers that are `def`, return an awaitable, and have extensions that are only asynchronous.

Strawberry chains such extensions behind a resolver that it takes to be synchronous, so that what the extension gets
from the resolver (an async permission too) is the awaitable and not its value.
"""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any

from graphql import GraphQLInterfaceType, GraphQLObjectType
from strawberry.extensions import FieldExtension
from strawberry.types.field import StrawberryField

if TYPE_CHECKING:
    from collections.abc import Callable

    from strawberry import Schema


class _Await(FieldExtension):
    """Innermost of the asynchronous extensions: awaits what the resolver returned."""

    async def resolve_async(self, next_: Callable[..., Any], source: Any, info: Any, **kwargs: Any) -> Any:
        result = await next_(source, info, **kwargs)
        return await result if inspect.isawaitable(result) else result


class _Applied(FieldExtension):
    """An extension that has changed its field already."""

    def __init__(self, extension: FieldExtension) -> None:
        self.resolve = extension.resolve  # type: ignore[method-assign]  # the extension, less its `apply`
        self.resolve_async = extension.resolve_async  # type: ignore[method-assign]  # as above
        self.map_arguments = extension.map_arguments  # type: ignore[method-assign]  # as above
        self.supports_sync = extension.supports_sync
        self.supports_async = extension.supports_async


def await_results(schema: Schema) -> None:
    """Build the resolvers of such fields anew, so that their extensions get values."""
    for graphql_type in schema._schema.type_map.values():
        if not isinstance(graphql_type, GraphQLObjectType | GraphQLInterfaceType):
            continue
        for graphql_field in graphql_type.fields.values():
            field = graphql_field.extensions.get("strawberry-definition")
            if not isinstance(field, StrawberryField) or field.is_async or field.is_subscription:
                continue
            only_async = [
                at for at, each in enumerate(field.extensions) if each.has_resolver and not each.supports_sync
            ]
            if not only_async:
                continue
            awaiting = copy.copy(field)
            awaiting.extensions = [_Applied(extension) for extension in field.extensions]
            awaiting.extensions.insert(only_async[0], _Await())
            graphql_field.resolve = schema.schema_converter.from_resolver(awaiting)
