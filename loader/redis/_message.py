"""A change as it travels between processes: JSON, keys as their texts."""

from __future__ import annotations

import msgspec

from loader.second_level import Change, LoaderChange, key_text, text_key

MANY_KEYS = 1000
"""A change of more keys of a loader than this is announced as a change of all."""


class _Part(msgspec.Struct, array_like=True, frozen=True):
    loader: str
    version: str
    tenant: str | None
    keys: list[str] | None


class _Message(msgspec.Struct, forbid_unknown_fields=False, omit_defaults=True):
    sender: str
    loaders: list[_Part] = []
    tags: list[str] = []
    anything: bool = False


_decoder = msgspec.json.Decoder(_Message)


def encode(sender: str, change: Change) -> bytes:
    """The message in which `sender` announces a change."""
    parts = []
    for part in change.loaders:
        keys = None if part.keys is None or len(part.keys) > MANY_KEYS else list(map(key_text, part.keys))
        parts.append(_Part(part.loader, part.version, part.tenant, keys))
    return msgspec.json.encode(_Message(sender, parts, sorted(change.tags), change.anything))


def decode(data: bytes) -> tuple[str, Change]:
    """Who sent a message, and what changed.

    Raises:
        ValueError: If it is no such message.
    """
    message = _decoder.decode(data)
    parts = [
        LoaderChange(
            part.loader,
            part.version,
            part.tenant,
            None if part.keys is None else frozenset(map(text_key, part.keys)),
        )
        for part in message.loaders
    ]
    return message.sender, Change(tuple(parts), frozenset(message.tags), message.anything)
