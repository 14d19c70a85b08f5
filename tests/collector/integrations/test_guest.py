from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tidegauge
from collector.integrations.frameworks import with_framework
from tidegauge.integrations.callback_guard import import_framework

INTEGRATIONS = sorted(path.stem for path in Path(tidegauge.__file__).parent.glob("integrations/[a-z]*.py"))


def test_importing_tidegauge_imports_no_integration() -> None:
    code = "import sys, tidegauge; print([name for name in sys.modules if name.startswith('tidegauge.integrations')])"
    result = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout == "[]\n"


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("lightning", "pip install 'lightning'"),
        ("huggingface", "pip install 'transformers[torch]'"),
        ("ray_train", "pip install 'ray[train]'"),
    ],
)
def test_a_framework_that_is_missing_is_named_with_the_command_that_installs_it(module: str, command: str) -> None:
    assert module in INTEGRATIONS
    package = Path(tidegauge.__file__).parents[1]
    code = f"import sys; sys.path.insert(0, {str(package)!r}); import tidegauge.integrations.{module}"
    result = subprocess.run(
        [sys.executable, "-S", "-I", "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert result.stderr.splitlines()[-1].startswith("ImportError: ")
    assert command in result.stderr


def test_a_framework_that_is_there_and_broken_says_so_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_framework(monkeypatch, tmp_path, {"half_a_framework": "import a_module_that_it_needs"})
    with pytest.raises(ModuleNotFoundError, match="a_module_that_it_needs"):
        import_framework("half_a_framework", install="half-a-framework")


def test_of_several_names_the_first_that_is_installed_counts() -> None:
    assert import_framework("there_is_no_such_package", "json", install="it").__name__ == "json"
