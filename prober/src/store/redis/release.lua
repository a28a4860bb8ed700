-- Gives the lease back. KEYS: the prefix. ARGV: who gives it.
local held = redis.call('GET', KEYS[1] .. 'lease')
if held and string.match(held, '^%S+') == ARGV[1] then
  redis.call('DEL', KEYS[1] .. 'lease')
end
return 0
