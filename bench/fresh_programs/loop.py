"""What the programs share: flags, pace, and the JSON line at the end."""

import argparse
import json
import signal
import time

import torch

WARM_UP_STEPS = 10


def steps():
    """Numbers of training steps, at the pace that was asked for; SIGTERM ends them early."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--step-seconds", type=float, default=0.1)
    args = parser.parse_args()
    torch.backends.cudnn.enabled = False
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    step, before = 0, 0
    begun_s = time.monotonic()
    while step < args.steps and not stopped:
        yield step
        step += 1
        if step == WARM_UP_STEPS:
            before = torch.cuda.memory_allocated()
        while not stopped and (left_s := begun_s + args.step_seconds - time.monotonic()) > 0:
            time.sleep(min(left_s, 0.25))
        begun_s = time.monotonic()
    kept = torch.cuda.memory_allocated() - before
    print(json.dumps({"steps": step, "kept_bytes": kept, "bytes_per_step": kept // max(step - WARM_UP_STEPS, 1)}))
