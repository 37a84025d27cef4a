-- The requests of bench/inbox, for wrk. Prints one JSON line at the end.
--
-- MODE=first: each event is new. MODE=again: events that were sent before, IDS of them in turn. RUN makes ids unique.

local mode, ids, run = os.getenv("MODE"), tonumber(os.getenv("IDS")), os.getenv("RUN")
local started = 0

function setup(thread)
   thread:set("number", started)
   started = started + 1
end

local function event(id)
   local body = string.format(
      '{"id":"evt_%s","type":"invoice.paid","data":{"object":{"customer":"cus_9","amount":1999,"currency":"eur",' ..
      '"lines":["one line of an invoice","another line of an invoice","and a third one, to be of ordinary length"]}}}',
      id)
   return wrk.format("POST", "/hooks/load", { ["Content-Type"] = "application/json", ["X-Token"] = os.getenv("TOKEN") }, body)
end

local next_id = 0

function request()
   next_id = next_id + 1
   if mode == "again" then return event(string.format("again_%d", next_id % ids)) end
   return event(string.format("%s_%d_%d", run, number, next_id))
end

function done(summary, latency, requests)
   local errors = summary.errors
   local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
   io.write(string.format(
      '{"requests":%d,"per_second":%.0f,"p50_ms":%.2f,"p99_ms":%.2f,"p999_ms":%.2f,"max_ms":%.1f,"errors":%d}\n',
      summary.requests, summary.requests / summary.duration * 1e6, latency:percentile(50) / 1e3,
      latency:percentile(99) / 1e3, latency:percentile(99.9) / 1e3, latency.max / 1e3, failed))
end
