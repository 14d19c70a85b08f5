-- What a job's comment asks of Tidegauge: --comment="tidegauge:profile=auto,tidegauge:fraction=0.5".
--
-- For job_submit.lua and cli_filter.lua, beside which it lies. The words tidegauge:keep and tidegauge:requeue belong to
-- the same family (docs/slurm_jobs.md); they are for the service to read, and only known here so that a slip such as
-- tidegauge:keeep is told to the user instead of being no protection.
local tidegauge = {}

local LEVELS = { off = true, dormant = true, stats = true, auto = true, trace = true }
local FLAGS = { keep = true, requeue = true }

local function shown(text)
  return "'" .. text:sub(1, 40):gsub("%c", "?") .. "'"
end

local function is_fraction(text)
  local number = text:match("^[%d.]+$") and tonumber(text)
  return number ~= nil and number > 0 and number <= 1
end

-- The environment that the comment asks for, a table of names and values; or nil and what is wrong, in words.
function tidegauge.environment(comment)
  local environment = {}
  for word in (comment or ""):gmatch("[^%s,;]+") do
    local wish = word:lower():match("^tidegauge:(.*)$")
    local name, value = (wish or ""):match("^(%l+)=(.*)$")
    if name == "profile" then
      if not LEVELS[value] then
        return nil, shown(word) .. ": the level is not one of off, dormant, stats, auto, trace"
      end
      environment.TIDEGAUGE_PROFILE = value
    elseif name == "fraction" then
      if not is_fraction(value) then
        return nil, shown(word) .. ": the fraction is not a decimal number above 0 and at most 1, such as 0.5"
      end
      environment.TIDEGAUGE_MEMORY_FRACTION = value
    elseif wish ~= nil and not FLAGS[wish] then
      local choices = "tidegauge:profile=LEVEL, tidegauge:fraction=F, tidegauge:keep, tidegauge:requeue"
      return nil, shown(word) .. " is not one of " .. choices
    end
  end
  return environment
end

return tidegauge
