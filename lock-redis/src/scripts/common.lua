-- Keys of one name: the lease, its mark (what outlives it), the line of waiters (a sorted set by arrival) and
-- what is known of each waiter ("until channel"). Times are microseconds of the server's clock; what is held in
-- numbers stays below 2^53, and is written by `text`, since Lua would write 1.79e+15.
local lease, mark, line, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

local function text(number) return string.format('%.0f', number) end

-- Takes one waiter out of the line.
local function leave(nonce)
  if redis.call('ZREM', line, nonce) == 1 then redis.call('HDEL', waiters, nonce) end
end

-- Whether the nonce of KEYS[5] was withdrawn: what is still on its way for it does nothing.
local function dead() return redis.call('EXISTS', KEYS[5]) == 1 end

-- Puts a waiter in the line, or keeps it there. An empty channel means that it may not wait.
local function join(nonce, channel, ttl)
  if channel == '' or dead() then return end
  redis.call('ZADD', line, 'NX', text(now), nonce)
  redis.call('HSET', waiters, nonce, text(now + ttl * 1000) .. ' ' .. channel)
  -- The longest wait of anybody in line decides; both keys go with the last of them.
  local lives = text(math.max(redis.call('PTTL', line), tonumber(ttl)))
  redis.call('PEXPIRE', line, lives)
  redis.call('PEXPIRE', waiters, lives)
end

-- Tells the first in line that the name is kept for it, and the second when to look. Answers what the mark is to say of
-- that: fields and values.
local function hand_on(hand_off)
  local heir = ''
  while true do
    local nonce = redis.call('ZRANGE', line, 0, 0)[1]
    if not nonce then break end
    local known = redis.call('HGET', waiters, nonce)
    local stays, channel = string.match(known or '', '^(%d+) (.*)$')
    local lives = stays and tonumber(stays) > now
    if lives then redis.call('PUBLISH', channel, (heir == '' and 'heir ' or 'next ') .. nonce) end
    if lives and heir ~= '' then break end
    if lives then heir = nonce end
    leave(nonce)
  end
  return 'heir', heir, 'kept', text(heir == '' and 0 or now + hand_off)
end

-- Ends the term that there is: what outlives it, and the next in line. A free name is still known by its last owner.
-- The mark lives long after the lease; with it goes the counter, and then the clock is the least token.
local function free(owner, token, note, horizon, hand_off)
  redis.call('DEL', lease)
  redis.call('HSET', mark, 'token', token, 'owner', owner or '', 'note', note, 'used', text(now), hand_on(hand_off))
  redis.call('PEXPIRE', mark, horizon)
end

-- owner, token, microseconds left, ttl, version, metadata: what is seen of a lease.
local function seen(held)
  local left = redis.call('PTTL', lease)
  if left < 0 then
    -- Somebody took its expiry away by hand: a lease always ends.
    left = tonumber(held.ttl) or 1000
    redis.call('PEXPIRE', lease, left)
  end
  -- A whole millisecond has begun.
  return held.owner or '', held.token or '', text((left + 1) * 1000), held.ttl or '0', held.version or '0', held.metadata or ''
end

local function read(key)
  local got, fields = {}, redis.call('HGETALL', key)
  for i = 1, #fields, 2 do got[fields[i]] = fields[i + 1] end
  return got
end
