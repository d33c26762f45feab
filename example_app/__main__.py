"""`python -m example_app` serves the demo; `python -m example_app query '{ ... }'` answers one query."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import URL

    from example_app.database import Statement
    from example_app.settings import Settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; what a person can put right takes one line to say."""
    parser = argparse.ArgumentParser(
        prog="python -m example_app",
        description="Flights out of New York City in January 2013, served as GraphQL.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (default: %(default)s)")
    parser.add_argument("--port", default=8000, type=_port, help="0 takes a free one (default: %(default)s)")
    parser.add_argument("--workers", default=1, type=_workers, help="how many processes serve (default: %(default)s)")
    commands = parser.add_subparsers(dest="command", title="commands")
    query = commands.add_parser("query", help="answer one query here, and show the statements that it took")
    query.add_argument("graphql", help="the query; - reads it from standard input")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _run(options)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in {"example_app", "loader"}:
            raise
        return _fail(f"the module {error.name} is missing: install the demo with pip install -e '.[demo]'")
    except KeyboardInterrupt:
        return 128 + (signal.SIGTERM if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL else signal.SIGINT)


def _interrupt(*_: object) -> None:
    """End as with Ctrl+C, so that a build says that it failed; a second SIGTERM ends at once."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a script leaves it to what it starts with `&`
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def _run(options: argparse.Namespace) -> int:
    from example_app.build import database_url
    from example_app.settings import Settings, StartError

    try:
        settings = Settings.from_environment()
        url = database_url(settings)
        if options.command == "query":
            text = _from_standard_input() if options.graphql == "-" else options.graphql
            return asyncio.run(_answer(url, settings, text))

        from example_app.server import serve

        return serve(url, settings, options.host, options.port, options.workers)
    except StartError as error:
        return _fail(str(error))


def _from_standard_input() -> str:
    from example_app.settings import StartError

    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        reason = f"standard input is not text in {error.encoding}, as a query is: {error.reason}"
        raise StartError(reason) from error


def _port(text: str) -> int:
    if not (text.isdecimal() and int(text) < 65536):
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 65535, not {text!r}")
    return int(text)


def _workers(text: str) -> int:
    if not (text.isdecimal() and 0 < int(text) < 1000):
        raise argparse.ArgumentTypeError(f"must be a number from 1 to 999, not {text!r}")
    return int(text)


def _fail(reason: str) -> int:
    print(f"example_app: {' '.join(reason.split())}", file=sys.stderr)
    return 1


async def _answer(url: URL, settings: Settings, query: str) -> int:
    from strawberry.schema.exceptions import CannotGetOperationTypeError

    from example_app.database import Database
    from example_app.loaders import AppLoaders
    from example_app.output import write
    from example_app.schema import make_schema
    from example_app.service import Service

    statements: list[Statement] = []
    service = Service(Database(url, on_statement=statements.append))
    context = {"loaders": AppLoaders(service.database), "service": service}
    try:
        started = time.perf_counter()
        # Strawberry raises an exception for no query at all, and answers a blank one with a syntax error.
        result = await make_schema(settings).execute(query or " ", context_value=context)
        seconds = time.perf_counter() - started
    except CannotGetOperationTypeError:
        return _fail("there is no operation in the query, only fragments")
    finally:
        await service.aclose()
    answer: dict[str, object] = {"data": result.data}
    if result.errors:
        answer["errors"] = [error.formatted for error in result.errors]
    for statement in statements:
        print(_in_words(statement), file=sys.stderr)
    print(f"{_count(len(statements), 'statement')}, {seconds * 1000:.0f} ms", file=sys.stderr)
    write("the answer", json.dumps(answer, indent=2))
    return 1 if result.errors else 0


def _in_words(statement: Statement) -> str:
    keys = "" if statement.keys is None else f"{_count(statement.keys, 'key')}, "
    return f"{statement.source}: {keys}{_count(statement.rows, 'row')}, {statement.seconds * 1000:.1f} ms"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


if __name__ == "__main__":
    sys.exit(main())
