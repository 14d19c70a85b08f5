"""Builds the libraries of the fake-GPU rig for the torch that is installed in the rig's environment.

Hand-written C gives the parts with behaviour (`csrc/`). Everything else that the torch libraries want from NVIDIA is
generated: one library for each one they need, with a weak function for each symbol that they leave undefined, so that a
hand-written one always wins. Standard library, gcc and readelf only.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = Path(__file__).resolve().parent / "csrc"
DEFAULT_VENV = REPOSITORY / ".rig" / "venv"
DEFAULT_OUT = REPOSITORY / ".rig" / "lib"
STAMP = "built.json"
SETTLES = Path(__file__).resolve().parent / "inside" / "rig_settles.py"

FLAGS = ("-std=gnu11", "-O1", "-g", "-fPIC", "-shared", "-Wall", "-Wextra", "-pthread")
CORE = ("knobs.c", "budget.c", "devices.c", "memory.c", "properties.c")
HAND_WRITTEN = {
    "libcudart.so": ("runtime_devices.c", "runtime_memory.c", "runtime_streams.c", "runtime_kernels.c", "launches.c"),
    "libcuda.so": ("driver.c",),
}

# Undefined symbols without a version node do not say which library they want; their names do. First match wins.
UNVERSIONED = (
    (r"cuFile", "libcufile.so"),
    (r"cusparseLt", "libcusparseLt.so"),
    (r"nccl", "libnccl.so"),
    (r"curand", "libcurand.so"),
    (r"nvshmem", "libnvshmem_host.so"),
    (r"cu[A-Z]", "libcuda.so"),
)
# Looked up by name at run time, so no symbol table mentions them; torch requires them to exist.
LOOKED_UP = {
    *("cuCtxFromGreenCtx", "cuDevResourceGenerateDesc", "cuDevSmResourceSplitByCount", "cuDeviceGetDevResource"),
    *("cuGreenCtxCreate", "cuLaunchCooperativeKernel", "cuLinkAddData_v2", "cuLinkComplete", "cuLinkCreate_v2"),
    *("cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMemsetD32Async", "cuMulticastAddDevice"),
    *("cuMulticastBindAddr", "cuMulticastBindMem", "cuMulticastCreate", "cuMulticastGetGranularity"),
    *("cuMulticastUnbind", "cuPointerGetAttribute", "cuStreamWriteValue32", "cuTensorMapEncodeTiled"),
}
# What a generated function returns. The mathematics libraries succeed (and do nothing); where success would be a lie
# that torch acts on, it is the library's own "not supported": no IPC or graphs (801), no NCCL (ncclInvalidUsage), no
# cuFile, no cuSOLVER, which would have to answer with sizes that torch then allocates.
NOT_SUPPORTED = {"libcudart.so": 801, "libcuda.so": 801, "libnccl.so": 5, "libcufile.so": 5030, "libcusolver.so": 9}


class BuildError(Exception):
    """The rig cannot be built here; the message says what is missing and how to get it."""


def torch_folder(venv: Path) -> Path:
    """The torch package in `venv`; BuildError unless it is a CUDA build without NVIDIA's packages beside it."""
    found = sorted(venv.glob("lib/python3.*/site-packages/torch"))
    if not found:
        raise BuildError(
            f"no torch in {venv}: the rig is made by `make rig`\n"
            "A further rig, .rig/VERSION with another release of torch, is made by scripts/make_rig.sh (make rigs)."
        )
    if not (found[0] / "lib" / "libtorch_cuda.so").exists():
        raise BuildError(f"the torch in {venv} is not a CUDA build: make the rig anew, from an index that has one")
    if (found[0].parent / "nvidia").exists():
        raise BuildError(
            f"{venv} holds NVIDIA's packages (torch's RPATH finds them before the stubs): make it anew with --no-deps"
        )
    return found[0]


def need_tools() -> None:
    """BuildError unless gcc and readelf are on PATH."""
    for tool, package in (("gcc", "gcc"), ("readelf", "binutils")):
        if shutil.which(tool) is None:
            raise BuildError(f"{tool} is not on PATH: install it (on Debian and Ubuntu: apt-get install {package})")


def fingerprint(torch: Path) -> str:
    """Changes with the sources, this script and the torch version; the stamp holds the one that was built."""
    digest = hashlib.sha256()
    for source in [Path(__file__), *sorted(SOURCES.iterdir()), torch / "version.py"]:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()


def readelf(*arguments: str) -> str:
    return subprocess.run(["readelf", "-W", *arguments], check=True, capture_output=True, text=True).stdout


@dataclass
class Stub:
    """One of NVIDIA's libraries as torch's libraries know it."""

    soname: str
    node: str = ""
    """Its symbol version, "" for a library without versions."""
    symbols: set[str] = field(default_factory=set)


def wanted_libraries(torch: Path) -> list[Stub]:
    """What torch's libraries want from NVIDIA's, read from their symbol tables."""
    paths = sorted(path for path in (torch / "lib").glob("lib*.so*") if not path.name.startswith("libgomp"))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        listings = list(pool.map(lambda path: readelf("-d", "-V", "--dyn-syms", str(path)), paths))
    own = {path.name for path in paths}
    needed = {name for text in listings for name in re.findall(r"\(NEEDED\).*\[(lib(?:cu|nv|nccl).+?)\]", text)}
    stubs = [Stub(soname) for soname in sorted((needed - own) | {"libcuda.so.1"})]
    by_soname, by_stem = {stub.soname: stub for stub in stubs}, {stem(stub.soname): stub for stub in stubs}
    for text in listings:
        for soname, names in re.findall(r"File: (\S+)  Cnt: \d+\n((?:.*  Name: .*\n)+)", text):
            if soname in by_soname:
                by_soname[soname].node = re.findall(r"Name: (\S+)", names)[0]
    by_node = {stub.node: stub for stub in stubs if stub.node}
    for text in listings:
        for symbol, node in re.findall(r" UND ([A-Za-z_]\w*)(?:@+(\S+))?", text):
            if node in by_node:
                by_node[node].symbols.add(symbol)
            elif not node:
                library = next((library for prefix, library in UNVERSIONED if re.match(prefix, symbol)), "")
                if library in by_stem:
                    by_stem[library].symbols.add(symbol)
    by_soname["libcuda.so.1"].symbols |= LOOKED_UP
    return stubs


def stem(soname: str) -> str:
    """libcudart.so.13 -> libcudart.so"""
    return soname[: soname.index(".so") + 3]


def cuda_major(stubs: list[Stub]) -> int:
    """Of the CUDA that this torch was built with: its runtime is called libcudart.so.MAJOR."""
    return next(int(stub.soname.rpartition(".")[2]) for stub in stubs if stem(stub.soname) == "libcudart.so")


def compile_library(out: Path, soname: str, sources: list[Path], extra: list[str]) -> None:
    command = ["gcc", *FLAGS, "-o", str(out / soname), f"-Wl,-soname,{soname}", "-Wl,-rpath,$ORIGIN"]
    command += [*map(str, sources), *extra, "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"gcc failed on {soname}:\n{done.stderr}")
    sys.stderr.write(done.stderr)


def cudnn_version(torch: Path) -> int:
    """The cuDNN that this torch was built with, as cudnnGetVersion() says it (9.20.0 -> 92000); torch insists on it."""
    for metadata in torch.parent.glob("torch-*.dist-info/METADATA"):
        found = re.search(r"nvidia-cudnn-cu\d+==(\d+)\.(\d+)\.(\d+)", metadata.read_text())
        if found:
            major, minor, patch = map(int, found.groups())
            return major * 10000 + minor * 100 + patch
    raise BuildError(f"the metadata of {torch} does not name nvidia-cudnn: is it a CUDA 12 or 13 wheel?")


def build_stub(out: Path, scratch: Path, stub: Stub, defines: list[str]) -> None:
    """Generated weak functions, and the hand-written ones that replace them."""
    name = stem(stub.soname)
    value = NOT_SUPPORTED.get(name, 0)
    functions = [f"__attribute__((weak)) int {symbol}(void) {{ return {value}; }}\n" for symbol in sorted(stub.symbols)]
    generated = scratch / f"{stub.soname}.c"
    generated.write_text("".join(functions) or "typedef int nothing_is_wanted;\n")
    vendor = SOURCES / f"vendor_{name.removeprefix('lib').removesuffix('.so')}.c"
    written = [SOURCES / source for source in HAND_WRITTEN.get(name, ())] + ([vendor] if vendor.exists() else [])
    extra = ["-fno-builtin", *defines]
    if name in HAND_WRITTEN:
        extra.append(str(out / "libfakegpu.so"))
    if stub.node:
        version_script = scratch / f"{stub.soname}.map"
        version_script.write_text(f"{stub.node} {{ global: *; }};\n")
        extra.append(f"-Wl,--version-script={version_script}")
    compile_library(out, stub.soname, [*written, generated], extra)


@contextlib.contextmanager
def only_builder(out: Path) -> Iterator[None]:
    """Test workers start together: one builds, the others wait and then find it done."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with open(out.with_name(out.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_current(out: Path, mark: str) -> bool:
    stamp = out / STAMP
    return stamp.exists() and json.loads(stamp.read_text()).get("fingerprint") == mark


def build(out: Path = DEFAULT_OUT, venv: Path = DEFAULT_VENV) -> bool:
    """Builds the libraries into `out` unless they are up to date; True when it built. Raises BuildError."""
    torch = torch_folder(venv)
    let_processes_settle(torch.parent)
    mark = fingerprint(torch)
    if is_current(out, mark):
        return False
    need_tools()
    with only_builder(out):
        if is_current(out, mark):
            return False
        build_all(out, torch, mark)
    return True


def let_processes_settle(site_packages: Path) -> None:
    """Every interpreter of the environment imports ``rig_settles`` at its start."""
    for name, text in ((SETTLES.name, SETTLES.read_text()), ("rig_settles.pth", "import rig_settles\n")):
        path = site_packages / name
        if not path.exists() or path.read_text() != text:
            fresh = path.with_name(f".{name}.{os.getpid()}")
            fresh.write_text(text)
            fresh.replace(path)  # test workers start together


def build_all(out: Path, torch: Path, mark: str) -> None:
    # Built aside and renamed: whoever looks finds whole libraries.
    fresh, scratch = out.with_name(out.name + ".new"), out.with_name(out.name + ".scratch")
    for folder in (fresh, scratch):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    core_map = scratch / "fakegpu.map"
    core_map.write_text("FAKEGPU { global: *; };\n")
    core_sources = [SOURCES / name for name in CORE]
    stubs = wanted_libraries(torch)
    cuda = f"-DCUDA_MAJOR={cuda_major(stubs)}"
    compile_library(fresh, "libfakegpu.so", core_sources, [f"-Wl,--version-script={core_map}", cuda])
    compile_library(fresh, "libnvidia-ml.so.1", [SOURCES / "nvml.c"], [str(fresh / "libfakegpu.so"), cuda])
    defines = [f"-DCUDNN_VERSION={cudnn_version(torch)}", cuda]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(build_stub, fresh, scratch, stub, defines) for stub in stubs]
        for job in jobs:
            job.result()
    (fresh / STAMP).write_text(json.dumps({"fingerprint": mark}))
    shutil.rmtree(scratch)
    shutil.rmtree(out, ignore_errors=True)
    fresh.rename(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="where the libraries go (default: .rig/lib)")
    parser.add_argument("--venv", type=Path, default=DEFAULT_VENV, help="environment with torch (default: .rig/venv)")
    args = parser.parse_args()
    try:
        built = build(args.out.resolve(), args.venv.absolute())
    except BuildError as error:
        print(f"fakegpu: {error}", file=sys.stderr)
        return 3
    print(f"fakegpu: {args.out} {'built' if built else 'is up to date'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
