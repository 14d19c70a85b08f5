"""Layers for which torch chooses a kernel by shapes, and with it their memory: attention, autocast, recurrent ones."""
