"""Commands made from functions: shared options, environment, conversion of values, exit statuses."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from lmtool.cli.app import build, build_whole, convert, is_plain, option_names, root
from lmtool.cli.common_options import DEFAULT_ENDPOINT, ClientCommon, Common
from lmtool.cli.options import with_common
from lmtool.core.errors import ConnectError, LmtoolError, RequestError, ResourceError, UsageError
from lmtool.settings.option import option

if TYPE_CHECKING:
    from tests.conftest import Run

runner = CliRunner()
seen: list[tuple[Common, object]] = []


def application(function: object) -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback(invoke_without_command=True)(root)
    app.command("probe")(with_common(function))  # type: ignore[arg-type]
    return app


def probe(common: ClientCommon, word: Annotated[str, typer.Option(help="A word.")] = "none") -> None:
    """Remember what arrived."""
    seen.append((common, word))


@dataclass(frozen=True, slots=True)
class Oven:
    """A configuration whose fields are options."""

    heat: int = option(180, "Degrees.", "Kitchen", metavar="N", short="-H", minimum=50)
    fan: bool = option(True, "Blow.", "Kitchen")
    light: bool = option(False, "Shine.", "Kitchen")
    dish: tuple[str, ...] = option((), "Put in (repeatable).", "Kitchen", metavar="NAME")
    clock: str | None = option(None, "When.", "Kitchen", shown_default="now")
    colour: str = "white"

    def __post_init__(self) -> None:
        if self.heat > 300:
            raise UsageError(f"heat is {self.heat}", "less")


def bake(common: Common, oven: Oven) -> None:
    """Take a configuration."""
    seen.append((common, oven))


async def slow_probe(common: Common) -> None:
    """Remember, from a coroutine."""
    seen.append((common, "async"))


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    seen.clear()
    monkeypatch.chdir(str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.mark.parametrize("words", [["-e", "ws://a/", "-q", "probe"], ["probe", "-q", "-e", "ws://a/"]])
def test_shared_options_work_before_and_after_the_command(words: list[str]) -> None:
    """Global options work on both sides of the command's name."""
    assert runner.invoke(application(probe), words).exit_code == 0
    assert seen == [(ClientCommon(endpoint="ws://a/", quiet=True), "none")]


def test_command_knows_what_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value from the environment is a value, but nobody typed it for this command."""
    monkeypatch.setenv("LMTOOL_WORD", "set")
    runner.invoke(application(probe), ["probe"])
    runner.invoke(application(probe), ["probe", "--word", "said"])
    assert [(common.typed, word) for common, word in seen] == [(frozenset(), "set"), (frozenset({"word"}), "said")]


def test_after_beats_before() -> None:
    """Said twice, the nearer one counts."""
    runner.invoke(application(probe), ["-e", "ws://a/", "probe", "-e", "ws://b/"])
    assert seen[0][0].url == "ws://b/"


def test_default_endpoint() -> None:
    """Nothing said: the default address of `lmtool serve`."""
    assert ClientCommon().url == DEFAULT_ENDPOINT
    assert ClientCommon(endpoint="ws://127.0.0.1:9/").url == "ws://127.0.0.1:9/"


def test_what_stands_behind_the_command_wins() -> None:
    """An option said twice counts where it was said last; one said only before the command still counts."""
    outer = ClientCommon(endpoint="ws://outer/", color="never", verbose=1)
    inner = ClientCommon(endpoint="ws://inner/", quiet=True)
    assert inner.under(outer) == ClientCommon("never", quiet=True, verbose=1, endpoint="ws://inner/")
    assert inner.under(None) is inner


@pytest.mark.parametrize(("value", "wanted"), [("", False), ("0", False), ("1", True)])
def test_debug_shows_tracebacks(value: str, wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracebacks are for `-vv` and for LMTOOL_DEBUG=1."""
    monkeypatch.setenv("LMTOOL_DEBUG", value)
    assert Common().debug is wanted
    assert Common(verbose=2).debug


def test_every_option_has_its_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """LMTOOL_<OPTION> sets an option; the command line beats it."""
    monkeypatch.setenv("LMTOOL_WORD", "env")
    app = application(probe)
    runner.invoke(app, ["probe"])
    runner.invoke(app, ["probe", "--word", "option"])
    assert [word for _, word in seen] == ["env", "option"]


@pytest.mark.parametrize(
    ("words", "oven"),
    [
        ([], Oven()),
        (["-H", "200", "--no-fan", "--light"], Oven(heat=200, fan=False, light=True)),
        (["--dish", "pie", "--dish", "bread", "--clock", "noon"], Oven(dish=("pie", "bread"), clock="noon")),
    ],
)
def test_a_configuration_becomes_options(words: list[str], oven: Oven) -> None:
    """A parameter that is a dataclass stands for the options among its fields, and arrives built."""
    assert runner.invoke(application(bake), ["probe", *words]).exit_code == 0
    assert seen[0][1] == oven


def test_a_configuration_has_its_environment_range_and_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its options are like all others: a variable, a range, a default in the help; its error is a status."""
    monkeypatch.setenv("LMTOOL_HEAT", "220")
    app = application(bake)
    runner.invoke(app, ["probe"])
    assert seen[0][1] == Oven(heat=220)
    assert runner.invoke(app, ["probe", "--heat", "20"]).exit_code == 2
    assert runner.invoke(app, ["probe", "--heat", "301"]).exit_code == 2
    shown = runner.invoke(app, ["probe", "--help"]).output
    assert "[default: 180]" in " ".join(shown.split())
    assert "--colour" not in shown
    assert "--no-light" not in shown


def test_settings_file_is_weaker_than_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Option > environment > project file > default."""
    (tmp_path / "lmtool.toml").write_text("[probe]\nword = 'file'\n")
    app = application(probe)
    runner.invoke(app, ["probe"])
    monkeypatch.setenv("LMTOOL_WORD", "env")
    runner.invoke(app, ["probe"])
    assert [word for _, word in seen] == ["file", "env"]


@pytest.mark.parametrize(
    ("words", "settings", "status", "said"),
    [
        (("chat", "Hi"), "[chat]\ntemperature = 'hot'", 2, "'hot' is not a number. It is set in {}."),
        (("chat", "Hi"), "[chat]\nstop = 5", 2, "5 is not a text. It is set in {}."),
        (("chat", "Hi"), "[chat]\ntop-p = 7", 2, "--top-p is set in {}"),
        (("trace", "verify", "."), "[trace.verify]\ntimeout = -1", 2, "It is set in {}."),
        (("inspect", "x", "--plain"), "[inspect]\nspeed = 'fast'", 2, "--speed is set in {}"),
        (("info",), "endpoint = 'ftp://x'", 2, "--endpoint is set in {}"),
        (("info",), "endpoint = '127.0.0.1:1'", 3, "--endpoint is set in {}"),
        (("serve",), "[serve]\nquantize = 'x'", 2, "--quantize is set in {}"),
    ],
)
def test_a_wrong_value_names_its_file(
    lmtool: Run, words: tuple[str, ...], settings: str, status: int, said: str, tmp_path: Path
) -> None:
    """Whoever finds it: the command line's reader, or the command itself."""
    file = tmp_path / "own.toml"
    file.write_text(f"{settings}\n")
    result = lmtool(*words, "--settings", str(file))
    assert (result.returncode, result.stdout) == (status, "")
    assert said.format(file) in " ".join(result.stderr.split())


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for the environment."""
    monkeypatch.setenv("LMTOOL_TOP_P", "4")
    result = runner.invoke(build(), ["chat", "Hi"])
    assert (result.exit_code, "LMTOOL_TOP_P" in result.output) == (2, True)
    assert "is set in" not in runner.invoke(build(), ["chat", "Hi", "--top-p", "4"]).output


def test_every_variable_has_its_options_name() -> None:
    """`--timeout` is LMTOOL_TIMEOUT, whatever its parameter is called."""
    for path, names in option_names(tree := build_whole()).items():
        command = tree
        for part in path:
            command = command.commands[part]
        variables = {param.envvar for param in command.params if param.envvar}
        assert variables == {f"LMTOOL_{name.upper()}" for name in names}


def test_a_coroutine_runs_to_its_end() -> None:
    """An async command is awaited."""
    assert runner.invoke(application(slow_probe), ["probe"]).exit_code == 0
    assert seen[0][1] == "async"


@pytest.mark.parametrize(
    ("raised", "status"),
    [
        (ConnectError("x"), 3),
        (RequestError("x"), 4),
        (ResourceError("x"), 8),
        (LmtoolError("x"), 1),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError(), 70),
    ],
)
def test_exit_status(raised: BaseException, status: int) -> None:
    """Each kind of end has its documented exit status."""

    def failing(common: Common) -> None:
        raise raised

    assert runner.invoke(application(failing), ["probe"]).exit_code == status


@pytest.mark.parametrize(
    ("annotation", "word", "value"),
    [
        (str, "a b", "a b"),
        (int, "12", 12),
        (int, "-1", -1),
        (float, "1e-3", 0.001),
        (bool, "Yes", True),
        (bool, "0", False),
        (Literal["raw", "biased"], "raw", "raw"),
        (list[int], "7", 7),
    ],
)
def test_plain_types_are_converted(annotation: Any, word: str, value: object) -> None:
    """Each type that our options have becomes the value a person means."""
    assert is_plain(annotation)
    assert convert(annotation, word) == value
    assert type(convert(annotation, word)) is type(value)


@pytest.mark.parametrize(
    ("annotation", "word", "expected"),
    [
        (int, "1.5", "a whole number"),
        (float, "warm", "a number"),
        (bool, "maybe", "true or false"),
        (Literal["raw", "biased"], "rwa", "one of raw, biased"),
        (float, "nan", "a finite number"),
        (float, "-inf", "a finite number"),
        (float, [1.0], "a number"),
        (float, True, "a number"),
        (int, 1.5, "a whole number"),
        (int, True, "a whole number"),
        (int, [1], "a whole number"),
        (str, 5, "a text"),
        (list[str], 5, "a text"),
    ],
)
def test_error_names_the_expected_kind(annotation: Any, word: object, expected: str) -> None:
    """The message says what a value of this type looks like; settings files have more than words."""
    with pytest.raises(ValueError, match=expected):
        convert(annotation, word)


def test_other_types_are_left_to_typer() -> None:
    """A type we do not know is converted as typer would."""
    assert not is_plain(Path)
    assert not is_plain(dict[str, int])


PROBE = """
import sys
from typing import Annotated
import typer
from lmtool.cli.app import convert_without_pydantic
convert_without_pydantic()
def probe(
    words: Annotated[list[str] | None, typer.Argument()] = None,
    n: Annotated[int, typer.Option(min=1, max=9)] = 3,
    o: Annotated[list[str] | None, typer.Option("-o")] = None,
    flag: bool = False,
) -> None:
    print(words, n, o, flag, "pydantic" in sys.modules)
app = typer.Typer(rich_markup_mode=None)
app.command()(probe)
app()
"""


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([], 0, "None 3 None False False"),
        (["a", "b", "--n", "4", "-o", "x=1", "-o", "y", "--flag"], 0, "['a', 'b'] 4 ['x=1', 'y'] True False"),
        (["--n", "0"], 2, "less than 1"),
        (["--n", "10"], 2, "more than 9"),
        (["--n", "x"], 2, "a whole number"),
    ],
)
def test_a_whole_command_needs_no_pydantic(words: list[str], status: int, said: str) -> None:
    """Arguments, repeated options, ranges and flags work as typer's own, without loading pydantic."""
    result = subprocess.run([sys.executable, "-c", PROBE, *words], capture_output=True, text=True, check=False)
    assert result.returncode == status
    assert said in result.stdout + result.stderr


def test_bad_parameter_is_a_usage_error() -> None:
    """What typer raises for a bad value carries exit status 2."""
    assert typer.BadParameter.exit_code == 2
