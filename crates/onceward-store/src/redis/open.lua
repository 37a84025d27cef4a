-- What is known of the ledger itself, after it was made where there was none.
-- KEYS: the ledger's own key
-- ARGV: format, number of shards, identity
for at, field in ipairs({'format', 'shards', 'identity'}) do
    redis.call('HSETNX', KEYS[1], field, ARGV[at])
end
return redis.call('HMGET', KEYS[1], 'format', 'shards', 'identity', 'wait')
