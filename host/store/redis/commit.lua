-- Commits a union, or answers with what is fresh of what it has read.
--
-- KEYS: 1 generation record, 2 log heads, then one for each record read, each
-- record put, each record deleted, each index written, each log appended to,
-- each log trimmed.
--
-- ARGV, after the two of the head:
--  3 numbers of 4 bytes: flags (1 exact, 2 confirmed by being written, 4 claim the
--    next commit on a conflict, 8 the caller hears notices itself), how many
--    transactions write, the offset of the last hard one (0 = none), how many
--    records are read, heads read, records put, records deleted, indexes, logs,
--    trims; then of 8 bytes: the number of this commit within the process (0 = nothing is
--    written), the base demanded by exact
--  4 channel and 5 message of the notice
--  6.. for each
--    record read   version of 8 bytes, '' = was not there
--    head read     log, sequence number
--    put           offset of its transaction, value
--    index         number of puts, number of deletes, score and member of each put,
--                  member of each delete
--    log           its name, number of entries, sequence number of the first,
--                  payloads
--    trim          sequence number of the first entry that stays
local flags, txs, lasthard, nreads, nheads, nputs, ndels, nindexes, nlogs, ntrims, seq, wanted =
  struct.unpack('>I4I4I4I4I4I4I4I4I4I4I8I8', ARGV[3])
local at = 6
local function arg() at = at + 1 return ARGV[at - 1] end
local firstput = 3 + nreads
local firstindex = firstput + nputs + ndels
local firstlog = firstindex + nindexes
local firsttrim = firstlog + nlogs

if seq > 0 and h[2] and struct.unpack('>I8', h[2]) >= seq then return {'FENCED'} end
local claimed = false -- by us
if h[3] then
  if string.sub(h[3], 9) == field then claimed = true
  else
    -- One that ends later than any can was made by a clock that is ahead of ours.
    local left = struct.unpack('>I8', h[3]) - now
    if left > 0 and left <= 20000 then return {'BUSY'} end
  end
end

-- Nothing is written before everything was checked: what fails in the middle of a
-- script stays half done. So also a key of another type is met here.
local conflict = flags % 2 == 1 and wanted ~= revision
local stale, staleheads
for i = 1, nreads do
  local key = KEYS[2 + i]
  if redis.call('GETRANGE', key, 0, 7) ~= arg() then
    stale = stale or {}
    stale[#stale + 1] = i
    stale[#stale + 1] = redis.call('GET', key)
  end
end
for i = 1, nheads do
  local log, want = arg(), arg()
  local head = redis.call('HGET', KEYS[2], log) or '0'
  if head ~= want then
    staleheads = staleheads or {}
    staleheads[#staleheads + 1] = log
    staleheads[#staleheads + 1] = head
  end
end
if conflict or stale or staleheads then
  if flags % 8 >= 4 then redis.call('HSET', meta, 'claim', struct.pack('>I8', now + 20000) .. field) end
  return {'CONFLICT', revision, hard, confirmed, clock, stale or {}, staleheads or {}}
end
if seq == 0 then
  if claimed then redis.call('HDEL', meta, 'claim') end
  return {'OK', revision, hard, confirmed, clock}
end

for i = 0, nindexes - 1 do redis.call('ZCARD', KEYS[firstindex + i]) end
for i = 0, nlogs + ntrims - 1 do redis.call('XLEN', KEYS[firstlog + i]) end
if nlogs > 0 then redis.call('HLEN', KEYS[2]) end

-- The first write is one that a full server refuses, so that it refuses all.
local base = revision
revision = base + txs
if lasthard > 0 then
  hard = base + lasthard
  if flags % 4 >= 2 then confirmed = hard end
end
redis.call('HSET', meta, 'state', whose .. struct.pack('>I8I8I8I8I8', revision, hard, confirmed, clock, skew),
  field, struct.pack('>I8I8I8I8', seq, seq, base, clock))
if claimed then redis.call('HDEL', meta, 'claim') end

local pairs_ = {}
if nputs == 1 then
  redis.call('SET', KEYS[firstput], struct.pack('>I8', base + arg()) .. arg())
  nputs, firstput = 0, firstput + 1
end
for i = 0, nputs - 1 do
  local offset, value = arg(), arg()
  pairs_[#pairs_ + 1] = KEYS[firstput + i]
  pairs_[#pairs_ + 1] = struct.pack('>I8', base + offset) .. value
  if #pairs_ >= chunk or i == nputs - 1 then
    redis.call('MSET', unpack(pairs_))
    pairs_ = {}
  end
end
for i = 0, ndels - 1, chunk do
  redis.call('DEL', unpack(KEYS, firstput + nputs + i, firstput + nputs + math.min(i + chunk, ndels) - 1))
end
for i = 0, nindexes - 1 do
  local puts, dels = 2 * arg(), tonumber(arg())
  for j = 0, puts - 1, chunk do
    redis.call('ZADD', KEYS[firstindex + i], unpack(ARGV, at + j, at + math.min(j + chunk, puts) - 1))
  end
  at = at + puts
  for j = 0, dels - 1, chunk do
    redis.call('ZREM', KEYS[firstindex + i], unpack(ARGV, at + j, at + math.min(j + chunk, dels) - 1))
  end
  at = at + dels
end
for i = 0, nlogs - 1 do
  local log, n, first = arg(), tonumber(arg()), tonumber(arg())
  for j = 0, n - 1 do redis.call('XADD', KEYS[firstlog + i], string.format('%.0f-0', first + j), 'p', arg()) end
  redis.call('HSET', KEYS[2], log, string.format('%.0f', first + n - 1))
end
for i = 0, ntrims - 1 do redis.call('XTRIM', KEYS[firsttrim + i], 'MINID', arg() .. '-0') end
if redis.call('PUBSUB', 'NUMSUB', ARGV[4])[2] > (flags >= 8 and 1 or 0) then redis.call('PUBLISH', ARGV[4], ARGV[5]) end
return {'OK', base, hard, confirmed, clock}
