"""A page that shows what the loaders did, operation by operation, as it happens: an ASGI app to mount.

It needs the `asgi` extra. `Inspector()` is for a developer's own machine and says no to everybody else;
`Inspector(token=...)` says yes to who knows the token.
"""

from __future__ import annotations

from loader.inspector._app import Inspector

__all__ = ["Inspector"]
