-- Common beginning of the scripts that read or write data.
--
-- KEYS[1] is the generation record. ARGV[1] and ARGV[2] are the id of the
-- generation and the run id of the server that the caller believes in. Numbers
-- are doubles here: revisions, scores and microseconds stay below 2^53.
local meta = KEYS[1]
local chunk = 2000 -- most values that unpack puts on the stack at once

local function digits(n) return string.format('%.0f', n) end

local h = redis.call('HMGET', meta, 'id', 'master', 'revision', 'hard', 'confirmed', 'clock', 'skew')
if h[1] ~= ARGV[1] then return {'GENERATION'} end
if h[2] ~= ARGV[2] then return {'MASTER'} end
local revision, hard, confirmed = tonumber(h[3]), tonumber(h[4]), tonumber(h[5])
local time = redis.call('TIME')
local clock = math.max(tonumber(h[6]), time[1] * 1000000 + time[2] + tonumber(h[7]))
