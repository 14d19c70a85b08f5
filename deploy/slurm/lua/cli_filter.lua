-- CliFilterPlugins=lua in slurm.conf: sbatch, srun and salloc ask this on the submit host, as the user.
--
-- It writes the words of the comment into --export, so they reach batch scripts and the tasks of an srun that has the
-- comment itself. The tasks of an srun inside salloc are not reached, and whoever brings an own slurm.conf avoids it
-- (docs/slurm_flag.md).

local folder = debug.getinfo(1, "S").source:match("^@(.*/)") or "/etc/slurm/"
local loaded, tidegauge = pcall(dofile, folder .. "tidegauge_comment.lua")
if not loaded then
  slurm.log_verbose("tidegauge: words in comments are ignored: %s", tostring(tidegauge))
end

function slurm_cli_setup_defaults(options, early)
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, component)
  if not loaded then
    return slurm.SUCCESS
  end
  local environment, problem = tidegauge.environment(options["comment"])
  if environment == nil then
    slurm.log_error("--comment: %s", problem)
    return slurm.ERROR
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
