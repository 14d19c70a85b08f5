-- CliFilterPlugins=lua in slurm.conf: sbatch, srun and salloc ask this on the submit host, as the user.
--
-- It writes the words of the comment into --export, so they reach batch scripts and the tasks of an srun that has the
-- comment itself. The tasks of an srun inside salloc are not reached, and whoever brings an own slurm.conf avoids it
-- (docs/slurm_flag.md). What earlier runs needed is said here to sites that do not have slurmctld say it
-- (docs/service.md).

local folder = debug.getinfo(1, "S").source:match("^@(.*/)") or "/etc/slurm/"
local loaded, tidegauge = pcall(dofile, folder .. "tidegauge_comment.lua")
if not loaded then
  slurm.log_verbose("tidegauge: words in comments are ignored: %s", tostring(tidegauge))
end

-- What earlier runs needed is said and never more: no error of it, nor its absence, holds a submission up.
local has_history, history = pcall(dofile, folder .. "tidegauge_history.lua")

-- The job's name: without the option it is that of the script or program, which the commands fill in later.
local function job_name(options)
  local first = (options["argv"] or {})[1]
  if options["job-name"] == nil and options["type"] ~= "salloc" and first ~= nil then
    return first:match("[^/]*$")
  end
  return options["job-name"]
end

-- Says the sentence, and returns the variable that limits the job on a shared GPU, and its value; or nil.
local function use_history(options)
  local user, name = os.getenv("USER"), job_name(options)
  -- A step of a job says it again for each srun.
  if options["type"] ~= "srun" or os.getenv("SLURM_JOB_ID") == nil then
    local sentence = history.sentence(folder, user, name)
    if sentence ~= nil then
      slurm.log_info("tidegauge: %s", sentence)
    end
  end
  local variable, value = history.limit(folder, user, name)
  if variable ~= nil and os.getenv(variable) == nil then
    return variable, value
  end
  return nil
end

function slurm_cli_setup_defaults(options, early)
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, component)
  local environment = {}
  if loaded then
    local problem
    environment, problem = tidegauge.environment(options["comment"])
    if environment == nil then
      slurm.log_error("--comment: %s", problem)
      return slurm.ERROR
    end
  end
  if has_history then
    local worked, variable, value = pcall(use_history, options)
    if worked and variable ~= nil then
      environment[variable] = value
    end
  end
  local export = options["export"]
  if export == nil or export == "" then
    export = "ALL"
  end
  local count = 0
  for name, value in pairs(environment) do
    export = export .. "," .. name .. "=" .. value
    count = count + 1
  end
  if count > 0 then
    options["export"] = export
  end
  return slurm.SUCCESS
end

function slurm_cli_post_submit(component, job_id, step_id)
  return slurm.SUCCESS
end
