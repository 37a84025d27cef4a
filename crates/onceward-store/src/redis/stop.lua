-- Sets or lifts a barrier of one shard. Idempotent.
-- KEYS: the shard
-- ARGV: the ledger's mark, the scope, how: 'first' keeps a barrier that is there, 'set' replaces it, 'lift' removes it,
--       and the barrier as text
-- Returns the number of writes of the shard, and the barrier: the one that is there now, or that was lifted.
local shard, mark, scope, how, barrier = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if redis.call('HEXISTS', shard .. ':ledger', mark) == 0 then
    return redis.error_reply('REPLACED ' .. shard .. ' is empty or belongs to another ledger or epoch')
end
local there = redis.call('HGET', shard .. ':stopped', scope)
if how == 'lift' then
    redis.call('HDEL', shard .. ':stopped', scope)
elseif how == 'set' or not there then
    redis.call('HSET', shard .. ':stopped', scope, barrier)
    there = barrier
end
-- Counted as a write, so that a server that has lost it is noticed.
return {redis.call('HINCRBY', shard .. ':ledger', mark, 1), there}
