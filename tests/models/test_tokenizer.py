"""Loading a checkpoint's tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from packed_ss.models.tokenizer import load_tokenizer

TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}{% if add_generation_prompt %}<s>{% endif %}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    words = {"<s>": 0, "</s>": 1, "<mask>": 2, "<unk>": 3, "one": 4, "two": 5}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", mask_token="<mask>")
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "nemotron_labs_diffusion", "auto_map": {"AutoConfig": "configuration.Config"}})
    )
    return tmp_path


def set_keys(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("named", [None, "TokenizersBackend", "PreTrainedTokenizerFast", "LlamaTokenizerFast", "OwnTokenizer"])
@pytest.mark.parametrize("inside", [False, True], ids=["jinja file", "in the config"])
def test_ids_text_and_chat_template(folder: Path, named: str | None, inside: bool) -> None:
    set_keys(folder / "tokenizer_config.json", tokenizer_class=named, auto_map={"AutoTokenizer": ["tokenization.Own", None]})
    (folder / "tokenization.py").write_text("raise SystemExit('ran')")
    if inside:
        (folder / "chat_template.jinja").unlink()
        set_keys(folder / "tokenizer_config.json", chat_template=TEMPLATE)
    tokenizer = load_tokenizer(folder)
    assert tokenizer("one two one")["input_ids"] == [4, 5, 4]
    assert tokenizer.decode([5, 4, 1], skip_special_tokens=True) == "two one"
    assert tokenizer.eos_token_id == 1 and tokenizer.mask_token_id == 2
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "two"}], add_generation_prompt=True, tokenize=False)
    assert chat == "two <s>"


def test_without_a_config_of_its_own(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    assert load_tokenizer(str(folder))("two")["input_ids"] == [5]


def refusal(folder: Path) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the callers look at the message
        load_tokenizer(folder)
    assert caught.type is ValueError and "\n" not in str(caught.value)
    return str(caught.value)


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert "tokenizer.json" in refusal(folder) and str(folder) in refusal(folder)


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("text", ["{", "[]", '{"version": "1.0"'])
def test_a_broken_file_is_refused(folder: Path, file: str, text: str) -> None:
    (folder / file).write_text(text)
    assert str(folder) in refusal(folder)
