"""A scope for every operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from strawberry.extensions import SchemaExtension

from loader import Scope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from strawberry import Schema


@final
class LoaderExtension(SchemaExtension):
    """Gives each operation a `Scope` of its own, which is closed when the operation is over.

    Add it with `install(schema)`, or in `Schema(extensions=[LoaderExtension])`.
    """

    def on_operation(self) -> Iterator[None]:
        """Open the scope, and close it whatever happens.

        Not an async generator, though that could wait for the end of cancelled batches: `schema.execute_sync` takes
        no asynchronous extension. Whoever closes the `Loaders` waits instead.
        """
        scope = Scope()
        outer = scope.enter()
        try:
            yield
        finally:
            Scope.leave(outer)
            scope.close()


def install(schema: Schema) -> None:
    """Give every operation of `schema` a `Scope` of its own. Installing twice is no error.

    Args:
        schema: The schema, as it is given to the view.
    """
    if LoaderExtension not in schema.extensions:
        # First, so that what other extensions do around an operation finds its scope open.
        schema.extensions = (LoaderExtension, *schema.extensions)
