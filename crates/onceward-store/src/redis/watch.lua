-- Marks a record as watched, so that its next change is published, if it still has the version that was seen.
-- KEYS: the record, the shard
-- ARGV: the version that was seen, the ledger's mark
-- Returns 1 if it has that version.
local watched, version = string.match(redis.call('GETRANGE', KEYS[1], 0, 79), '^(.)%d+.. (%d+) ')
if version ~= ARGV[1] or redis.call('HEXISTS', KEYS[2] .. ':ledger', ARGV[2]) == 0 then
    return 0
end
if watched ~= 'w' then
    redis.call('SETRANGE', KEYS[1], 0, 'w')
end
return 1
