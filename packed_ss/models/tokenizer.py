"""The tokenizer of a checkpoint, as its own files describe it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from .loading import resolve_folder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def load_tokenizer(path_or_id: str | os.PathLike[str], *, revision: str | None = None) -> PreTrainedTokenizerFast:
    """The tokenizer of a checkpoint with its chat template; ``path_or_id`` is as `load_model` takes it.

    Built from ``tokenizer.json``, whatever class the checkpoint names: classes come with code of their own, which is
    never run, and the model types of dual-mode checkpoints are unknown to them.  Raises ValueError for missing or
    unreadable files.
    """
    folder = resolve_folder(path_or_id, revision)
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(f"{folder} holds no tokenizer.json")
    from transformers import PreTrainedTokenizerFast

    try:
        return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        reason = re.sub(r"\s+", " ", str(error)).rstrip(".")
        raise ValueError(f"the tokenizer in {folder} cannot be read: {reason}") from None
