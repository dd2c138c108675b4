"""Chat templates: conversations as the text that a model was trained on.

A model brings its own, in Jinja: `chat_template.jinja`, or `chat_template` in tokenizer_config.json,
or in a GGUF file. It is rendered by the package jinja2, in its sandbox (pip install
'fedjax-core[text]').
"""

import datetime
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_core.language import gguf_files
from fedjax_core.storage.json_files import read_json

FILE, TOKENIZER_CONFIG, TOKENS = "chat_template.jinja", "tokenizer_config.json", "special_tokens_map.json"
SPECIAL = frozenset(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
DATE = datetime.date(2024, 7, 26)  # "today" of all runs; templates of Llama 3 that are told none have it
ROLES = ("system", "user", "assistant")
Messages = Sequence[tuple[str, str]]  # (role, content)


class ChatTemplate:
    """A template that renders conversations."""

    def __init__(self, source: str, tokens: Mapping[str, str | None], path: str | os.PathLike):
        """Compiles a template.

        Args:
          source: in Jinja.
          tokens: texts of special tokens by the template's names for them, such as "bos_token"; None:
            the model has none.
          path: for error messages.

        Raises:
          ImportError: the package jinja2 is not installed.
          ValueError: it is no template, or names a special token that `tokens` do not have.
        """
        try:
            from jinja2 import TemplateError, meta
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError:
            raise ImportError("chat templates are rendered by the package jinja2: pip install 'fedjax-core[text]'") from None

        def refuse(message: str) -> None:
            raise TemplateError(message)

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        environment.globals |= {"raise_exception": refuse, "strftime_now": DATE.strftime}
        environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
        self._error, self._path = TemplateError, path
        self._tokens = {name: token for name, token in tokens.items() if token is not None}
        source = _drop_generation_tags(source)
        try:
            self._template = environment.from_string(source)
            named = meta.find_undeclared_variables(environment.parse(source))
        except TemplateError as error:
            raise ValueError(f"{path}: its chat template cannot be read ({error})") from None
        if missing := sorted((named & SPECIAL) - tokens.keys()):
            where = f"a folder has it in {TOKENIZER_CONFIG} or {TOKENS}, null for none"
            raise ValueError(f"{path}: its chat template names {missing[0]}, which is not given; {where}")

    def render(self, messages: Messages, prompt: bool = False) -> str:
        """Returns the text of a conversation.

        Args:
          messages: in their order.
          prompt: whether the beginning of the assistant's next turn follows.

        Raises:
          ValueError: the template refuses these messages.
        """
        rows = [{"role": role, "content": content} for role, content in messages]
        # Without thinking, Qwen 3's prompts end with an empty thought, as its answers begin.
        more = {"tools": None, "documents": None, "enable_thinking": False} | self._tokens
        try:
            return self._template.render(messages=rows, add_generation_prompt=prompt, **more)
        except self._error as error:
            roles = ", ".join(role for role, _ in messages)
            raise ValueError(f"{self._path}: the chat template refuses messages of {roles} ({error})") from None


def _drop_generation_tags(source: str) -> str:
    """Returns the template without the tags by which some mark the assistant's turns for a mask.

    >>> _drop_generation_tags("a{%- generation %}b{% endgeneration %}c")
    'a{%- if true %}b{% endif %}c'
    """
    source = re.sub(r"\{%(-?)\s*generation\s*(-?)%\}", r"{%\1 if true \2%}", source)
    return re.sub(r"\{%(-?)\s*endgeneration\s*(-?)%\}", r"{%\1 endif \2%}", source)


def load_chat_template(folder: str | os.PathLike) -> ChatTemplate:
    """Returns the template of a folder or GGUF file; raises ValueError where there is none."""
    path = Path(folder)
    if path.suffix == gguf_files.SUFFIX:
        source, tokens = gguf_files.read_chat_template(path)
        return ChatTemplate(source, tokens, path)
    config = read_json(path / TOKENIZER_CONFIG, {}) if (path / TOKENIZER_CONFIG).is_file() else {}
    source: Any = (path / FILE).read_text(encoding="utf-8") if (path / FILE).is_file() else config.get("chat_template")
    if isinstance(source, list):  # several, by name
        source = {row.get("name"): row.get("template") for row in source if isinstance(row, dict)}.get("default")
    if not isinstance(source, str):
        raise ValueError(f"{path} has no chat template, in {FILE} or {TOKENIZER_CONFIG}; take template='alpaca'")
    tokens = (read_json(path / TOKENS, {}) if (path / TOKENS).is_file() else {}) | config
    named = {name: value.get("content") if isinstance(value, dict) else value for name, value in tokens.items() if "_token" in name}
    return ChatTemplate(source, {name: value for name, value in named.items() if isinstance(value, str | None)}, path)
