-- Answers a query at one revision.
--
-- KEYS: 1 generation record, 2 log heads, then one for each record, each index
-- scanned, each log read. ARGV, after the two of the head: the numbers of records,
-- heads, scans and logs; then the log of each head, from, to and limit of each
-- scan, from and limit of each log.
local at = 3
local function arg() at = at + 1 return ARGV[at - 1] end
local nrecords, nheads, nscans, nlogs = tonumber(arg()), tonumber(arg()), tonumber(arg()), tonumber(arg())
local records, heads, scans, logs = {}, {}, {}, {}
for i = 0, nrecords - 1, chunk do
  local got = call('MGET', unpack(KEYS, 3 + i, 2 + math.min(i + chunk, nrecords)))
  for j = 1, #got do
    records[i + j] = got[j]
    -- MGET takes a key of another type for one that is not there.
    if not got[j] and call('EXISTS', KEYS[2 + i + j]) == 1 then
      return redis.error_reply('WRONGTYPE ' .. KEYS[2 + i + j] .. ' is no string')
    end
  end
end
for i = 1, nheads do heads[i] = call('HGET', KEYS[2], arg()) or '0' end
for i = 1, nscans do
  local from, to, limit = arg(), arg(), arg()
  scans[i] = call('ZRANGE', KEYS[2 + nrecords + i], from, to, 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
end
for i = 1, nlogs do
  local from, limit = arg(), arg()
  logs[i] = call('XRANGE', KEYS[2 + nrecords + nscans + i], from .. '-0', '+', 'COUNT', limit)
end
return {'OK', revision, hard, confirmed, clock, records, heads, scans, logs}
