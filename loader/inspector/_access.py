"""Who may look: whoever knows the token or, where there is none, the developer at this very machine.

An ASGI app does not know the address that its server listens on, so that every request is looked at: without a token,
one is served only if it came over the loopback interface, directly, to a name of the loopback interface.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.requests import Request

SHORTEST = 16  # characters of a token

FORWARDED = (
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-forwarded-server",
    "x-original-host",
    "x-real-ip",
    "cf-connecting-ip",
    "true-client-ip",
)
"""Headers of which each says that a proxy stands in between: the other end of the socket is not who asks."""

HOW_ELSE = (
    "Give the inspector a token, Inspector(token=...), and open this page with ?token=... behind its address, or send "
    "the header Authorization: Bearer ... with each request."
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why somebody may not look.

    Attributes:
        status: The HTTP status.
        reason: What was wrong.
        remedy: What to do.
    """

    status: int
    reason: str
    remedy: str


class Access:
    """Decides who may look.

    Args:
        token: The token, None for the loopback interface alone.

    Raises:
        TypeError: If the token is no string.
        ValueError: If it is too short to be a secret (an unset variable gives an empty one), or cannot be sent.
    """

    def __init__(self, token: str | None) -> None:
        if token is not None and not isinstance(token, str):
            raise TypeError(f"Inspector(token=) takes a string or None, not {type(token).__name__}")
        if token is not None and len(token) < SHORTEST:
            raise ValueError(
                f"Inspector(token=) takes a secret of at least {SHORTEST} characters, not one of {len(token)}: "
                "secrets.token_urlsafe() makes one; None serves the loopback interface only"
            )
        if token is not None and not (token.isascii() and token.isprintable() and token == token.strip()):
            raise ValueError(
                "Inspector(token=) takes ASCII characters, without blanks around them: a header carries it"
            )
        self.token_wanted = token is not None
        self._digest = "" if token is None else _digest(token)
        # Browsers send the cookies of all ports of a host: two inspectors must not overwrite each other's.
        self.cookie = f"loader-inspector-{self._digest[:8]}"

    def refusal(self, request: Request, *, is_page: bool) -> Refusal | None:
        """Why this request may not be served, None if it may.

        Args:
            request: The request.
            is_page: Whether it asks for the page, to which any site may lead; never for what is on it.
        """
        if not is_page and _is_of_another_site(request):
            return Refusal(403, "This is for the inspector's own page only.", "Open the page itself.")
        if self.token_wanted:
            return None if self._knows_token(request) else self._token_refusal(request)
        return _refusal_without_token(request)

    def _knows_token(self, request: Request) -> bool:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.accepts(token.strip()):
            return True
        return hmac.compare_digest(request.cookies.get(self.cookie, "").encode(), self._digest.encode())

    def accepts(self, token: str) -> bool:
        """Whether this is the token; it takes as long whatever it is."""
        return hmac.compare_digest(_digest(token), self._digest)

    @property
    def cookie_value(self) -> str:
        """What a browser keeps in place of the token."""
        return self._digest

    def _token_refusal(self, request: Request) -> Refusal:
        wrong = "authorization" in request.headers or "token" in request.query_params
        reason = "This is not the inspector's token." if wrong else "The inspector asks for its token."
        return Refusal(401, reason, "Open this page with ?token=... behind its address, or enter the token here.")


def _digest(token: str) -> str:
    return sha256(token.encode()).hexdigest()


def _is_of_another_site(request: Request) -> bool:
    """Whether a page of another origin asks: the app around this one may allow that for its own answers."""
    if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        return True
    origin = request.headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != request.headers.get("host", "").lower()


def _refusal_without_token(request: Request) -> Refusal | None:
    found = next((header for header in FORWARDED if header in request.headers), None)
    if found is not None:
        return Refusal(403, f"Without a token, no request is served that a proxy forwards (it has {found}).", HOW_ELSE)
    if request.scope.get("http_version") == "1.0":  # what nginx speaks to its upstreams, where it adds no header either
        return Refusal(403, "Without a token, no request is served over HTTP/1.0, as proxies send.", HOW_ELSE)
    client, server = request.scope.get("client"), request.scope.get("server")
    if client is None or not is_loopback(client[0]) or not (server is None or is_loopback(server[0])):
        return Refusal(
            403,
            "Without a token, only the machine itself is served, over its loopback interface (127.0.0.1 or ::1).",
            HOW_ELSE,
        )
    host = request.headers.get("host", "")
    if not is_loopback(_without_port(host)):
        # The name of another site may lead here: then that site's pages would count as this one's.
        return Refusal(
            403,
            f"Without a token, the inspector is served as localhost or 127.0.0.1 only, not as {host[:100]!r}.",
            f"Open it as localhost. Or: {HOW_ELSE}",
        )
    return None


def _without_port(host: str) -> str:
    """The name or address in a Host header."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def is_loopback(host: str) -> bool:
    """Whether this is an address of the loopback interface, or a name that is always one's own machine."""
    name = host.lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback
