"""Holder tests search a whole process for what keeps tensors. pytest's has a million objects more than a job's, so they
are left to a process of their own (``test_holders_alone.py``); named on the command line, a file runs here."""

collect_ignore = ["test_probe_holder_growth.py", "test_probe_holders.py"]
