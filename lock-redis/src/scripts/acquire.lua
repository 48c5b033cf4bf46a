-- nonce, owner, ttl ms, metadata, least token, channel ('' for who may not wait), horizon ms. KEYS[5] is there when
-- the nonce is dead.
local nonce, owner, ttl, metadata, least, channel, horizon = unpack(ARGV)
local function denied(...)
  join(nonce, channel, ttl)
  return { ... }
end

if dead() then return { 'dead' } end
local held, known = read(lease), read(mark)
local last = tonumber(known.token) or 0
if held.nonce and held.nonce ~= nonce then return denied('held', seen(held)) end
if not held.nonce and (known.heir or '') ~= '' and known.heir ~= nonce and tonumber(known.kept) > now then
  return denied('kept', known.owner or '', text(last), text(tonumber(known.kept) - now))
end

local token
if held.nonce then
  token = math.max(tonumber(held.token), tonumber(least))
else
  token = math.max(now, last + 1, tonumber(least))
  if next(held) then redis.call('DEL', lease) end
end
redis.call('HSET', lease, 'nonce', nonce, 'owner', owner, 'token', text(token), 'ttl', ttl, 'metadata', metadata,
  'version', text(held.nonce and held.version + 1 or token))
redis.call('PEXPIRE', lease, ttl)
redis.call('HSET', mark, 'token', text(math.max(token, last)), 'note', '', 'heir', '', 'kept', '0', 'used',
  text(now + ttl * 1000))
-- A release and a renewal make it live on.
if not known.token then redis.call('PEXPIRE', mark, horizon) end
leave(nonce)
return { 'granted', text(token) }
