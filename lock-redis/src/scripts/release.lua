-- nonce, token, hand-off us, horizon ms.
local nonce, token, hand_off, horizon = unpack(ARGV)
local held = redis.call('HMGET', lease, 'nonce', 'token')
if held[1] ~= nonce or held[2] ~= token then return 0 end
free(token, '', horizon, hand_off)
return 1
