-- Notes whether more than one process listens to the notices, so that a commit need
-- not ask. KEYS: 1 generation record. ARGV, after the two of the head: the channel.
local many = call('PUBSUB', 'NUMSUB', ARGV[3])[2] > 1
if many and not h[4] then call('HSET', meta, 'listened', 1) end
if h[4] and not many then call('HDEL', meta, 'listened') end
return {'OK', revision, hard, confirmed, clock}
