-- Deletes a record if its version is the expected one, and takes it out of every index.
-- KEYS: the record, its body, the shard
-- ARGV: id, expected version, channel
-- Gives 1 if it was deleted.
local record, body, shard = KEYS[1], KEYS[2], KEYS[3]
local id, expected, channel = ARGV[1], ARGV[2], ARGV[3]

local version, state, scope =
    string.match(redis.call('GETRANGE', record, 0, 2047), '^.%d+. (%d+) (%S+) %S* ([^\n]*)\n')
if version ~= expected then
    return 0
end

-- The key is not in the first line. Where it cannot be read, its entry stays, and whoever finds it finds no record.
local key = string.match(redis.call('GETRANGE', record, 0, 8191), '"key":{"text":"(.-)","origin":')
if key then
    local read, whole = pcall(cjson.decode, '["' .. key .. '"]')
    if read then
        redis.call('ZREM', shard .. ':lookup', '=' .. whole[1] .. ' ' .. id)
    end
end
redis.call('ZREM', shard .. ':lookup', id)

redis.call('DEL', record, body)
redis.call('ZREM', shard .. ':' .. state, id)
redis.call('ZREM', shard .. ':due', id)
if scope ~= '' then
    redis.call('ZREM', shard .. ':scope:' .. scope, id)
end
redis.call('PUBLISH', channel, id)
return 1
