-- Makes, takes over or adopts the generation record, if it still is what the
-- caller has judged. KEYS: 1 generation record. ARGV: the state that was found ('' =
-- none), then fields and values to set.
if (redis.call('HGET', KEYS[1], 'state') or '') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
return 1
