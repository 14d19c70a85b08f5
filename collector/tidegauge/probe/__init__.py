"""The probe runs inside the training process, on the standard library and the job's torch. Never raises into it."""
