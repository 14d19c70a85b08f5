"""Fuzzing of everything that reads what others wrote: ``python -m fuzz`` (``make fuzz``), see ``docs/supply_chain.md``.

Each target hands bytes to a real reader and holds it to more than "no crash" (``oracles``). Nothing of the product is
imported here: ``child`` has it instrumented for coverage first.
"""
