"""A cache behind the per-request one: values that outlive a request.

`@dataloader(second_level=cache, fresh_for=60.0)` has every batch ask `cache` for all its keys at once, then the batch
function for the rest. What that brings is written back behind the callers' backs.

- `MemoryCache` keeps values in this process; `loader.redis.RedisCache` keeps those of all.
- `SecondLevelCache` is what a cache of one's own has to be; `Namespace`, `Found`, `Stored`, `Entry`, `NOTHING` and
  `Codec` are what it is asked and answers.
- `invalidate` and `invalidate_tags` say what changed; `receive` is for what carries a `Change` between processes.
- `drain` waits for what is to be written; `statistics` says what loaders got; `give_back` is for a cache of one's own.

`docs/second-level.md` says what is guaranteed, and what is not.
"""

from __future__ import annotations

from loader._backing import SecondLevelStatistics, drain, give_back, statistics
from loader._entries import NOTHING, Codec, Entry, Found, Namespace, Nothing, SecondLevelCache, Stored
from loader._invalidation import Change, LoaderChange, change_of, invalidate, invalidate_tags, receive
from loader._key_text import key_text, text_key
from loader._memory_cache import MemoryCache

__all__ = [
    "NOTHING",
    "Change",
    "Codec",
    "Entry",
    "Found",
    "LoaderChange",
    "MemoryCache",
    "Namespace",
    "Nothing",
    "SecondLevelCache",
    "SecondLevelStatistics",
    "Stored",
    "change_of",
    "drain",
    "give_back",
    "invalidate",
    "invalidate_tags",
    "key_text",
    "receive",
    "statistics",
    "text_key",
]
