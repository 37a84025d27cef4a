-- How many ids there are in each of some indexes of one shard, all at one moment.
-- KEYS: the indexes
local counts = {}
for at, key in ipairs(KEYS) do
    counts[at] = redis.call('ZCARD', key)
end
return counts
