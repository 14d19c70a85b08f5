"""The engine that keeps one coordinator and one agent a node alive: Ray, supervisors, start and end."""
