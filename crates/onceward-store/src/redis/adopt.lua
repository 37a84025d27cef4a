-- Makes a shard part of a ledger, or of the ledger's next epoch. Idempotent.
-- KEYS: the shard
-- ARGV: the ledger's mark, the mark that must be there now ('' for none), then, for a shard of the first format, its
--       key prefix and all states of records
local shard, mark, from, old = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local there = redis.call('HGETALL', shard .. ':ledger')
if there[1] == mark then
    return 1
end
if (there[1] or '') ~= from then
    return redis.error_reply('REPLACED ' .. shard .. ' is empty or belongs to another ledger or epoch')
end

local function move(name)
    if redis.call('EXISTS', old .. name) == 1 then
        redis.call('RENAME', old .. name, shard .. name)
    end
end

if old then
    local scopes = {}
    for at = 4, #ARGV do
        for _, id in ipairs(redis.call('ZRANGE', old .. ':' .. ARGV[at], 0, -1)) do
            local scope = string.match(redis.call('GET', old .. ':' .. id) or '', '^%S+ %d+ %S+ %S* ([^\n]*)\n')
            scopes[scope or ''] = true
            move(':' .. id)
            move(':' .. id .. ':body')
        end
        move(':' .. ARGV[at])
    end
    for scope in pairs(scopes) do
        move(':scope:' .. scope)
    end
    for _, name in ipairs({':lookup', ':due', ':last'}) do
        move(name)
    end
    -- A build of the first format that is still running must stop: each of its intents needs one of these two keys,
    -- and fails if it has the wrong type.
    redis.call('HSET', old .. ':last', 'format', '2')
    redis.call('HSET', old .. ':due', 'format', '2')
end

redis.call('DEL', shard .. ':ledger')
redis.call('HSET', shard .. ':ledger', mark, there[2] or 0)
return 1
