-- Commits a union, or answers with what is fresh of what it has read.
--
-- A commit of one record is most of what a server does, so what is here for others
-- costs it as little as can be: few arguments, few calls, one string as the answer.
--
-- KEYS: 1 generation record, then one for each record read, those that are also put
-- first, each other record put, each record deleted, each index written, each log
-- appended to, each log trimmed; last the log heads, if heads, logs or trims are
-- among what follows.
--
-- ARGV, after the two of the head:
--  3 numbers of 4 bytes: flags (1 exact, 2 confirmed by being written, 4 claim the
--    next commit on a conflict, 8 the caller hears notices itself), how many
--    transactions write, the offset of the last hard one (0 = none), how many
--    records are read, are read and put, heads read, records put, records deleted,
--    indexes, logs, trims; then of 8 bytes: the number of this commit within the
--    process (0 = nothing is written), the base demanded by exact, the time that the
--    transactions were told; then the version of each record read in 8 bytes, 0 =
--    was not there; then, where several transactions write, the offset of the
--    transaction of each put in 2 bytes
--  4 channel and 5 message of the notice
--  6.. for each
--    head read     log, sequence number
--    put           value
--    index         number of puts, number of deletes, score and member of each put,
--                  member of each delete
--    log           its name, number of entries, sequence number of the first,
--                  payloads
--    trim          sequence number of the first entry that stays
--
-- Answers with base, hard, confirmed and clock in 8 bytes each when all is well.
local header = ARGV[3]
local flags, txs, lasthard, nreads, nboth, nheads, nputs, ndels, nindexes, nlogs, ntrims, seq, wanted, told, at =
  struct.unpack('>I4I4I4I4I4I4I4I4I4I4I4I8I8I8', header)
local firstdel = 2 + nreads + nputs - nboth
local firstindex = firstdel + ndels
local firstlog = firstindex + nindexes
local firsttrim = firstlog + nlogs
local heads = KEYS[firsttrim + ntrims]

if seq > 0 and h[2] and struct.unpack('>I8', h[2]) >= seq then return {'FENCED'} end
local claimed = false -- by us
if h[3] then
  if string.sub(h[3], 9) == field then claimed = true
  else
    -- One that ends later than any can was made by a clock that is ahead of ours.
    local time = call('TIME')
    local left = struct.unpack('>I8', h[3]) - time[1] * 1000000 - time[2]
    if left > 0 and left <= 20000 then return {'BUSY'} end
  end
end

-- Nothing is written before everything was checked: what fails in the middle of a
-- script stays half done. So also a key of another type is met here.
local conflict = flags % 2 == 1 and wanted ~= revision
local stale, staleheads
for i = 1, nreads do
  local version = call('GETRANGE', KEYS[1 + i], '0', '7')
  local want = string.sub(header, at, at + 7)
  at = at + 8
  if version ~= want and (version ~= '' or want ~= '\0\0\0\0\0\0\0\0') then
    stale = stale or {}
    stale[#stale + 1] = i
    stale[#stale + 1] = call('GET', KEYS[1 + i])
  end
end
local arg = 6
for i = 1, nheads do
  local log = ARGV[arg]
  local head = call('HGET', heads, log) or '0'
  if head ~= ARGV[arg + 1] then
    staleheads = staleheads or {}
    staleheads[#staleheads + 1] = log
    staleheads[#staleheads + 1] = head
  end
  arg = arg + 2
end
if conflict or stale or staleheads then
  if flags % 8 >= 4 then
    local time = call('TIME')
    call('HSET', meta, 'claim', struct.pack('>I8', time[1] * 1000000 + time[2] + 20000) .. field)
  end
  return {'CONFLICT', revision, hard, confirmed, clock, stale or {}, staleheads or {}}
end
local base = revision
if seq == 0 then
  if claimed then call('HDEL', meta, 'claim') end
  return struct.pack('>I8I8I8I8', base, hard, confirmed, clock)
end

for i = 0, nindexes - 1 do call('ZCARD', KEYS[firstindex + i]) end
if nlogs > 0 then -- an entry above the head would refuse those that follow it
  local a = arg + nputs
  for i = 1, nindexes do a = a + 2 + 2 * ARGV[a] + ARGV[a + 1] end
  for i = 0, nlogs - 1 do
    local ahead = call('XRANGE', KEYS[firstlog + i], ARGV[a + 2] .. '-0', '+', 'COUNT', 1)[1]
    if ahead then return redis.error_reply('LOGAHEAD ' .. KEYS[firstlog + i] .. ' has the entry ' .. ahead[1]) end
    a = a + 3 + ARGV[a + 1]
  end
end
for i = 0, ntrims - 1 do call('XLEN', KEYS[firsttrim + i]) end
if nlogs > 0 then call('HLEN', heads) end

-- The first write is one that a full server refuses, so that it refuses all.
if lasthard > 0 then
  hard = base + lasthard
  if flags % 4 >= 2 then confirmed = hard end
end
if told > clock then clock = told end
call('HSET', meta, 'state', struct.pack('>c56I8I8I8I8I8', whose, base + txs, hard, confirmed, clock, skew),
  field, struct.pack('>I8I8I8I8', seq, seq, base, clock))
if claimed then call('HDEL', meta, 'claim') end

if nputs == 1 then
  local offset = 1
  if txs > 1 then offset = struct.unpack('>I2', header, at) end
  call('SET', KEYS[nboth == 1 and 2 or 2 + nreads], struct.pack('>I8', base + offset) .. ARGV[arg])
else
  local pairs_ = {}
  local version = struct.pack('>I8', base + 1)
  for i = 1, nputs do
    if txs > 1 then version = struct.pack('>I8', base + struct.unpack('>I2', header, at + 2 * i - 2)) end
    pairs_[#pairs_ + 1] = KEYS[i <= nboth and 1 + i or 1 + nreads - nboth + i]
    pairs_[#pairs_ + 1] = version .. ARGV[arg + i - 1]
    if #pairs_ >= chunk or i == nputs then
      call('MSET', unpack(pairs_))
      pairs_ = {}
    end
  end
end
arg = arg + nputs
for i = 0, ndels - 1, chunk do
  call('DEL', unpack(KEYS, firstdel + i, firstdel + math.min(i + chunk, ndels) - 1))
end
for i = 0, nindexes - 1 do
  local puts, dels = 2 * ARGV[arg], tonumber(ARGV[arg + 1])
  arg = arg + 2
  for j = 0, puts - 1, chunk do
    call('ZADD', KEYS[firstindex + i], unpack(ARGV, arg + j, arg + math.min(j + chunk, puts) - 1))
  end
  arg = arg + puts
  for j = 0, dels - 1, chunk do
    call('ZREM', KEYS[firstindex + i], unpack(ARGV, arg + j, arg + math.min(j + chunk, dels) - 1))
  end
  arg = arg + dels
end
for i = 0, nlogs - 1 do
  local log, n, first = ARGV[arg], tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  arg = arg + 3
  for j = 0, n - 1 do call('XADD', KEYS[firstlog + i], string.format('%.0f-0', first + j), 'p', ARGV[arg + j]) end
  arg = arg + n
  call('HSET', heads, log, string.format('%.0f', first + n - 1))
end
for i = 0, ntrims - 1 do call('XTRIM', KEYS[firsttrim + i], 'MINID', ARGV[arg + i] .. '-0') end
-- Where nobody else listens, nothing is sent: a process would only wake itself.
if h[4] or flags < 8 and call('PUBSUB', 'NUMSUB', ARGV[4])[2] > 0 then call('PUBLISH', ARGV[4], ARGV[5]) end
return struct.pack('>I8I8I8I8', base, hard, confirmed, clock)
