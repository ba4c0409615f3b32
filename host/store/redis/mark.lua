-- Writes the marker that a WAIT on the same connection waits for, which covers all
-- that was written before it, by whomever; and notes what is confirmed already.
-- KEYS: 1 generation record. ARGV, after the two of the head: a confirmed hard
-- revision.
confirmed = math.max(confirmed, math.min(tonumber(ARGV[3]), hard))
call('HSET', meta, 'state', whose .. struct.pack('>I8I8I8I8I8', revision, hard, confirmed, clock, skew))
return {'OK', revision, hard, confirmed, clock}
