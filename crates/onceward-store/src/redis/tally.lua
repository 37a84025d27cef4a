-- Adds to the tally of replays of a record, if it is there.
-- KEYS: the record, the shard
-- ARGV: how many, the ledger's mark
local replays = string.match(redis.call('GETRANGE', KEYS[1], 0, 12), '^.(%d+)')
if replays and redis.call('HEXISTS', KEYS[2] .. ':ledger', ARGV[2]) == 1 then
    local sum = math.min(tonumber(replays) + tonumber(ARGV[1]), 9999999999)
    redis.call('SETRANGE', KEYS[1], 1, string.format('%010.0f', sum))
end
return 1
