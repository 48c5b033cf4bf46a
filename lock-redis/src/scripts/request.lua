-- The wish. It belongs to the term and ends with it.
if redis.call('EXISTS', lease) == 0 then return 0 end
redis.call('HSET', lease, 'request', ARGV[1])
return 1
