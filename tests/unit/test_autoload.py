"""Loading by itself: only on request, beside the user's own configuration, without a trace."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpumagic import autoload
from gpumagic.cli import main
from gpumagic.errors import SettingError

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "jupyter-config" / "startup" / "50-gpumagic.py"

LOOK = """
import json
_ip = get_ipython()
print(json.dumps({
    "loaded": sorted(_ip.extension_manager.loaded),
    "magic": "gpuwatch" in _ip.magics_manager.magics["line"],
    "left": sorted(name for name in {**_ip.user_ns, **_ip.user_ns_hidden}
                   if "gpumagic" in name or name == "__file__"),
}))
"""
HIDE = """
import sys

class _Gone:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "gpumagic":
            raise ModuleNotFoundError("No module named 'gpumagic'", name="gpumagic")

sys.meta_path.insert(0, _Gone)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment and a user of its own for this process."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    (tmp_path / "ipython").mkdir()
    return tmp_path


# -- the commands -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "folder"),
    [
        ([], "prefix/etc/ipython/startup"),
        (["--sys-prefix"], "prefix/etc/ipython/startup"),
        (["--user"], "ipython/profile_default/startup"),
    ],
)
def test_on_and_off(
    home: Path, capsys: pytest.CaptureFixture[str], options: list[str], folder: str
) -> None:
    """``on`` copies the shipped file to where IPython looks, ``off`` takes it away again."""
    path = home / folder / "50-gpumagic.py"
    assert main(["autoload", "on", *options]) == 0
    assert path.read_bytes() == SHIPPED.read_bytes()
    assert main(["autoload", "on", *options]) == 0
    assert main(["autoload", "off", *options]) == 0
    assert not path.exists()
    assert main(["autoload", "off", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "autoload is on", "autoload is on", "autoload is off", "autoload was off",
    ]
    assert all(str(path) in line for line in lines)


def test_status(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``status`` has a line for the environment and one for the user."""
    autoload.turn_on(user=True)
    main(["autoload", "status"])
    environment, user = capsys.readouterr().out.splitlines()
    assert environment.startswith("environment: off (")
    assert user.startswith("user:        on (")
    _, path = autoload.places()
    path.write_text(f"{autoload.MARKER}\n")
    assert "another version's file" in autoload.status()
    path.write_text("print('mine')\n")
    assert "not gpumagic's" in autoload.status()


def test_a_file_of_someone_elses_stays(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of that name without gpumagic's mark is neither overwritten nor removed."""
    path, _ = autoload.places()
    path.parent.mkdir(parents=True)
    path.write_text("print('mine')\n")
    assert main(["autoload", "on"]) == 2
    assert main(["autoload", "off"]) == 2
    assert path.read_text() == "print('mine')\n"
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "move it away first" in said[0]
    assert "remove it by hand" in said[1]


def test_off_looks_at_the_other_place(home: Path) -> None:
    """Who turns off the wrong one of the two is told of the other."""
    autoload.turn_on(user=True)
    assert autoload.turn_off().endswith("autoload off --user")
    assert autoload.places()[1].exists()


def test_a_place_that_cannot_be_written(home: Path) -> None:
    """Where the environment cannot be written the way of --user is named."""
    (home / "prefix").write_text("in the way")
    with pytest.raises(SettingError, match=r"cannot be written: .*; --user"):
        autoload.turn_on()


def test_the_file_comes_from_the_wheel_or_the_checkout(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel's copy goes before the checkout's; with neither, the remedy is named."""
    package = home / "site" / "gpumagic"
    (package / "data").mkdir(parents=True)
    monkeypatch.setattr(autoload, "__file__", str(package / "autoload.py"))
    with pytest.raises(SettingError, match="pip install"):
        autoload.source()
    checkout = home / "site" / "jupyter-config" / "startup" / "50-gpumagic.py"
    checkout.parent.mkdir(parents=True)
    checkout.touch()
    assert autoload.source() == checkout
    (package / "data" / "50-gpumagic.py").touch()
    assert autoload.source() == package / "data" / "50-gpumagic.py"


def test_the_shipped_file_is_ours() -> None:
    """The shipped file bears the mark by which ``off`` knows it, and the wheel ships it."""
    assert autoload.is_ours(SHIPPED)
    build = (ROOT / "pyproject.toml").read_text()
    assert '"jupyter-config/startup/50-gpumagic.py" = "gpumagic/data/50-gpumagic.py"' in build


# -- real shells ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that sees this one's packages."""
    pytest.importorskip("IPython")
    path = tmp_path_factory.mktemp("environment")
    venv.create(path, symlinks=True, with_pip=False)
    return path


class Shell:
    """IPython in an environment and a profile of its own."""

    def __init__(self, environment: Path, ipythondir: Path) -> None:
        self.python = environment / "bin" / "python"
        self.startup = environment / "etc" / "ipython" / "startup"
        self.profile = ipythondir / "profile_default"
        self.profile.mkdir(parents=True)
        self.site = ipythondir / "site"
        self.site.mkdir()
        packages = [path for path in sys.path if path.endswith("site-packages")]
        self.variables = {
            **os.environ,
            "IPYTHONDIR": str(ipythondir),
            "PYTHONPATH": os.pathsep.join([str(self.site), str(ROOT), *packages]),
            "PYTHONWARNINGS": "default",
        }

    def autoload(self, what: str, *options: str) -> None:
        subprocess.run(
            [self.python, "-m", "gpumagic", "autoload", what, *options], check=True,
            env=self.variables, capture_output=True,
        )

    def say(self, code: str) -> list[str]:
        """Run code in a new IPython and return the lines of its standard output."""
        # Away from the checkout, since -m puts the current directory first.
        out = subprocess.run(
            [self.python, "-m", "IPython", "--no-banner", "-c", code], env=self.variables,
            cwd=self.profile, capture_output=True, text=True, check=True, timeout=60,
        )
        assert "Traceback" not in out.stdout + out.stderr
        return out.stdout.splitlines()

    def look(self) -> dict[str, Any]:
        """Start IPython and return what it tells of itself; nothing else may be said."""
        (said,) = self.say(LOOK)
        found: dict[str, Any] = json.loads(said)
        return found


@pytest.fixture
def shell(environment: Path, tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(environment, tmp_path / "ipython")
    yield shell
    for path in shell.startup.glob("*.py"):
        path.unlink()


def test_installed_is_not_enabled(shell: Shell) -> None:
    """An IPython that could import gpumagic does not load it by itself."""
    found = shell.look()
    assert "gpumagic" not in found["loaded"]
    assert found["magic"] is False


@pytest.mark.parametrize("options", [["--sys-prefix"], ["--user"]])
def test_a_real_ipython_loads_it(shell: Shell, options: list[str]) -> None:
    """After ``on`` a new IPython has the magics, and no name is left in its namespace."""
    shell.autoload("on", *options)
    found = shell.look()
    assert "gpumagic" in found["loaded"]
    assert found["magic"] is True
    assert found["left"] == []
    shell.autoload("off", *options)
    assert shell.look()["magic"] is False


def test_beside_the_users_own_extensions(shell: Shell) -> None:
    """A profile's own list of extensions is loaded as well."""
    (shell.profile / "ipython_config.py").write_text(
        'c.InteractiveShellApp.extensions = ["autoreload"]\n'
    )
    shell.autoload("on")
    loaded = shell.look()["loaded"]
    assert "gpumagic" in loaded
    assert any(name.endswith("autoreload") for name in loaded)


def test_silent_once_uninstalled(shell: Shell) -> None:
    """With the file still there and gpumagic gone, IPython starts without a word."""
    shell.autoload("on")
    (shell.site / "sitecustomize.py").write_text(HIDE)
    found = shell.look()
    assert "gpumagic" not in found["loaded"]
    assert found["left"] == []


def test_a_failure_is_one_line(shell: Shell) -> None:
    """A gpumagic that cannot be loaded costs one line that says how to end it."""
    shell.autoload("on")
    (shell.site / "gpumagic.py").write_text("import a_package_that_is_gone\n")
    first, second = shell.say("print('on')")
    assert first.startswith("gpumagic was not loaded: No module named 'a_package_that_is_gone'")
    assert first.endswith("(gpumagic autoload off ends this)")
    assert second == "on"


@pytest.mark.kernel
def test_a_real_kernel_loads_it(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After ``on`` a new kernel has the magics, with the user's own extensions beside."""
    pytest.importorskip("ipykernel")
    client = pytest.importorskip("jupyter_client")
    (shell.profile / "ipython_config.py").write_text(
        'c.InteractiveShellApp.extensions = ["autoreload"]\n'
    )
    shell.autoload("on")
    spec = tmp_path / "jupyter" / "kernels" / "probe"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text(json.dumps({
        "argv": [str(shell.python), "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "probe", "language": "python",
    }))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    said: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        if message["msg_type"] == "stream":
            said.append(message["content"]["text"])

    with client.run_kernel(kernel_name="probe", env=shell.variables) as kernel:
        kernel.execute_interactive(LOOK, timeout=60, output_hook=hear)
    found = json.loads("".join(said))
    assert "gpumagic" in found["loaded"]
    assert any(name.endswith("autoreload") for name in found["loaded"])
    assert found["magic"] is True
    assert found["left"] == []


# -- the sample of settings -------------------------------------------------------------------


def test_the_sample_is_the_settings() -> None:
    """The sample lists every setting with its default and the meaning of its trait."""
    from traitlets.config import Config

    from gpumagic.settings import GpuMagic

    text = (ROOT / "jupyter-config" / "gpumagic_config.py").read_text()
    pattern = re.compile(r"((?:^# .*\n)+)^# (c\.GpuMagic\.(\w+) = .+)\n", re.MULTILINE)
    rows = {name: (about, line) for about, line, name in pattern.findall(text)}
    traits = GpuMagic.class_own_traits(config=True)
    assert set(rows) == set(traits)
    c = Config()
    for name, (about, line) in rows.items():
        exec(line, {"c": c})
        assert c.GpuMagic[name] == traits[name].default()
        meaning = " ".join(part.removeprefix("# ") for part in about.splitlines())
        assert meaning.startswith(traits[name].help)
    assert GpuMagic(config=c).trait_values(config=True) == GpuMagic().trait_values(config=True)


def test_the_sample_changes_nothing() -> None:
    """As it is shipped the sample sets nothing."""
    from traitlets.config import Config

    c = Config()
    exec((ROOT / "jupyter-config" / "gpumagic_config.py").read_text(), {"get_config": lambda: c})
    assert dict(c) == {}
