-- How long unused, in us.
if redis.call('EXISTS', lease) == 1 then return 0 end
local used = tonumber(redis.call('HGET', mark, 'used'))
if not used or used + ARGV[1] > now then return 0 end
return redis.call('DEL', mark)
