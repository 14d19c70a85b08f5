-- What earlier runs of a job needed, in one sentence, for job_submit.lua beside which it lies.
--
-- The sentences are in tidegauge_history.tsv in the same folder: a user, a job name and a sentence in each line, with
-- tabs between them, as `tidegauge efficiency --for-submission` prints them. The file is read at each submission, up to
-- a bound, so that slurmctld never waits for a service; without it nothing is said.
local history = {}

local MAX_BYTES = 1048576
local MAX_SENTENCE_BYTES = 400

-- The sentence on this user's job of this name, or nil.
function history.sentence(folder, user, name)
  if user == nil or name == nil or name == "" then
    return nil
  end
  local file = io.open(folder .. "tidegauge_history.tsv", "r")
  if file == nil then
    return nil
  end
  local text = file:read(MAX_BYTES)
  file:close()
  local wanted = user .. "\t" .. name .. "\t"
  for line in (text or ""):gmatch("[^\n]+") do
    if line:sub(1, #wanted) == wanted then
      return (line:sub(#wanted + 1):sub(1, MAX_SENTENCE_BYTES):gsub("%c", "?"))
    end
  end
  return nil
end

return history
