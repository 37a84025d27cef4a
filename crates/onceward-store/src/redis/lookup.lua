-- The ids in a range of a shard's look-up index, with their positions.
-- KEYS: the look-up index, the indexes of states
-- ARGV: the bounds of the range, in the server's syntax
local found = {}
for _, member in ipairs(redis.call('ZRANGEBYLEX', KEYS[1], ARGV[1], ARGV[2])) do
    local id = string.match(member, '[^ ]+$')
    for at = 2, #KEYS do
        local place = redis.call('ZSCORE', KEYS[at], id)
        if place then
            found[#found + 1], found[#found + 2] = id, place
            break
        end
    end
end
return found
