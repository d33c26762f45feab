"""Strawberry: a scope for every operation, and context factories that bring the request's loaders.

- `install(schema)`: scopes for all operations of a schema.
- `relation(...)`: a field that a loader answers, loaded ahead by the list above it.
- `loader.strawberry.asgi`: the GraphQL app for Starlette and any other ASGI server.
- `loader.strawberry.fastapi`: the context getter for FastAPI's `GraphQLRouter`.
"""

from loader.strawberry._extension import LoaderExtension, install
from loader.strawberry._relation import relation

__all__ = ["LoaderExtension", "install", "relation"]
