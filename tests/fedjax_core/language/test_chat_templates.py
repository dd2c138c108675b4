"""Chat templates: each is rendered as transformers does, only the assistant's turns are answers, and
nothing is cut in silence.
"""

import json

import pytest

from fedjax_core.language import chat_templates, instruction_data
from fedjax_core.language.instruction_data import Instance
from tests import reference
from tests.fedjax_core.language.test_instruction_data import END, Letters, decoded

pytest.importorskip("jinja2", reason="no jinja2: pip install -e '.[text]'")

TURNS = (("user", "Is it?"), ("assistant", "Yes."), ("user", "Sure?"), ("assistant", "No."))
CHATML = """{% for message in messages %}
{% if loop.first and message['role'] != 'system' %}
{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}
{% endif %}
{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}
{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
STRICT = """{{ bos_token }}{%- if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{%- endif %}
{%- for message in messages -%}
  {%- if message['role'] == 'assistant' %}{%- set role = 'model' %}{%- else %}{%- set role = message['role'] %}{%- endif %}
  {{- '[' + role + ']' + message['content'] | trim + eos_token }}
{%- if loop.index > 9 %}{% break %}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '[model]' }}{%- endif %}{{ messages | length | tojson }}"""
PLAIN = "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}\t|{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"


def write(folder, source, form="config"):
    tokens = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>"}
    if form == "config":
        tokens["chat_template"] = source
    elif form == "list":
        tokens["chat_template"] = [{"name": "tool_use", "template": "{{ 1 }}"}, {"name": "default", "template": source}]
    else:
        (folder / chat_templates.FILE).write_text(source)
    (folder / chat_templates.TOKENIZER_CONFIG).write_text(json.dumps(tokens))
    return chat_templates.load_chat_template(folder)


def instance(turns=TURNS) -> Instance:
    return Instance("mood", "films", turns[-2][1], turns[-2][1], (), turns[-1][1], turns)


@pytest.mark.parametrize("source", [CHATML, STRICT])
@pytest.mark.parametrize("prompt", [False, True])
def test_a_conversation_is_that_of_transformers(tmp_path, source, prompt):
    reference.library()
    from transformers.utils.chat_template_utils import render_jinja_template

    turns = TURNS[:3] if prompt else TURNS
    rows = [{"role": role, "content": content} for role, content in turns]
    options = {"add_generation_prompt": prompt, "bos_token": "<s>", "eos_token": "</s>"}
    [wanted], _ = render_jinja_template([rows], chat_template=source, **options)
    assert write(tmp_path, source).render(turns, prompt) == wanted


@pytest.mark.parametrize("form", ["config", "list", "file"])
def test_a_template_is_found_in_each_form(tmp_path, form):
    assert write(tmp_path, STRICT, form).render(TURNS[:1], True) == "<s>[user]Is it?</s>[model]1"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{% for %}", "chat template cannot be read"),
        (STRICT, "refuses messages of system, user .*no system"),
        ("{{ messages.__class__.__mro__ }}", "refuses messages of system, user .*unsafe"),
    ],
)
def test_a_template_that_does_not_serve_is_named(tmp_path, source, says):
    with pytest.raises(ValueError, match=says):
        write(tmp_path, source).render([("system", "Be kind."), ("user", "Is it?")])


def test_special_tokens_are_read_of_both_files_and_must_be_given(tmp_path):
    """tokenizer_config.json decides where both files have one; null is none."""
    config, others = tmp_path / chat_templates.TOKENIZER_CONFIG, tmp_path / chat_templates.TOKENS
    config.write_text(json.dumps({"chat_template": "{{ bos_token }}{{ messages[0].content }}", "eos_token": "</s>"}))
    with pytest.raises(ValueError, match=r"names bos_token, which is not given; a folder has it in tokenizer_config\.json or spec"):
        chat_templates.load_chat_template(tmp_path)
    others.write_text(json.dumps({"bos_token": {"content": "<b>"}}))
    assert chat_templates.load_chat_template(tmp_path).render([("user", "Hi")]) == "<b>Hi"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"bos_token": None}))
    assert chat_templates.load_chat_template(tmp_path).render([("user", "Hi")]) == "Hi"


def test_today_is_the_same_in_all_runs(tmp_path):
    assert write(tmp_path, "{{ strftime_now('%Y-%m-%d') }}").render([("user", "Hi")]) == "2024-07-26"


def test_a_folder_without_one_is_named(tmp_path):
    with pytest.raises(
        ValueError, match=r"has no chat template, in chat_template.jinja or tokenizer_config.json; take template='alp"
    ):
        chat_templates.load_chat_template(tmp_path)


def test_the_assistants_turns_alone_are_answers(tmp_path):
    template, row = write(tmp_path, PLAIN), instance()
    [(tokens, is_answer)] = instruction_data.tokenize_chats([row], Letters(), template, 99, (END,))
    assert bytes(tokens).decode() == "<u>Is it?\t|<a>Yes.\t|<u>Sure?\t|<a>No.\t"
    answers = [token for token, flag in zip(tokens, is_answer, strict=True) if flag]
    assert bytes(answers).decode() == "Yes.\tNo.\t"
    assert not any(is_answer[:14])
    [prompt] = instruction_data.tokenize_prompts([row], Letters(), 99, END, template=template)
    assert bytes(prompt).decode() == "<u>Is it?\t|<a>Yes.\t|<u>Sure?\t|<a>"
    single = Instance("mood", "films", "Is it?", "Is it?", (), "Yes.")
    [(tokens, _)] = instruction_data.tokenize_chats([single], Letters(), template, 99, (END,))
    assert bytes(tokens).decode() == "<u>Is it?\t|<a>Yes.\t"


def test_the_first_token_of_all_is_no_answer(tmp_path):
    """No token before it could predict it."""
    template = write(tmp_path, "{% for m in messages %}{{ m.content }}\t{% endfor %}")
    row = instance((("assistant", "Hi."), *TURNS[-2:]))
    [(tokens, is_answer)] = instruction_data.tokenize_chats([row], Letters(), template, 99, (END,))
    assert bytes(token for token, flag in zip(tokens, is_answer, strict=True) if flag).decode() == "i.\tNo.\t"


def test_an_empty_thought_belongs_to_the_prompt(tmp_path):
    """Qwen 3 writes it before the last answer, and after a prompt only where thinking is turned off."""
    thought = "{% if add_generation_prompt %}<a>{% if enable_thinking is false %}<think></think>{% endif %}{% endif %}"
    turns = "{% for m in messages %}<{{ m.role[0] }}>{% if loop.last and m.role == 'assistant' %}<think></think>{% endif %}"
    template = write(tmp_path, turns + "{{ m.content }}\t|{% endfor %}" + thought)
    row = instance(TURNS[-2:])
    [(tokens, is_answer)] = instruction_data.tokenize_chats([row], Letters(), template, 99, (END,))
    assert bytes(token for token, flag in zip(tokens, is_answer, strict=True) if flag).decode() == "No.\t"
    [prompt] = instruction_data.tokenize_prompts([row], Letters(), 99, END, template=template)
    assert bytes(prompt).decode().endswith("<a><think></think>")


def test_long_conversations_are_cut_as_asked_or_refused(tmp_path, caplog):
    template, row = write(tmp_path, PLAIN), instance()
    with pytest.raises(ValueError, match="films: a text has 37 tokens, limit=34"):
        instruction_data.tokenize_chats([row], Letters(), template, 34, (END,))
    [(tokens, is_answer)] = instruction_data.tokenize_chats([row], Letters(), template, 34, (END,), long="cut")
    assert bytes(tokens).decode() == "<u>it?\t|<a>Yes.\t|<u>Sure?\t|<a>No.\t"
    assert decoded(token for token, flag in zip(tokens, is_answer, strict=True) if flag) == "Yes.No."
    assert "films: 1 of 1 texts had more than 34 tokens; their beginnings were left out" in caplog.text
    [prompt] = instruction_data.tokenize_prompts([row], Letters(), 20, END, template=template, long="cut")
    assert bytes(prompt).decode() == "<u>Sure?\t|<a>"  # "Yes." would stand in the user's turn
    assert "films: 1 of 1 prompts had more than 20 tokens" in caplog.text
    system = instance((("system", "Be kind."), *TURNS))
    [(tokens, _)] = instruction_data.tokenize_chats([system], Letters(), template, 47, (END,), long="cut")
    assert bytes(tokens).decode().startswith("<s>Be kind.\t|<u>it?\t")
    [prompt] = instruction_data.tokenize_prompts([row], Letters(), 9, END, template=template, long="cut")
    assert bytes(prompt).decode() == "<u>?\t|<a>"
    for limit in range(13, 37):  # whole turns go: what is left of an answer has its own header
        [(tokens, is_answer)] = instruction_data.tokenize_chats([row], Letters(), template, limit, (END,), long="cut")
        text = bytes(tokens).decode()
        assert len(tokens) <= limit
        assert text in (f"<u>{'Is it?'[-i:]}\t|<a>Yes.\t|<u>Sure?\t|<a>No.\t" for i in range(1, 6)) or text in (
            f"<u>{'Sure?'[-i:]}\t|<a>No.\t" for i in range(1, 6)
        )
        answers = decoded(token for token, flag in zip(tokens, is_answer, strict=True) if flag)
        assert answers == ("Yes.No." if "Yes" in text else "No.")
    for limit in (6, 12):  # 13 is the template, a letter and the answer
        with pytest.raises(ValueError, match=f"limit={limit} leaves no room for a message beside an answer of 4 tokens"):
            instruction_data.tokenize_chats([row], Letters(), template, limit, (END,), long="cut")


def test_a_template_that_rewrites_earlier_turns_is_refused(tmp_path):
    """As those that leave out the thoughts of all turns but the last."""
    template = write(
        tmp_path, "{% for m in messages %}<{{ m.role[0] }}>{% if loop.last %}(hm){% endif %}{{ m.content }}\t{% endfor %}"
    )
    with pytest.raises(ValueError, match="films: the chat template writes turn 2 in another way in 4 turns"):
        instruction_data.tokenize_chats([instance()], Letters(), template, 99, (END,))


def test_conversations_are_read(tmp_path):
    rows = [{"role": role, "content": content} for role, content in TURNS]
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({"task": "mood", "dataset": "films", "messages": rows}) + "\n")
    assert instruction_data.read(path) == [instance()]
    for wrong in (rows[:3], rows[:1], [{"role": "robot", "content": "hi"}, rows[1]], "hi"):
        path.write_text(json.dumps({"task": "mood", "dataset": "films", "messages": wrong}) + "\n")
        with pytest.raises(
            ValueError, match="messages with a role of system, user, assistant and content, the last of the assistant"
        ):
            instruction_data.read(path)


def test_conversations_need_a_template():
    split = instruction_data.LeaveOneOutSplit([instance()], [instance()], ([0],), ([0],), ("films",))
    with pytest.raises(ValueError, match="conversations of several messages need template='chat'"):
        instruction_data.build_generation_data(split, Letters(), 99, END)
