"""Past one process: values that all workers share, and word of what changed, over Redis or Valkey.

- `RedisCache` is a second-level cache (`loader.second_level`) on a server.
- `RedisBus` tells every worker what another one changed.
- `MsgspecCodec` makes JSON of values, and values of the annotated type of JSON.

It needs the extra `redis`: `pip install 'strawberry-loader[redis]'`. `docs/second-level.md` is the guide.
"""

from __future__ import annotations

from loader.redis._bus import RedisBus, RedisBusStatistics
from loader.redis._cache import RedisCache, RedisCacheStatistics
from loader.redis._codec import MsgspecCodec
from loader.redis._following import Following
from loader.redis._guard import BreakerState

__all__ = [
    "BreakerState",
    "Following",
    "MsgspecCodec",
    "RedisBus",
    "RedisBusStatistics",
    "RedisCache",
    "RedisCacheStatistics",
]
