"""Layers whose memory depends on a choice that torch makes by shapes: attention, autocast, recurrent ones."""
