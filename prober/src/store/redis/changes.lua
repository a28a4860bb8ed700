-- What was written after a revision. KEYS: the prefix. ARGV: the revision.
-- Returns the generation, the revision, and table, key and stored value of each entry.
local prefix = KEYS[1]
local generation = redis.call('GET', prefix .. 'generation') or ''
local revision = redis.call('GET', prefix .. 'revision') or '0'
local found = {}
if revision ~= ARGV[1] then
  local names = redis.call('ZRANGEBYSCORE', prefix .. 'changed', '(' .. ARGV[1], '+inf')
  for _, place in ipairs(names) do
    local name, key = string.match(place, '^(%S+) (.*)$')
    local value = name and redis.call('HGET', prefix .. name, key)
    if value then
      found[#found + 1] = name
      found[#found + 1] = key
      found[#found + 1] = value
    end
  end
end
return { generation, revision, found }
