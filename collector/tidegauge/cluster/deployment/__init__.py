"""The engine keeps one coordinator and one agent per node alive: Ray, supervisor, start and end of the service."""
