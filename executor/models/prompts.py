"""Prompts for real runs: the reference pair's, or a JSON list of texts."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from treepipe.core.errors import UserError
from treepipe.extras import need_parquet
from treepipe.files.reading import (
    MOST_UNPACKED_BYTES,
    UNREADABLE,
    parse_json,
    read_bytes,
    read_text,
    reading_fault,
)
from treepipe.files.section import MOST
from treepipe.profiles.library import REFERENCE, REFERENCE_SET

if TYPE_CHECKING:
    from treepipe.executor.models.checkpoint import Checkpoint  # it imports PyTorch


def load_texts(name: str, base: Path, asked_by: str = "key workload.prompts") -> list[str]:
    """Load ``reference:SET[:KIND]``, a file with a JSON list of strings, or records with a
    ``prompt`` or with ``turns``, of which the first counts: JSON lines, or Parquet (SPEED-Bench).

    All kinds of a reference set are interleaved, so that the first texts hold every kind.

    Raises:
        UserError: there is no such set, or the file does not hold such a list.
    """
    if name.startswith(REFERENCE_SET):
        return _reference_texts(name, asked_by)
    path = base / name
    try:
        texts = _texts_of(path, asked_by)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file ({asked_by})") from None
    except UNREADABLE as error:
        fault = reading_fault(error)
        raise UserError(f"{path}: is not valid JSON ({asked_by}): {fault}") from None
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        raise UserError(f"{path}: must hold a JSON list of strings ({asked_by})")
    return texts


def _texts_of(path: Path, asked_by: str) -> Any:
    """Return a file's content, records as their texts. Raises one of ``UNREADABLE``."""
    if path.suffix == ".parquet":
        need_parquet(f"{path} ({asked_by})")
        from pyarrow.parquet import ParquetFile

        content = read_bytes(path)
        try:
            file = ParquetFile(BytesIO(content))
            groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
            size = sum(group.total_byte_size for group in groups)
            if size > MOST_UNPACKED_BYTES or file.metadata.num_rows > MOST:
                raise UserError(f"{path}: holds too many rows or bytes ({asked_by})")
            records = file.read().to_pylist()
        except ValueError as error:
            raise UserError(f"{path}: is not valid Parquet ({asked_by}): {error}") from None
        return [_text_of(record, f"{path}: row {n}") for n, record in enumerate(records, 1)]
    text = read_text(path)
    if not text.lstrip().startswith("{"):
        return parse_json(text)
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            record = parse_json(line or "null")
        except ValueError as error:
            raise UserError(f"{path}:{number}: is not valid JSON ({asked_by}): {error}") from None
        if record is not None:
            found.append(_text_of(record, f"{path}:{number}"))
    return found


def _text_of(record: Any, place: str) -> str:
    """Return a record's prompt, or the first of its turns."""
    known = record if isinstance(record, dict) else {}
    turns = known.get("turns")
    text = turns[0] if isinstance(turns, list) and turns else known.get("prompt")
    if isinstance(text, dict):  # a message of a chat
        text = text.get("content")
    if not isinstance(text, str) or not text:
        raise UserError(f"{place}: key prompt, or the first of key turns, must be a text")
    return text


def _reference_texts(name: str, asked_by: str) -> list[str]:
    prompts = json.loads((REFERENCE / "prompts.json").read_text(encoding="utf-8"))
    parts = name.split(":")[1:]
    kinds = parts[1:] or list(prompts)
    sets = sorted(next(iter(prompts.values())))
    if parts[0] not in sets or len(parts) > 2 or kinds[0] not in prompts:
        raise UserError(
            f"{asked_by} = {name!r}: the reference sets are "
            f"reference:{{{','.join(sets)}}}[:{{{','.join(prompts)}}}]"
        )
    columns = [prompts[kind][parts[0]] for kind in kinds]
    return [text for row in zip(*columns, strict=True) for text in row]


def tokenize(
    checkpoint: Checkpoint, texts: list[str], asked_by: str = "key workload.prompts"
) -> list[tuple[int, ...]]:
    """Compute the token ids per text with the checkpoint's ``tokenizer.json``.

    Raises:
        UserError: there is no such file, it is broken or belongs to another model, or a text has
            no tokens.
    """
    path = checkpoint.directory / "tokenizer.json"
    if not path.exists():
        raise UserError(f"{path}: there is no such file; prompts cannot be read without it")
    try:
        tokenizer = Tokenizer.from_buffer(read_bytes(path))
    except Exception as error:  # tokenizers raises no other kind
        raise UserError(f"{path}: is no usable tokenizer: {error}") from None
    found = [tuple(encoding.ids) for encoding in tokenizer.encode_batch(texts)]
    for index, tokens in enumerate(found):
        if not tokens:
            raise UserError(f"{asked_by}: prompt {index} is empty; there is nothing to continue")
        if max(tokens) >= checkpoint.vocabulary:
            raise UserError(
                f"{path}: gives prompt {index} token {max(tokens)}, but the model knows "
                f"{checkpoint.vocabulary} tokens (config.json: vocab_size)"
            )
    return found
