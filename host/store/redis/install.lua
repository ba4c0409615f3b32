-- Makes, takes over or adopts the generation record, if it still is what the
-- caller has judged. KEYS: 1 generation record. ARGV: the id, master and revision
-- that were found ('' = none), then fields and values to set.
local found = redis.call('HMGET', KEYS[1], 'id', 'master', 'revision')
for i = 1, 3 do
  if (found[i] or '') ~= ARGV[i] then return 0 end
end
redis.call('HSET', KEYS[1], unpack(ARGV, 4))
return 1
