-- note, hand-off us, horizon ms. The token of the revocation, or nothing.
local note, hand_off, horizon = unpack(ARGV)
local token = redis.call('HGET', lease, 'token')
if not token then return '' end
local larger = text(math.max(now, tonumber(token) + 1, (tonumber(redis.call('HGET', mark, 'token')) or 0) + 1))
free(redis.call('HGET', lease, 'owner'), larger, note, horizon, hand_off)
return larger
