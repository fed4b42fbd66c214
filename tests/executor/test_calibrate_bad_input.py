"""What ``treepipe calibrate`` refuses: one sentence, exit code 2, and no file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.worlds.command_line import SCENARIO, Terminal, call
from tests.worlds.placed import A, B, C, scenario_at
from treepipe import calibrate
from treepipe.core.errors import UserError
from treepipe.executor.measure.in_place import prompts_from_anywhere
from treepipe.executor.models.prompts import load_texts
from treepipe.profiles.library import REFERENCE, load_device
from treepipe.profiles.schema import DeviceProfile

CONFIG = REFERENCE / "target" / "config.json"
REFUSED = [
    # A device:
    ("--device tpu", "--device tpu: must be one of cpu, cuda"),
    ("--dtype int8", "quantized weights are not measured"),
    ("--dtype float", "--dtype float: must be one of float32, float16, bfloat16"),
    ("--set tokens=[0,4]", "key tokens.0 = 0"),
    ("--set tokens=1;4", 'key tokens = "1;4"'),
    ("--set tokens=[]", "key tokens = []"),
    ("--set contexts=[-1]", "key contexts.0 = -1"),
    ("--set layer=1", "key layer"),
    ("--set layers=9", "--set layers=9: reference has 8 layers"),
    ("--model no-such-model", "is neither a checkpoint directory nor a config.json"),
    ("--draft no-such-model", "--draft no-such-model: is neither"),
    ("--draft eagle-llama-2-7b", "--draft eagle-llama-2-7b: is an EAGLE head"),
    ("--model none/config.json", "there is no such file"),
    ("--model bare/config.json", "bare/config.json: key architectures"),
    ("--model bare", "bare/config.json: key"),
    # Acceptance:
    ("acceptance --draft reference --head reference", "give one of them, not both"),
    (
        "acceptance --set drafts.source=ngram --draft reference",
        "drafts.source=ngram drafts without it",
    ),
    ("acceptance --set sampling.rule=relaxed_best", "record with sampling.rule=exact"),
    ("acceptance --set sampling.rule=block", "record with sampling.rule=rejection"),
    ("acceptance --set drafts.source=tea", 'key drafts.source = "tea": input should be'),
    ("acceptance --set sampling.temperature=-1", "key sampling.temperature = -1"),
    ("acceptance --set sampling.top_p=0.5", "--set sampling.top_p: has no effect here; sampling."),
    ("acceptance --set drafts.ngram=3", "--set drafts.ngram: has no effect here; drafts.source"),
    ("acceptance --set drafts.0.ngram=3", "key drafts.0"),
    ("acceptance --set schedule.name=pp", "key schedule"),
    ("acceptance --set drafts", "setting 'drafts': must look like key=value"),
    (f"acceptance --model {CONFIG}", "needs a checkpoint with its weights"),
    ("acceptance --prompts none.json", "none.json: there is no such file (--prompts)"),
    ("acceptance --prompts reference:none", "--prompts = 'reference:none': the reference sets"),
    ("--eager", "--eager: all passes are eager; --set graphs=auto replays graphs"),
    ("--set graphs=true", "key graphs"),
    ("acceptance --set new_tokens=1020", "(--set new_tokens=1020) it must have 1 to 4"),
    ("acceptance --head none", "none"),
    ("acceptance --head reference --prompts short.json", "1 tokens; with 128 new tokens"),
    ("acceptance --out pair.json", "--out pair.json: must end in .toml"),
    ("acceptance --out none/pair.toml", "there is no folder none"),
    ("acceptance --out kept.toml", "kept.json: there is such a file already"),
    # One link:
    ("links --peer somewhere", "--peer somewhere: must be HOST:PORT"),
    ("links --peer somewhere:0", "--peer somewhere:0: must be HOST:PORT"),
    (f"links --peer {A}", f"worker '{A}' needs key run.key, the file of the key"),
    (f"links --peer {A} --key none.key", "none.key"),
    ("links --out none/link.toml", "there is no folder none"),
    ("--out link.toml links", "--out: stands before 'links' and would not count"),
    # The links of a scenario:
    (f"links hosts.toml --peer {A}", f"--peer {A}: a scenario says it"),
    ("links hosts.toml --key k", "--key k: a scenario says it"),
    ("links --scenario-out x.toml", "--scenario-out: is for a scenario's links, and no scenario"),
    ("links one.toml", "one.toml: all roles are on one host, so that there is no link to measure"),
    ("links none.toml", "none.toml: there is no such file"),
    ("links hosts.toml --scenario-out hosts.toml", "is a file that this command reads"),
    ("links hosts.toml --scenario-out /tmp/x.toml", "/tmp/x.toml: must be in the folder of"),
    ("links hosts.toml --scenario-out one.toml", "one.toml: there is such a file already"),
    ("links hosts.toml --out one.toml", "--out one.toml: is a file, not a folder"),
    ("links hosts.toml --out old", "links.toml: there is such a file already; --force"),
    ("links hosts.toml", f"worker '{A}' needs key run.key, the file of the key"),
    ("links inner.toml", "is on this host's loopback, which worker"),
    # A run, whose hosts are told by their names:
    ("run small.toml", "each draft server and stage must have a key host"),
    ("run two.toml --out one.toml", "--out one.toml: must be a folder, of profiles of a, b"),
    ("run two.toml", "key target.checkpoint is missing"),
    ("run near.toml", "host = 'a' is the name of two machines: this one and 10.0.0.2"),
    ("run far.toml", "host = 'a' is the name of two machines: 10.0.0.1 and 10.0.0.2"),
    ("run box.toml --prompts few.json", "few.json: holds 3 texts; calibrate run continues 4"),
    ("run box.toml --prompts text.json", "text.json: must hold a JSON list of strings (--prompts)"),
    ("run box.toml --prompts empty.json", "empty.json: must hold a JSON list of strings"),
    ("run box.toml --prompts number.json", "number.json: must hold a JSON list of strings"),
    ("run box.toml --prompts none.json", "none.json: there is no such file (--prompts)"),
]


@pytest.fixture
def user(terminal: Terminal) -> Terminal:
    """Who has a file of each kind that a command of ``REFUSED`` names."""
    texts = {"short": ["import"], "few": ["a", "b", "c"], "empty": [], "number": [3]}
    texts |= {"text": "a text", "kept": "mine"}
    for name, content in texts.items():
        (terminal.folder / f"{name}.json").write_text(json.dumps(content))
    scenario_at(terminal.folder, "127.0.0.1:5600", A, B, C).rename("inner.toml")
    scenario_at(terminal.folder, A, A, A, A).rename("one.toml")
    scenario_at(terminal.folder, A, B, B, C)
    hosts = {
        "box": ('host = "box"', 'host = "box"'),
        "small": ("", 'host = "box"'),
        "two": ('host = "a"', 'host = "b"'),
        "near": ('host = "a"', 'host = "a", worker = "10.0.0.2:5600"'),
        "far": ('host = "a"\nworker = "10.0.0.1:5600"', 'host = "a", worker = "10.0.0.2:5600"'),
    }
    for name, (draft, stages) in hosts.items():
        text = SCENARIO.replace("[[drafts]]\n", f"[[drafts]]\n{draft}\n")
        text = text.replace("stages = [{ ", f"stages = [{{ {stages}, ")
        (terminal.folder / f"{name}.toml").write_text(text)
    for folder, file in (("old", "links.toml"), ("bare", "config.json")):
        (terminal.folder / folder).mkdir()
        (terminal.folder / folder / file).write_text("{}")
    return terminal


@pytest.mark.parametrize(("command", "part"), REFUSED, ids=[command for command, _ in REFUSED])
def test_bad_arguments_end_in_one_sentence(user: Terminal, command: str, part: str) -> None:
    before = {*user.folder.iterdir()}
    user.refuses(part, "calibrate", *command.split())
    assert {*user.folder.iterdir()} == before, "no folder is left, either"


@pytest.mark.parametrize("command", ["", "links", "run small.toml"])
@pytest.mark.parametrize("seconds", ["inf", "nan", "0"])
def test_seconds_are_a_number_of_them(
    monkeypatch: pytest.MonkeyPatch, terminal: Terminal, command: str, seconds: str
) -> None:
    assert call(monkeypatch, "calibrate", *command.split(), "--seconds", seconds) == 2
    assert "--seconds" in terminal.capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu_is_refused(terminal: Terminal) -> None:
    terminal.refuses("--device cuda: torch", "calibrate", "--device", "cuda")


def test_what_does_not_fit_into_memory_is_refused(
    terminal: Terminal, pair: tuple[Path, Path]
) -> None:
    """A cache of 10^15 entries; the peak figures, which were measured before, are kept."""
    arguments = (
        "--model",
        pair[0],
        "--set",
        f"contexts=[{10**15}]",
        "--seconds",
        1,
        "--out",
        "device.toml",
    )
    sentence = "4 layers, caches and ends do not fit into the memory of cpu; try --set layers=1"
    terminal.fails(sentence, "calibrate", *arguments)
    profile = load_device(terminal.folder / "device.toml")
    assert isinstance(profile, DeviceProfile)
    assert profile.roofline is not None


def test_the_library_refuses_in_one_sentence() -> None:
    with pytest.raises(UserError, match="there are device, links, acceptance, run"):
        calibrate("pairs")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="option 'scenario' is missing"):
        calibrate("run")


def test_prompts_are_records_of_turns_or_of_texts(tmp_path: Path) -> None:
    records = [
        {"prompt": "a"},
        {"turns": ["b", "c"]},
        {"turns": [{"role": "user", "content": "d"}]},
    ]
    (tmp_path / "p.jsonl").write_text("\n\n".join(map(json.dumps, records)))
    assert load_texts("p.jsonl", tmp_path) == ["a", "b", "d"]
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n{"text": "b"}\n')
    with pytest.raises(UserError, match="2: key prompt, or the first of key turns"):
        load_texts("p.jsonl", tmp_path)


def test_prompts_of_speed_bench_are_the_first_turns(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = {"question_id": ["1", "2"], "category": ["math", "qa"], "turns": [["a", "b"], ["c"]]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "s.parquet")
    assert load_texts("s.parquet", tmp_path) == ["a", "c"]
    (tmp_path / "t.parquet").write_text("nothing")
    with pytest.raises(UserError, match="is not valid Parquet"):
        load_texts("t.parquet", tmp_path)


def test_prompts_are_found_from_where_the_command_is_given(terminal: Terminal) -> None:
    folder = terminal.folder / "scenarios"
    (terminal.folder / "texts.json").write_text(json.dumps(["a", "b"]))
    named = prompts_from_anywhere("texts.json")
    assert len(load_texts(named, folder)) == 2, "by a scenario in a folder of its own"
    assert prompts_from_anywhere("reference:calibration") == "reference:calibration"
