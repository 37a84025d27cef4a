-- The number of ids in some indexes of one shard, all at the same moment.
-- KEYS: the indexes
local counts = {}
for at, key in ipairs(KEYS) do
    counts[at] = redis.call('ZCARD', key)
end
return counts
