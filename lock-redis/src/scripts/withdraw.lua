-- nonce, hand-off us, horizon ms, how long the nonce stays dead in ms. KEYS[5] says that it is.
local nonce, hand_off, horizon, dead = unpack(ARGV)
leave(nonce)
redis.call('SET', KEYS[5], '1', 'PX', dead)
if redis.call('HGET', lease, 'nonce') == nonce then
  local held = redis.call('HMGET', lease, 'owner', 'token')
  free(held[1], held[2], '', horizon, hand_off)
elseif redis.call('HGET', mark, 'heir') == nonce then
  redis.call('HSET', mark, hand_on(hand_off))
end
return 1
