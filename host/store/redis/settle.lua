-- Tells which commit of a process was applied last, and sees to it that none up to
-- the given number will be from now on: one that was cut off may still be on its
-- way. KEYS: 1 generation record. ARGV, after the two of the head: the number.
-- Answers with the number of the commit applied last and its base.
--
-- The process's field of the record has, in 8 bytes each: the limit up to which
-- commits are refused, the last that was applied, its base, and when it was.
local limit, applied, base = 0, 0, 0
if h[2] then limit, applied, base = struct.unpack('>I8I8I8', h[2]) end
if limit < tonumber(ARGV[3]) then
  call('HSET', meta, field, struct.pack('>I8I8I8I8', ARGV[3], applied, base, clock))
end
return {'OK', revision, hard, confirmed, clock, applied, base}
