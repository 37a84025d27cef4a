-- The requests of bench/serve and bench/models, for wrk. Prints one JSON line at the end.
--
-- MODE=read: GET. MODE=first: POST, each with a key of its own. MODE=replay: POST with one of KEYS keys, in turn.
-- TARGET is the path, BODY the body of a POST, with `%s` for its key. HEADER is the name of the header with the key.

local mode, target, body = os.getenv("MODE"), os.getenv("TARGET"), os.getenv("BODY")
local keys = tonumber(os.getenv("KEYS"))
local started = 0

function setup(thread)
   thread:set("number", started)
   thread:set("threads", tonumber(os.getenv("THREADS")))
   started = started + 1
end

local function post(key)
   local headers = { ["Content-Type"] = "application/json", [os.getenv("HEADER")] = key }
   for name, value in pairs(wrk.headers) do headers[name] = value end
   return wrk.format("POST", target, headers, body:format(key))
end

local get, replays, next_key, parts = nil, {}, 0, {}

function init(arguments)
   get = wrk.format("GET", target, { ["Accept"] = "application/json" })
   if mode == "replay" then
      for key = 0, keys - 1 do replays[key] = post("order-" .. key) end
      next_key = math.floor(keys / threads) * number
   elseif mode == "first" then
      -- Keys of one length, so that all but the key of a request is the same text.
      local mark = string.rep("#", 24)
      parts = { post(mark):match("^(.-)" .. mark .. "(.-)" .. mark .. "(.*)$") }
   end
end

function request()
   if mode == "read" then return get end
   next_key = next_key + 1
   if mode == "replay" then return replays[next_key % keys] end
   return table.concat(parts, string.format("new-%02d-%017d", number, next_key))
end

function done(summary, latency, requests)
   local errors = summary.errors
   local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
   io.write(string.format(
      '{"requests":%d,"per_second":%.0f,"p50_us":%d,"p99_us":%d,"errors":%d}\n',
      summary.requests, summary.requests / summary.duration * 1e6,
      latency:percentile(50), latency:percentile(99), failed))
end
