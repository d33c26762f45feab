"""`python -m example_app`: uvicorn, in one process or in several, from the first check to the last goodbye."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from example_app import log
from example_app.app import create_app
from example_app.build import VARIABLE, attached
from example_app.output import write
from example_app.settings import StartError

if TYPE_CHECKING:
    from typing import Any, NoReturn

    from sqlalchemy import URL

    from example_app.settings import Settings

TRY = "{ flights(first: 5) { number airline { name } plane { model } origin { name } weather { temperature } } }"


class CannotListenError(StartError):
    """There is no such host, or the port is taken."""


def serve(url: URL, settings: Settings, host: str, port: int, workers: int) -> int:
    """Serve until a signal comes, then let running requests finish; the exit code.

    Raises:
        CannotListenError: If nothing can be served there.
        UnusableDatabaseError: If the database cannot be written to.
        UnwritableError: If standard output cannot be written to.
    """
    # We bind the socket ourselves: uvicorn would report a failure only after starting the application.
    with _listen(host, port) as listener, attached(url):
        shown = f"[{host}]" if ":" in host else host
        where = f"http://{shown}:{listener.getsockname()[1]}"
        name = "GraphiQL" if settings.graphiql else "GraphQL"
        greeting = f"The demo is at {where}/, {name} at {where}/graphql (Ctrl+C stops it)"
        write("where the demo is", f"{greeting}\nA query to try there:\n  {TRY}")
        options: dict[str, Any] = {
            "log_config": None,
            "limit_concurrency": settings.max_connections,
            "ws_max_size": settings.max_body,
            "timeout_graceful_shutdown": settings.shutdown_seconds,
        }
        # After its graceful stop uvicorn raises the signal again that it stopped for.
        signal.signal(signal.SIGTERM, _stop)
        log.set_up(settings.log)
        if workers > 1:
            os.environ[VARIABLE] = url.render_as_string(hide_password=False)  # workers are started anew, and read it
            config = uvicorn.Config("example_app.app:from_environment", factory=True, workers=workers, **options)
            supervisor = Multiprocess(config, sockets=[listener])
            supervisor.run()
            return int(any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes))
        server = uvicorn.Server(uvicorn.Config(create_app(url, settings), **options))
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            server.run(sockets=[listener])
        return 0 if server.started else 1


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CannotListenError(f"port {port} on {host} is in use: choose another with --port") from error
        raise CannotListenError(
            f"cannot listen on port {port} of {host}, {error.strerror}: choose others with --host and --port"
        ) from error


def _stop(*_: object) -> NoReturn:
    sys.exit(0)
