-- Deletes a record if its version is the expected one, and removes it from every index.
-- KEYS: the record, its body, the shard
-- ARGV: id, expected version, channel, the ledger's mark, the number of writes of the shard known to the caller
-- Returns the number of writes of the shard, or 0 if there is another version.
local record, body, shard = KEYS[1], KEYS[2], KEYS[3]
local id, expected, channel = ARGV[1], ARGV[2], ARGV[3]

local writes = redis.call('HGET', shard .. ':ledger', ARGV[4])
if not writes then
    return redis.error_reply('REPLACED ' .. shard .. ' is empty or belongs to another ledger or epoch')
end
if tonumber(writes) < tonumber(ARGV[5]) then
    return redis.error_reply('OLDER ' .. shard .. ' is older than it was: it has had ' .. writes ..
        ' writes, and ' .. ARGV[5] .. ' were acknowledged')
end

local value = redis.call('GET', record) or ''
local index, version, state, scope = string.match(value, '^.%d+.(.) (%d+) (%S+) %S* ([^\n]*)\n')
if version ~= expected then
    return 0
end

-- The key is not in the header line. If it cannot be read, its index entry stays, and look-ups find no record for it.
local key = string.match(value, '"key":{"text":"(.-)","origin":')
if key then
    local read, whole = pcall(cjson.decode, '["' .. key .. '"]')
    if read then
        redis.call('ZREM', shard .. ':lookup', '=' .. whole[1] .. ' ' .. id)
    end
end
redis.call('ZREM', shard .. ':lookup', id)

-- The action is the second member, if the record has one.
local action = string.match(value, '\n{"id":"[^"]*","action":"(op_%w+)"')
if action then
    redis.call('ZREM', shard .. ':open:' .. action, id)
    redis.call('ZREM', shard .. ':numbers:' .. action, id)
end

redis.call('DEL', record, body)
redis.call('ZREM', shard .. ':' .. index .. state, id)
redis.call('ZREM', shard .. ':due', id)
if scope ~= '' then
    redis.call('ZREM', shard .. ':scope:' .. scope, id)
end
redis.call('PUBLISH', channel, id)
return redis.call('HINCRBY', shard .. ':ledger', ARGV[4], 1)
