-- Reads the clock, in the scripts that are few enough to pay for it: it goes on from
-- what commits have noted, and never falls.
local time = call('TIME')
clock = math.max(clock, time[1] * 1000000 + time[2] + skew)
