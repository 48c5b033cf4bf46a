-- nonce, token, ttl ms, horizon ms.
local nonce, token, ttl, horizon = unpack(ARGV)
local held = redis.call('HMGET', lease, 'nonce', 'token', 'request')
if held[1] ~= nonce or held[2] ~= token then return { 'gone' } end
redis.call('PEXPIRE', lease, ttl)
redis.call('HINCRBY', lease, 'version', 1)
-- The mark may have been evicted or deleted by hand.
redis.call('HSETNX', mark, 'token', token)
redis.call('HSET', mark, 'used', text(now + ttl * 1000))
redis.call('PEXPIRE', mark, horizon)
return { 'renewed', held[3] or '' }
