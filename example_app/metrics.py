"""`/metrics`: what Prometheus reads. Each process has figures of its own."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import Response

from loader.prometheus import LoaderCollector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request

    from example_app.database import Statement


class Metrics:
    """The figures of one application."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._statements = Counter(
            "example_statements", "SQL statements that were run, by who asked.", ["source"], registry=self.registry
        )
        self._rows = Counter("example_rows", "Rows that they brought.", ["source"], registry=self.registry)
        self._seconds = Histogram(
            "example_statement_seconds", "From asking for a connection to the last row.", registry=self.registry
        )
        tasks = Gauge("example_tasks", "Tasks of the event loop.", registry=self.registry)
        tasks.set_function(lambda: len(asyncio.all_tasks()))

    def count_statement(self, statement: Statement) -> None:
        """Add a statement."""
        self._statements.labels(statement.source).inc()
        self._rows.labels(statement.source).inc(statement.rows)
        self._seconds.observe(statement.seconds)

    @contextmanager
    def of_loaders(self) -> Iterator[None]:
        """Show what the loaders, batchers and triggers of this process do meanwhile."""
        with LoaderCollector() as collector:
            self.registry.register(collector)
            yield
            self.registry.unregister(collector)

    async def show(self, _: Request) -> Response:
        """The figures in Prometheus' text format; on the event loop, whose tasks are counted."""
        return Response(generate_latest(self.registry), headers={"content-type": CONTENT_TYPE_LATEST})
