"""Having the job save its state on request, and the proof that it did."""
