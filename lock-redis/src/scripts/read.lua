-- Who holds the name, without a claim.
local held, known = read(lease), read(mark)
if held.nonce then return { 'held', seen(held) } end
if known.token then return { 'free', known.token, known.note or '' } end
return { 'absent' }
