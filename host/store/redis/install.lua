-- Makes, takes over, adopts or adds to the generation record, if it still is what the
-- caller has judged. KEYS: 1 generation record. ARGV: its fields state and missed as
-- they were found ('' = none), then fields and values to set.
if (redis.call('HGET', KEYS[1], 'state') or '') ~= ARGV[1] then return 0 end
if (redis.call('HGET', KEYS[1], 'missed') or '') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
return 1
