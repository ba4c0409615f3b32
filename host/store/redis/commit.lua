-- Commits a union, or answers with what is fresh of what it has read.
--
-- KEYS: 1 generation record, 2 log heads, 3 claim, then one for each record read,
-- each record put, each record deleted, each index written, each log appended to.
--
-- ARGV, after the two of the head:
--  3 process   who commits
--  4 seq       number of the commit within the process; '' = nothing is written
--  5 base      the revision demanded; '' = any
--  6 txs       how many transactions write
--  7 hard      offset of the last hard one; 0 = none
--  8 at once   '1': a hard write is confirmed by being written
--  9 claim     '1': on a conflict, claim the next commit
-- 10 channel and 11 message of the notice; '' = none
-- 12.. the numbers of: records read, heads read, puts, deletes, indexes, logs;
--      then for each
--      record read    version of 8 bytes, '' = was not there
--      head read      log, sequence number
--      put            offset of its transaction, value
--      index          number of puts, number of deletes, score and member of each
--                     put, member of each delete
--      log            its name, number of entries, sequence number of the first,
--                     payloads
local process, seq, at = ARGV[3], ARGV[4], 12
local function arg() at = at + 1 return ARGV[at - 1] end
local nreads, nheads, nputs, ndels = tonumber(arg()), tonumber(arg()), tonumber(arg()), tonumber(arg())
local nindexes, nlogs = tonumber(arg()), tonumber(arg())
local firstput = 4 + nreads
local firstindex = firstput + nputs + ndels
local firstlog = firstindex + nindexes

if seq ~= '' then
  local last = redis.call('HGET', meta, 'c:' .. process)
  if last and tonumber(string.match(last, '^%d+')) >= tonumber(seq) then return {'FENCED'} end
end
local claim = redis.call('GET', KEYS[3])
if claim and claim ~= process then return {'BUSY'} end

-- Nothing is written before everything was checked: what fails in the middle of a
-- script stays half done. So also a key of another type is met here.
local stale, staleheads = {}, {}
local conflict = ARGV[5] ~= '' and tonumber(ARGV[5]) ~= revision
for i = 1, nreads do
  local key = KEYS[3 + i]
  if redis.call('GETRANGE', key, 0, 7) ~= arg() then
    conflict = true
    stale[#stale + 1] = i
    stale[#stale + 1] = redis.call('GET', key)
  end
end
for i = 1, nheads do
  local log, want = arg(), arg()
  local head = redis.call('HGET', KEYS[2], log) or '0'
  if head ~= want then
    conflict = true
    staleheads[#staleheads + 1] = log
    staleheads[#staleheads + 1] = head
  end
end
if conflict then
  if ARGV[9] == '1' then redis.call('SET', KEYS[3], process, 'PX', 20) end
  return {'CONFLICT', revision, hard, confirmed, clock, stale, staleheads}
end
if claim then redis.call('DEL', KEYS[3]) end
if seq == '' then return {'OK', revision, hard, confirmed, clock} end

for i = 0, nindexes - 1 do redis.call('ZCARD', KEYS[firstindex + i]) end
for i = 0, nlogs - 1 do redis.call('XLEN', KEYS[firstlog + i]) end
redis.call('HLEN', KEYS[2])

-- The first write is one that a full server refuses, so that it refuses all.
local base = revision
revision = base + ARGV[6]
if ARGV[7] ~= '0' then
  hard = base + ARGV[7]
  if ARGV[8] == '1' then confirmed = hard end
end
redis.call('HSET', meta, 'revision', digits(revision), 'hard', digits(hard), 'confirmed', digits(confirmed),
  'clock', digits(clock), 'c:' .. process, seq .. ':' .. seq .. ':' .. digits(base) .. ':' .. digits(clock))

local pairs_ = {}
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
  for j = 0, n - 1 do redis.call('XADD', KEYS[firstlog + i], digits(first + j) .. '-0', 'p', arg()) end
  redis.call('HSET', KEYS[2], log, digits(first + n - 1))
end
if ARGV[11] ~= '' then redis.call('PUBLISH', ARGV[10], ARGV[11]) end
return {'OK', base, hard, confirmed, clock}
