"""Callbacks for training frameworks, one module each: guests in the training process.

They use ``tidegauge``'s public functions and nothing else of it. ``import tidegauge`` imports none of them, and a job
is watched without them as well (docs/integrations.md).
"""
