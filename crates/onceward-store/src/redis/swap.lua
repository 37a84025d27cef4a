-- Writes a record if its version is the expected one, and updates the indexes of its shard. It compares and writes.
-- It does not interpret states or times.
-- KEYS: the record, its body, the shard (a name that no key has: it makes a server that is moving this slot refuse
--       the script rather than run it on half of the shard; the other keys of the shard are derived from it)
-- ARGV: id, expected version or '', the new value, scope or '', channel, key, the action that this is an occurrence of
--       or '', its number if it is not the first or '', until when it is open or '', the ledger's mark, the number of
--       writes of the shard known to the caller, the new body if there is one, then, for a record that begins something,
--       every scope whose barrier refuses it
-- Returns the number of writes of the shard, or the record that conflicted: its value and body, or nothing, nothing and
-- the barrier that refused the write.
local record, body, shard = KEYS[1], KEYS[2], KEYS[3]
local id, expected, value, scope, channel, key = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local action, number, open_until = ARGV[7], ARGV[8], ARGV[9]

local writes = redis.call('HGET', shard .. ':ledger', ARGV[10])
if not writes then
    return redis.error_reply('REPLACED ' .. shard .. ' is empty or belongs to another ledger or epoch')
end
if tonumber(writes) < tonumber(ARGV[11]) then
    return redis.error_reply('OLDER ' .. shard .. ' is older than it was: it has had ' .. writes ..
        ' writes, and ' .. ARGV[11] .. ' were acknowledged')
end

-- watched, replays, whether there is a body, which index it is in, version, state, due
local head = '^(.)(%d+)(.)(.) (%d+) (%S+) (%S*) '
local watched, replays, had_body, _, version, state, due =
    string.match(redis.call('GETRANGE', record, 0, 79), head)

if (version or '') ~= expected then
    return {redis.call('GET', record), redis.call('GET', body)}
end

local _, new_replays, has_body, index, _, new_state, new_due = string.match(value, head)
for at = has_body == 'b' and 13 or 12, #ARGV do
    local barrier = redis.call('HGET', shard .. ':stopped', ARGV[at])
    if barrier then
        return {false, false, barrier}
    end
end
redis.call('SET', record, value)
if replays and replays > new_replays then
    redis.call('SETRANGE', record, 1, replays)
end
if has_body == 'b' then
    redis.call('SET', body, ARGV[12])
elseif had_body == 'b' then
    redis.call('DEL', body)
end

if not version then
    -- The position in listings: the server's time, unique within a shard.
    local time = redis.call('TIME')
    local place = time[1] * 1000000 + time[2]
    local last = tonumber(redis.call('GET', shard .. ':last') or 0)
    if place <= last then
        place = last + 1
    end
    place = string.format('%.0f', place)
    redis.call('SET', shard .. ':last', place)
    redis.call('ZADD', shard .. ':' .. index .. new_state, place, id)
    redis.call('ZADD', shard .. ':lookup', 0, id, 0, '=' .. key .. ' ' .. id)
    if scope ~= '' then
        redis.call('ZADD', shard .. ':scope:' .. scope, place, id)
    end
elseif state ~= new_state then
    local place = redis.call('ZSCORE', shard .. ':' .. index .. state, id)
    redis.call('ZREM', shard .. ':' .. index .. state, id)
    redis.call('ZADD', shard .. ':' .. index .. new_state, place, id)
end

if action ~= '' then
    if open_until ~= '' then
        redis.call('ZADD', shard .. ':open:' .. action, open_until, id)
    elseif version then
        redis.call('ZREM', shard .. ':open:' .. action, id)
    end
    if not version and number ~= '' then
        redis.call('ZADD', shard .. ':numbers:' .. action, number, id)
    end
end

if new_due ~= (due or '') then
    if new_due == '' then
        redis.call('ZREM', shard .. ':due', id)
    else
        redis.call('ZADD', shard .. ':due', new_due, id)
    end
end

-- Notify waiting callers, and stores that have cached it as done.
if watched == 'w' or state == 'done' then
    redis.call('PUBLISH', channel, id)
end
return redis.call('HINCRBY', shard .. ':ledger', ARGV[10], 1)
