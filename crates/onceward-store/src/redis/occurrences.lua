-- The occurrences of an action that are open after a time, and the newest, in some shards.
-- KEYS: the shards
-- ARGV: the action, the time, the greatest number of open ones
local found = {}
for _, shard in ipairs(KEYS) do
    local ids = redis.call('ZRANGEBYSCORE', shard .. ':open:' .. ARGV[1], '(' .. ARGV[2], '+inf', 'LIMIT', 0, ARGV[3])
    ids[#ids + 1] = redis.call('ZREVRANGE', shard .. ':numbers:' .. ARGV[1], 0, 0)[1]
    -- The first one has the id of the action.
    ids[#ids + 1] = ARGV[1]
    for _, id in ipairs(ids) do
        local value = redis.call('GET', shard .. ':' .. id)
        if value then
            found[#found + 1] = value
        end
    end
end
return found
