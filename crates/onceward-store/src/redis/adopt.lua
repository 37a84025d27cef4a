-- Makes a shard part of a ledger, or of the ledger's next epoch. Idempotent.
-- KEYS: the shard
-- ARGV: the ledger's mark, the mark that must be there now ('' for none)
local shard, mark, from = KEYS[1], ARGV[1], ARGV[2]
local there = redis.call('HGETALL', shard .. ':ledger')
if there[1] == mark then
    return 1
end
if (there[1] or '') ~= from then
    return redis.error_reply('REPLACED ' .. shard .. ' is empty or belongs to another ledger or epoch')
end
redis.call('DEL', shard .. ':ledger')
redis.call('HSET', shard .. ':ledger', mark, there[2] or 0)
return 1
