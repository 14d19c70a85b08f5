"""The emulator as a process of its own: ``python -m kube_emulator FOLDER``.

Prints the path of the admin's kubeconfig when it is ready, and serves until its standard input ends or it is signalled.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kube_emulator.emulator import Emulator


def main() -> None:
    parser = argparse.ArgumentParser(prog="kube_emulator", description=__doc__)
    parser.add_argument("folder", type=Path, help="an existing empty folder for certificates and kubeconfigs")
    parser.add_argument("--port", type=int, default=0, help="loopback port; default: a free one")
    parser.add_argument("--no-controllers", action="store_true", help="the API server alone")
    arguments = parser.parse_args()
    with Emulator(arguments.folder, port=arguments.port, controllers=not arguments.no_controllers) as emulator:
        print(emulator.kubeconfig(), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
