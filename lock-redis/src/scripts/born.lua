-- For how long the server has had this key, in microseconds: since when it has not been emptied.
local born = redis.call('GET', KEYS[1])
if not born then
  born = text(now)
  redis.call('SET', KEYS[1], born)
end
return text(math.max(0, now - tonumber(born)))
