-- Writes a record if its version is the expected one, and keeps the indexes of its shard in step. It compares and
-- writes; what a state or a time means is not its business.
-- KEYS: the record, its body, the shard (a name that no key has: it makes a server that is moving this slot refuse the
--       script rather than run it on half of the shard; the other keys of the shard are named from it)
-- ARGV: id, expected version or '', the new value, scope or '', channel, key, the new body where there is one
-- Gives 1, or what stood in the way: the value and the body.
local record, body, shard = KEYS[1], KEYS[2], KEYS[3]
local id, expected, value, scope, channel, key = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

-- watched, replays, whether there is a body, version, state, due
local head = '^(.)(%d+)(.) (%d+) (%S+) (%S*) '
local watched, replays, had_body, version, state, due =
    string.match(redis.call('GETRANGE', record, 0, 79), head)

if (version or '') ~= expected then
    return {redis.call('GET', record), redis.call('GET', body)}
end

local _, new_replays, has_body, _, new_state, new_due = string.match(value, head)
redis.call('SET', record, value)
if replays and replays > new_replays then
    redis.call('SETRANGE', record, 1, replays)
end
if has_body == 'b' then
    redis.call('SET', body, ARGV[7])
elseif had_body == 'b' then
    redis.call('DEL', body)
end

if not version then
    -- The place in listings: the server's time, and never the same twice in a shard.
    local time = redis.call('TIME')
    local place = time[1] * 1000000 + time[2]
    local last = tonumber(redis.call('GET', shard .. ':last') or 0)
    if place <= last then
        place = last + 1
    end
    place = string.format('%.0f', place)
    redis.call('SET', shard .. ':last', place)
    redis.call('ZADD', shard .. ':' .. new_state, place, id)
    redis.call('ZADD', shard .. ':lookup', 0, id, 0, '=' .. key .. ' ' .. id)
    if scope ~= '' then
        redis.call('ZADD', shard .. ':scope:' .. scope, place, id)
    end
elseif state ~= new_state then
    local place = redis.call('ZSCORE', shard .. ':' .. state, id)
    redis.call('ZREM', shard .. ':' .. state, id)
    redis.call('ZADD', shard .. ':' .. new_state, place, id)
end

if new_due ~= (due or '') then
    if new_due == '' then
        redis.call('ZREM', shard .. ':due', id)
    else
        redis.call('ZADD', shard .. ':due', new_due, id)
    end
end

-- Who waits for it, and who holds it in memory as done, is told.
if watched == 'w' or state == 'done' then
    redis.call('PUBLISH', channel, id)
end
return 1
