"""How texts agree with plain decoding: to the last token, or up to ties."""

from __future__ import annotations

import pytest
import torch

from treepipe.core.requests import RequestTrace
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Computed, RequestSpec
from treepipe.validation.comparison import _plain_text
from treepipe.validation.judgement import TIE, Agreement, PlainText, RunnerUp, agreement

SPEC = RequestSpec((1, 2), 4)
RUNNERS_UP = tuple(RunnerUp(*each) for each in ((9, 5.0, 0.1), (8, 0.5, 0.1), (7, 0.9, 0.1)))
PLAIN = {(SPEC.prompt, SPEC.end_tokens): PlainText((3, 4, 5, 6, 7), (*RUNNERS_UP, *RUNNERS_UP))}


def held(*texts: tuple[int, ...], dtype: Computed = "bfloat16") -> Agreement:
    requests = [RequestTrace(1, 2, 0.0, 9.0, (), text, (), "length") for text in texts]
    return agreement([SPEC] * len(texts), Trace((), requests=requests), PLAIN, dtype)


def test_equal_texts_agree_in_every_type() -> None:
    for dtype in ("float32", "float16"):
        found = held((3, 4, 5, 6), (3, 4, 5, 6), dtype=dtype)
        assert found == Agreement(dtype, 2, 2, 8, 8, None, True)
    assert str(found) == "every text equals plain greedy decoding in float16"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_tie_is_lossless_and_named(dtype: Computed) -> None:
    found = held((3, 4, 5, 6), (3, 8, 1, 1), dtype=dtype)
    assert found == Agreement(dtype, 1, 2, 5, 8, 0.5, True, (2, 2))
    assert str(found) == (
        f"1 of 2 texts equal plain greedy decoding in {dtype}; 5 of 8 tokens are before a first "
        f"difference, where logits differ by up to 0.5 (text 2, token 2): a tie by rounding"
    )
    assert "more than rounding explains" in str(held((9, 8, 1, 1), dtype=dtype))


@pytest.mark.parametrize(
    ("dtype", "behind", "tie"),
    [
        (torch.float32, 0.0015, True),  # seen: ``generate()`` flips such a one with its chunks
        (torch.float32, 0.01, False),
        (torch.bfloat16, 0.5, True),
        (torch.bfloat16, 1.0, False),
    ],
)
def test_ties_are_told_by_the_types_roundings(dtype: torch.dtype, behind: float, tie: bool) -> None:
    row = torch.tensor([1.0, 12.0, 12.0 - behind], dtype=dtype)
    (runner,) = _plain_text([row]).runners_up
    assert runner.token == 2
    assert runner.behind == pytest.approx(behind, rel=1e-3)
    assert (runner.behind <= TIE * runner.unit) == tie


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ((9, 4, 5, 6), "the runner-up is too far behind"),
        ((3, 7, 5, 6), "another token than the runner-up"),
        ((3, 4, 7, 6), "more than eight units"),
        ((3, 4, 5), "ended early"),
    ],
)
def test_other_differences_are_no_ties(text: tuple[int, ...], why: str) -> None:
    assert not held((3, 4, 5, 6), text).lossless, why
