-- JobSubmitPlugins=lua in slurm.conf: slurmctld asks this for every submission.
--
-- A site that has a job_submit.lua already adds the lines up to slurm_job_submit, and the body of that, to its own.
-- Only batch jobs bring their environment along, so the words take effect there; srun and salloc need cli_filter.lua,
-- the plugin or an exported variable (docs/slurm_flag.md). A bad word is refused for all three.

-- A file that is missing or broken must not stop submissions: then there is a line in slurmctld's log, and no words.
local folder = debug.getinfo(1, "S").source:match("^@(.*/)") or "/etc/slurm/"
local loaded, tidegauge = pcall(dofile, folder .. "tidegauge_comment.lua")
if not loaded then
  slurm.log_error("tidegauge: words in comments are ignored: %s", tostring(tidegauge))
end

-- What earlier runs needed is said and never more: no error of it, nor its absence, holds a submission up.
local has_history, history = pcall(dofile, folder .. "tidegauge_history.lua")

local function use_history(job)
  local sentence = history.sentence(folder, job.user_name, job.name)
  if sentence ~= nil then
    slurm.log_user("tidegauge: %s", sentence)
  end
  local variable, value = history.limit(folder, job.user_name, job.name)
  if variable ~= nil and job.script ~= nil and job.environment ~= nil and job.environment[variable] == nil then
    job.environment[variable] = value
  end
end

function slurm_job_submit(job, partitions, uid)
  if has_history then
    pcall(use_history, job)
  end
  if not loaded then
    return slurm.SUCCESS
  end
  local environment, problem = tidegauge.environment(job.comment)
  if environment == nil then
    slurm.log_user("--comment: %s", problem)
    return slurm.ERROR
  end
  if job.script ~= nil and job.environment ~= nil then
    for name, value in pairs(environment) do
      job.environment[name] = value
    end
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end
