-- nonce, token, hand-off us, horizon ms.
local nonce, token, hand_off, horizon = unpack(ARGV)
local held = redis.call('HMGET', lease, 'nonce', 'token', 'owner')
if held[1] ~= nonce or held[2] ~= token then return 0 end
free(held[3], token, '', horizon, hand_off)
return 1
