"""Series by authors who did not know the detector, nor these tests: what it was judged by, not made for.

`typical`: jobs of research and industry. `adversarial`: shapes that were meant to fool it. `corpus(seed, variants, set_)`
makes their series; `to_1hz(series)` shows one as a poller sees it. Seeds 1 and 2 of both were in view when danger
learnt to forecast plateaus (2026-11-25).
"""
