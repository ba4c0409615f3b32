-- Common beginning of the scripts that read or write data.
--
-- KEYS[1] is the generation record. ARGV[1] is what the caller believes in: the id
-- of the generation and the run id of the server. ARGV[2] is the caller's field in
-- the record. Numbers are doubles here: revisions, scores and microseconds stay
-- below 2^53.
--
-- The record's field state is read and written by each commit, so it is one string:
-- id (16 bytes), run id (40), then revision, hard, confirmed, clock and skew in 8
-- bytes each.
local meta, whose, field = KEYS[1], ARGV[1], ARGV[2]
local chunk = 2000 -- most values that unpack puts on the stack at once

local call = redis.call
local h = call('HMGET', meta, 'state', field, 'claim', 'listened')
if not h[1] then return {'GENERATION'} end
if string.sub(h[1], 1, 56) ~= whose then
  if string.sub(h[1], 1, 16) ~= string.sub(whose, 1, 16) then return {'GENERATION'} end
  return {'MASTER'}
end
local revision, hard, confirmed, clock, skew = struct.unpack('>I8I8I8I8I8', h[1], 57)
