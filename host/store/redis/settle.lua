-- Tells which commit of a process was applied last, and sees to it that none up to
-- the given number will be from now on: one that was cut off may still be on its
-- way. KEYS: 1 generation record. ARGV, after the two of the head: the process and
-- the number. Answers with the number of the commit applied last and its base.
--
-- The process's field of the record is <limit>:<applied>:<base>:<clock>: commits up
-- to limit are refused, applied was the last that was not.
local field = 'c:' .. ARGV[3]
local limit, applied, base = string.match(redis.call('HGET', meta, field) or '0:0:0:0', '^(%d+):(%d+):(%d+):')
if tonumber(limit) < tonumber(ARGV[4]) then
  redis.call('HSET', meta, field, ARGV[4] .. ':' .. applied .. ':' .. base .. ':' .. digits(clock))
end
return {'OK', revision, hard, confirmed, clock, tonumber(applied), tonumber(base)}
