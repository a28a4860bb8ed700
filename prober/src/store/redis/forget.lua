-- Forgets removals that nobody has overwritten. KEYS: the prefix. ARGV: table, key and stored value of each.
local prefix = KEYS[1]
for i = 1, #ARGV, 3 do
  local name, key = ARGV[i], ARGV[i + 1]
  if redis.call('HGET', prefix .. name, key) == ARGV[i + 2] then
    redis.call('HDEL', prefix .. name, key)
    redis.call('ZREM', prefix .. 'changed', name .. ' ' .. key)
  end
end
return 0
