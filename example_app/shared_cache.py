"""What processes share over Redis, if `EXAMPLE_REDIS_URL` names a server: rows, and word of what was changed."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import msgspec
from sqlalchemy import inspect

from example_app.settings import Settings, SettingsError, variable
from loader.redis import MsgspecCodec, RedisBus, RedisCache

if TYPE_CHECKING:
    from collections.abc import Callable

    from example_app.loaders import AppLoaders
    from example_app.models import Flight

VARIABLE = variable("redis_url")
PREFIX = "example_app"


@cache
def _columns(model: Any) -> type[msgspec.Struct]:
    """A struct with the columns of a table, of the types that its model says."""
    hints = get_type_hints(model)
    names = inspect(model).column_attrs.keys()
    return msgspec.defstruct(model.__name__, [(name, get_args(hints[name])[0]) for name in names])


def _pack(row: Any) -> Any:
    model: Any = type(row)
    return {name: getattr(row, name) for name in _columns(model).__struct_fields__}


def _unpack(model: Any, data: Any) -> Any:
    columns = msgspec.convert(data, _columns(model), strict=False)
    return model(**msgspec.structs.asdict(columns))


def _url() -> str:
    try:
        return Settings.from_environment().redis_url
    except SettingsError:
        return ""  # the start reads them, too, and ends with what is wrong


URL = _url()
CACHE = RedisCache.from_url(URL, prefix=PREFIX, codec=MsgspecCodec(enc_hook=_pack, dec_hook=_unpack)) if URL else None
FRESH_FOR = 60.0 if URL else None  # seconds after which a process that heard of nothing reads anew


class Changes:
    """Tells all processes which flight was changed; each marks its statistics dirty, and its boards read anew."""

    def __init__(self, mark_dirty: Callable[[], None]) -> None:
        self._mark_dirty = mark_dirty
        self._bus = RedisBus.from_url(URL, prefix=PREFIX) if URL else None
        if self._bus is not None:
            self._bus.on_change(lambda _: mark_dirty(), "flights")

    async def start(self) -> None:
        """Begin to hear of what others change."""
        if self._bus is not None:
            await self._bus.start()

    async def flight_changed(self, loaders: AppLoaders, flight: Flight) -> None:
        """Say that a flight was changed; call it after the commit."""
        self._mark_dirty()
        if self._bus is None:
            return
        await self._bus.invalidate(loaders.flights, [flight.id])
        await self._bus.invalidate(loaders.departures, [flight.origin_code])
        await self._bus.invalidate(loaders.arrivals, [flight.destination_code])
        await self._bus.invalidate(loaders.flights_of_airline, [flight.carrier_code])
        if flight.tail_number is not None:
            await self._bus.invalidate(loaders.flights_of_plane, [flight.tail_number])
        await self._bus.invalidate_tags("flights")  # which wakes the statistics

    async def aclose(self) -> None:
        """Hear no more, and write what is still to be written."""
        if self._bus is not None:
            await self._bus.aclose()
        if CACHE is not None:
            await CACHE.aclose()
