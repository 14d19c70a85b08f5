-- What is known of earlier runs of a job, for job_submit.lua and cli_filter.lua, beside which it lies.
--
-- tidegauge_history.tsv in the same folder has sentences on what they needed, tidegauge_shared.tsv the bytes that the
-- next run may take of a GPU that it shares: a user, a job name and that in each line, with tabs between them, as
-- `tidegauge efficiency --for-submission` and `--for-sharing` print them. A file is read at each submission, up to a
-- bound, so that nobody waits for a service; without it there is nothing to say and no limit.
local history = {}

local MAX_BYTES = 1048576
local MAX_SENTENCE_BYTES = 400
local MIN_LIMIT_BYTES = 2 ^ 30 -- CUDA and a small model need as much; less is an error of whoever made the file
local VARIABLE = "TIDEGAUGE_SHARED_GPU_BYTES"

-- What the file has of this user's job of this name, or nil.
local function found(path, user, name)
  if user == nil or name == nil or name == "" then
    return nil
  end
  local file = io.open(path, "r")
  if file == nil then
    return nil
  end
  local text = file:read(MAX_BYTES)
  file:close()
  local wanted = user .. "\t" .. name .. "\t"
  for line, line_end in (text or ""):gmatch("([^\n]+)(\n?)") do
    local is_whole = line_end ~= "" -- the bound may have cut the last one
    if is_whole and line:sub(1, #wanted) == wanted then
      return line:sub(#wanted + 1)
    end
  end
  return nil
end

-- The sentence on what the earlier runs needed, or nil. Never an error.
function history.sentence(folder, user, name)
  local worked, text = pcall(found, folder .. "tidegauge_history.tsv", user, name)
  if worked and text ~= nil then
    return (text:sub(1, MAX_SENTENCE_BYTES):gsub("%c", "?"))
  end
  return nil
end

-- The variable that limits the job on a shared GPU, and its value; or nil. Never an error.
function history.limit(folder, user, name)
  local worked, text = pcall(found, folder .. "tidegauge_shared.tsv", user, name)
  local bytes = worked and text ~= nil and text:match("^%d+$")
  if bytes and #bytes <= 15 and tonumber(bytes) >= MIN_LIMIT_BYTES then
    return VARIABLE, bytes
  end
  return nil
end

return history
