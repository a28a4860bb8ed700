-- Writes entries, except those of which there is something newer and those whose fence is stale.
-- KEYS: the prefix. ARGV: a generation for a store that has none; then table, key, stored value and fence (0: none) of each
-- entry. Returns the indices, from 0, of those whose fence is stale.
-- A stored value begins with its stamp of 33 bytes, whose text order is its time order.
local prefix = KEYS[1]
redis.call('SET', prefix .. 'generation', ARGV[1], 'NX')
local fence = tonumber(redis.call('GET', prefix .. 'fence') or '0')
local revision = redis.call('INCR', prefix .. 'revision')
local stale = {}
for i = 2, #ARGV, 4 do
  local name, key, value, own = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  local old = redis.call('HGET', prefix .. name, key)
  if own > 0 and fence > own then
    stale[#stale + 1] = (i - 2) / 4
  elseif not old or string.sub(old, 1, 33) < string.sub(value, 1, 33) then
    redis.call('HSET', prefix .. name, key, value)
    redis.call('ZADD', prefix .. 'changed', revision, name .. ' ' .. key)
  end
end
return stale
