"""An hour of churn on one real service, and a judgement of what it keeps: memory, descriptors, threads, files, rows.

What makes work lives in ``ring_jobs``, ``rig_jobs`` and ``visitors``; what is read in ``gauges``; what counts as growth
in ``judgement``. ``python -m soak`` (``make soak``) runs it; nothing here is a test by itself.
"""
