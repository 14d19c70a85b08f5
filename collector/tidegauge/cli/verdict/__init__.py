"""The verdict of `tidegauge run` on its own job, without a service: judging, words and report, and the process."""
