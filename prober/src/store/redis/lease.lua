-- Takes the lease or renews it. KEYS: the prefix. ARGV: who asks, ttl in ms.
-- Returns who has it, and the fence: a time in ms, and always above the last one, so that it rises even when the store has
-- lost everything.
local prefix = KEYS[1]
local held = redis.call('GET', prefix .. 'lease')
if held then
  local who, fence = string.match(held, '^(%S+) (%d+)$')
  if who == ARGV[1] then
    redis.call('PEXPIRE', prefix .. 'lease', ARGV[2])
  end
  if who then
    return { who, fence }
  end
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local last = tonumber(redis.call('GET', prefix .. 'fence') or '0')
local fence = string.format('%.0f', math.max(now, last + 1))
redis.call('SET', prefix .. 'fence', fence)
redis.call('SET', prefix .. 'lease', ARGV[1] .. ' ' .. fence, 'PX', ARGV[2])
return { ARGV[1], fence }
