"""TOML files that we write read as what was meant."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.examples import examples
from treepipe.core.errors import UserError
from treepipe.files.reading import CONTROL
from treepipe.files.toml_file import read_toml, toml_text, toml_value, tomllib

TEXT = st.characters(codec="utf-8").filter(lambda character: not CONTROL.match(character))
SCALARS = st.text(TEXT) | st.booleans()
SCALARS |= st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.dates()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab.1"), inner)
)


@examples(200)
@given(st.dictionaries(st.text("ab_1.", min_size=1), VALUES, max_size=4))
def test_what_is_written_reads_as_it_was(data: dict[str, Any]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.toml"
        path.write_text(toml_text(data), encoding="utf-8")
        assert read_toml(path) == data


@given(st.dictionaries(st.integers(0, 99), st.floats(-1e9, 1e9), min_size=1))
def test_figures_are_written_with_the_digits_that_are_known(times: dict[int, float]) -> None:
    text = toml_text({"layer": [{"ms": {0: times}}]}, ["Measured."], digits=5)
    (layer,) = tomllib.loads(text)["layer"]
    assert layer["ms"]["0"] == {str(n): float(f"{time:.5g}") for n, time in times.items()}


@pytest.mark.parametrize("value", [None, object()])
def test_what_toml_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        toml_text({"a": [value]})


@given(
    st.characters(max_codepoint=0x9F), st.sampled_from(["{} = 1", "a.b = [{}]", "a = {{b = {}}}"])
)
def test_control_characters_are_refused_and_not_shown(character: str, line: str) -> None:
    """A terminal would obey them; tabs and ends of lines are text."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.toml"
        path.write_text(line.format(f'"one\\u{ord(character):04x}two"'))
        if character in "\t\n\r" or character.isprintable() or character == "\xa0":
            assert read_toml(path)
            return
        with pytest.raises(UserError, match="holds a control character") as refused:
            read_toml(path)
    assert f"'one\\x{ord(character):02x}two'" in str(refused.value)
    with pytest.raises(UserError, match="holds a control character"):
        toml_value(f"one{character}two")


@pytest.mark.parametrize("text", ["{} = 1", "[{}]", "[[{}]]", "a = {{{} = 1}}", "# {}\n{} = 1"])
@pytest.mark.parametrize("part", ["a", " a ", '"a"', "1"])
def test_a_key_of_very_many_parts_is_refused_before_it_is_parsed(
    tmp_path: Path, text: str, part: str
) -> None:
    """Parsing one of 50,000 takes gigabytes and minutes; one of some parts is a table in tables."""
    for parts in (50_000, 20):
        path = tmp_path / "a.toml"
        path.write_text(text.replace("{}", ".".join([part] * parts)).format())
        if parts == 20:
            assert read_toml(path)
            continue
        with pytest.raises(UserError, match=r"a\.toml: cannot be read: a key has more than 100"):
            read_toml(path)


def test_many_numbers_and_sentences_on_a_line_are_no_key(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(f"# {'0.5 ' * 999}\n# {'Yes. ' * 999}{'.' * 999}\na = [{'0.5, ' * 999}]\n")
    assert read_toml(path) == {"a": [0.5] * 999}
