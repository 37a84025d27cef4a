-- What is known of the ledger itself, after it was made where there was none.
-- KEYS: the ledger's own key
-- ARGV: format, number of shards, identity, how many replicas there are
if redis.call('HEXISTS', KEYS[1], 'format') == 0 then
    -- Every record of this ledger is in the look-up indexes: none was written before there were any.
    redis.call('HSET', KEYS[1], 'lookup', '1')
end
for at, field in ipairs({'format', 'shards', 'identity'}) do
    redis.call('HSETNX', KEYS[1], field, ARGV[at])
end
-- Whoever finds fewer later, after a failover or on the wrong side of a partition, knows of them.
if tonumber(ARGV[4]) > tonumber(redis.call('HGET', KEYS[1], 'wait') or 0) then
    redis.call('HSET', KEYS[1], 'wait', ARGV[4])
end
return redis.call('HMGET', KEYS[1], 'format', 'shards', 'identity', 'lookup')
