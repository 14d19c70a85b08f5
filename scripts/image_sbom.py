"""image_sbom.py BILL ROOT IMAGE: adds to a CycloneDX bill what it is of and Debian's packages below ROOT."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote


def debian_packages(root: Path) -> Iterator[dict[str, object]]:
    status = root / "var" / "lib" / "dpkg" / "status"
    for paragraph in status.read_text(encoding="utf-8").split("\n\n") if status.exists() else ():
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Status", "").endswith(" installed"):
            name, version, machine = fields["Package"], fields["Version"], fields["Architecture"]
            purl = f"pkg:deb/debian/{name}@{quote(version, safe='.-~')}?arch={machine}"
            yield {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def main(bill: Path, root: Path, image: str) -> None:
    known = json.loads(bill.read_text(encoding="utf-8"))
    name, _, version = image.rpartition(":")
    known.setdefault("metadata", {})["component"] = {
        "type": "container", "bom-ref": image, "name": name, "version": version
    }  # fmt: skip
    known.setdefault("components", []).extend(debian_packages(root))
    bill.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{bill}: {len(known['components'])} components")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
