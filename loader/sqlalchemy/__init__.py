"""Batch functions for SQLAlchemy: the rows of many keys in one statement, whole, grouped or paged per key.

`rows_by_key` is what a loader of single rows returns, `grouped_rows` what a loader of lists returns (its limit
counts per key), and `grouped_pages` answers a Relay connection for every parent at once:

- `_functions`: the three functions.
- `_target`: which columns a model or table gives, and how a result becomes its rows.
- `_window`: what a limit, an offset or a Relay slice asks of each key's list, and the `Page` that it gives.
- `_execution`: statements that take turns on a connection, and never hold more parameters than it takes.

Sessions and connections are those of `sqlalchemy.ext.asyncio`; the databases are SQLite and PostgreSQL.
"""

from __future__ import annotations

from loader.sqlalchemy._functions import grouped_pages, grouped_rows, rows_by_key
from loader.sqlalchemy._window import Page

__all__ = ["Page", "grouped_pages", "grouped_rows", "rows_by_key"]
