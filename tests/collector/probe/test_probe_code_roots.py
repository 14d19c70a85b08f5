from __future__ import annotations

import json
import os
import sysconfig
from pathlib import Path

import pytest

from tidegauge.core.evidence.owners import is_library
from tidegauge.probe.code_roots import code_roots


def project(folder: Path, *, named: str = "pyproject.toml") -> Path:
    folder.mkdir(parents=True)
    (folder / named).touch()
    return folder


def installed(folder: Path, checkout: Path) -> None:
    """A distribution in ``folder`` that is installed editable from ``checkout``."""
    info = folder / "lib-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lib\nVersion: 1.0\n")
    about = {"url": checkout.as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(about))


def test_a_folder_called_torch_is_the_users_if_the_script_is_in_it(tmp_path: Path) -> None:
    script = tmp_path / "torch" / "train.py"
    roots = code_roots({"__file__": str(script)}, {}, [])
    assert not is_library(str(script), roots)
    assert is_library(os.path.join(sysconfig.get_paths()["purelib"], "torch", "nn.py"), roots)
    assert is_library(json.__file__, roots)


@pytest.mark.parametrize("below", ["", "src"])
def test_a_source_checkout_on_the_path_is_a_library(tmp_path: Path, below: str) -> None:
    checkout = project(tmp_path / "libs" / "transformers", named="setup.py")
    entry = str(checkout / below)
    roots = code_roots({"__file__": str(tmp_path / "train.py")}, {"PYTHONPATH": entry}, [entry])
    assert is_library(str(checkout / below / "transformers" / "trainer.py"), roots)
    assert not is_library(str(tmp_path / "train.py"), roots)


def test_an_editable_checkout_and_a_target_folder_are_libraries(tmp_path: Path) -> None:
    checkout, target = tmp_path / "checkout", tmp_path / "target"
    installed(target, checkout)
    roots = code_roots({"__file__": str(tmp_path / "run" / "train.py")}, {}, [str(target)])
    assert is_library(str(checkout / "lib" / "x.py"), roots)
    assert is_library(str(target / "lib" / "x.py"), roots)


def test_the_checkout_that_the_script_is_in_is_the_users(tmp_path: Path) -> None:
    checkout = project(tmp_path / "mine")
    installed(tmp_path / "target", checkout)
    main = {"__file__": str(checkout / "scripts" / "train.py")}
    roots = code_roots(main, {}, [str(checkout), str(tmp_path / "target")])
    assert not is_library(str(checkout / "src" / "mine" / "model.py"), roots)


def test_a_package_is_the_users_from_its_outermost_folder_on(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.12" / "site-packages"
    main = {"__file__": str(site / "trainer" / "cli" / "__main__.py"), "__package__": "trainer.cli"}
    roots = code_roots(main, {}, [])
    assert not is_library(str(site / "trainer" / "model.py"), roots)
    assert is_library(str(site / "lightning" / "trainer.py"), roots)


def test_a_script_of_an_installed_launcher_is_not_the_users(tmp_path: Path) -> None:
    worker = os.path.join(sysconfig.get_paths()["purelib"], "ray", "_private", "workers", "default_worker.py")
    assert is_library(worker, code_roots({"__file__": worker}, {}, []))


def test_settings_add_roots(tmp_path: Path) -> None:
    more = {"TIDEGAUGE_LIBRARY_ROOTS": str(tmp_path / "lib"), "TIDEGAUGE_CODE_ROOTS": str(tmp_path / "lib" / "mine")}
    roots = code_roots({"__file__": str(tmp_path / "train.py")}, more, [])
    assert is_library(str(tmp_path / "lib" / "x.py"), roots)
    assert not is_library(str(tmp_path / "lib" / "mine" / "x.py"), roots)


def test_a_distribution_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    installed(tmp_path / "target", tmp_path / "checkout")
    (tmp_path / "target" / "lib-1.0.dist-info" / "direct_url.json").write_text("[")
    roots = code_roots({"__file__": str(tmp_path / "run" / "train.py")}, {}, [str(tmp_path / "target")])
    assert is_library(str(tmp_path / "target" / "lib.py"), roots)
