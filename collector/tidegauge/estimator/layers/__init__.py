"""Layers whose memory torch decides by shapes: attention, autocast, recurrent ones."""
