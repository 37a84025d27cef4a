-- The newest ids of some indexes of one shard, with their positions, newest first.
-- KEYS: the indexes
-- ARGV: the position to begin at, or below (with a leading parenthesis), and the number of ids
local found = {}
for _, key in ipairs(KEYS) do
    local some = redis.call('ZREVRANGEBYSCORE', key, ARGV[1], '-inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
    for at = 1, #some, 2 do
        found[#found + 1] = {some[at], some[at + 1]}
    end
end
table.sort(found, function(one, other) return tonumber(one[2]) > tonumber(other[2]) end)
local page = {}
for at = 1, math.min(#found, tonumber(ARGV[2])) do
    page[2 * at - 1], page[2 * at] = found[at][1], found[at][2]
end
return page
