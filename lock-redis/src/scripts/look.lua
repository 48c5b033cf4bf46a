-- nonce, channel ('' for who may not wait), ttl ms. What a waiter sees: the state, or for how long the name is kept
-- for another; no time of its own (0) when somebody stands before it. KEYS[5] is there when the nonce is dead.
local nonce, channel, ttl = unpack(ARGV)
local held, known = read(lease), read(mark)
if held.nonce then
  join(nonce, channel, ttl)
  return { 'held', seen(held) }
end
if (known.heir or '') ~= '' and known.heir ~= nonce and tonumber(known.kept) > now then
  join(nonce, channel, ttl)
  local before = redis.call('ZRANK', line, nonce)
  return { 'kept', (before and before > 0) and '0' or text(tonumber(known.kept) - now) }
end
return { 'free' }
