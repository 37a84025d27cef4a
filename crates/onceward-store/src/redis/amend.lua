-- Changes fields of the ledger's own key, if one of them is as expected.
-- KEYS: the ledger's own key
-- ARGV: a field and what it must be ('' for missing), then fields and their new values ('' for none)
-- Returns 1 if they were changed.
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then
    return 0
end
for at = 3, #ARGV, 2 do
    if ARGV[at + 1] == '' then
        redis.call('HDEL', KEYS[1], ARGV[at])
    else
        redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1])
    end
end
return 1
