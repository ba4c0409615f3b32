-- Writes the marker that a WAIT on the same connection waits for, which covers all
-- that was written before it, by whomever; and notes what is confirmed already.
-- KEYS: 1 generation record. ARGV, after the two of the head: a confirmed hard
-- revision.
confirmed = math.max(confirmed, math.min(tonumber(ARGV[3]), hard))
redis.call('HSET', meta, 'confirmed', digits(confirmed), 'clock', digits(clock))
return {'OK', revision, hard, confirmed, clock}
