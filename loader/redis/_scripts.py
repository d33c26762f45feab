"""What runs inside the server: each of these is one round trip, and nothing comes in between.

**What stands there.** All keys of a loader have the same hash tag, so that one script reaches them in a cluster too.

- The *state* of a loader is a hash: its `epoch`, and a field `p` + parameters for each set of parameters that it was
  ever loaded with. Without an epoch, or with another one, entries are worth nothing: whoever deletes the state, or
  loses it, has deleted all that the loader has.
- An *entry* is a header of 30 bytes and, for a value, its data. The header says what it is (`L` a lease, `V` a value,
  `N` nothing: the backend has no value), the epoch (8 bytes), who got the lease (8 random bytes), and when by the
  server's clock (13 digits, in milliseconds). A value keeps the header of the lease that it was loaded under: so it
  expires counted from the time at which its load began, and nothing that is written twice looks the same.

Each script is given 8 random bytes and returns them first: an answer to something else, as from a connection that lost
count, or from a server that is none, is not taken for one to this.

**Why no old value is ever written back.** A load gets its lease before it reads the backend; a change is committed
before its keys are deleted. If the load read the old value, it read it before the commit, so its lease is older than
the deletion, which ended it. What is written then finds another lease, or none, and is refused. A lease or a state
that was evicted, expired, flushed or lost with the server leads to the same refusal.
"""

from __future__ import annotations

from hashlib import sha1
from typing import final


@final
class Script:
    """A script, and the name under which the server remembers it."""

    def __init__(self, text: str) -> None:
        self.text: str = text
        self.sha: str = sha1(text.encode(), usedforsecurity=False).hexdigest()


HEADER = 30
"""The length of an entry's header."""

MANY_PARAMETERS = 1000
"""With more sets of parameters than this, deleting a key deletes all that the loader has."""

GET = Script("""
-- KEYS: the state, then the keys. ARGV: the random bytes, how long a lease lasts in ms, the parameters.
-- Returns the header of a lease, then for each key: the entry, 'L' if somebody else has a lease, '' if there is none to
-- be had, or false where the asker has this lease.
local state = redis.call('HMGET', KEYS[1], 'epoch', 'p' .. ARGV[3])
local epoch, known = state[1], state[2] or ARGV[3] == ''
local function fails(result) return type(result) == 'table' and result.err end
local writable = true
if not epoch then
  epoch = ARGV[1]
  writable = not fails(redis.pcall('HSET', KEYS[1], 'epoch', epoch))
end
local time = redis.call('TIME')
local lease = 'L' .. epoch .. ARGV[1] .. string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local found = redis.call('MGET', unpack(KEYS, 2))
for i = 1, #found do
  local entry = found[i]
  if entry and #entry >= 30 and string.sub(entry, 2, 9) == epoch then
    if string.byte(entry) == 76 then found[i] = 'L' end
  else
    if writable and not known then
      known = not fails(redis.pcall('HSET', KEYS[1], 'p' .. ARGV[3], ''))
    end
    if not (writable and known) or fails(redis.pcall('SET', KEYS[i + 1], lease, 'PX', ARGV[2])) then
      found[i] = ''
    else
      found[i] = false
    end
  end
end
table.insert(found, 1, lease)
table.insert(found, 1, ARGV[1])
return found
""")

SET = Script("""
-- KEYS: the state, then the keys. ARGV: the random bytes, then for each key: the lease, how long the value is fresh in
-- ms (0 gives the lease back), what it is, and its data. Returns how many were not written since their lease is over.
local epoch = redis.call('HGET', KEYS[1], 'epoch')
local refused = 0
for i = 2, #KEYS do
  local at = (i - 2) * 4 + 1
  local lease, fresh = ARGV[at + 1], tonumber(ARGV[at + 2])
  if redis.pcall('GETRANGE', KEYS[i], 0, 29) ~= lease or string.sub(lease, 2, 9) ~= epoch then
    if fresh > 0 then refused = refused + 1 end
  else
    local entry = ARGV[at + 3] .. string.sub(lease, 2) .. ARGV[at + 4]
    local untilwhen = string.format('%.0f', tonumber(string.sub(lease, 18, 30)) + fresh)
    local done = fresh > 0 and redis.pcall('SET', KEYS[i], entry, 'PXAT', untilwhen)
    if not done or done.err then redis.call('DEL', KEYS[i]) end
  end
end
return {ARGV[1], refused}
""")

DELETE = Script("""
-- KEYS: the state, then the keys without their parameters; no keys for all of them. ARGV: the random bytes, and
-- MANY_PARAMETERS.
local fields = redis.call('HKEYS', KEYS[1])
if #KEYS == 1 or #fields > tonumber(ARGV[2]) then
  redis.call('DEL', KEYS[1])
  return {ARGV[1]}
end
for i = 2, #KEYS do
  redis.call('UNLINK', KEYS[i])
  for _, field in ipairs(fields) do
    if string.byte(field) == 112 then redis.call('UNLINK', KEYS[i] .. string.sub(field, 2)) end
  end
end
return {ARGV[1]}
""")
