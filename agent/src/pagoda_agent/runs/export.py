"""A run as one HTML file that needs nothing else: pictures, words and what was done."""

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment
from PIL import Image

from pagoda_agent.chinese import in_chinese
from pagoda_agent.runs.journal import FRAMES, read
from pagoda_agent.screen.marks import mark

_LONG_EDGE = 960
# Everything is escaped: texts come from models and screens.
_TEMPLATE = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
    """<!DOCTYPE html>
<html lang="{{ run.language }}"><head><meta charset="utf-8"><title>{{ run.task }}</title>
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<style>
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
img { max-width: 100%; border: 1px solid #8888; border-radius: 4px }
section { border-top: 1px solid #8888; margin-top: 2rem } pre { white-space: pre-wrap }
.note { color: #777 }
</style></head><body>
<h1>{{ run.task }}</h1>
<p class="note">{{ run.about }}</p>
{% for step in steps %}
<section><h2>{{ step.title }}</h2>
{% if step.picture %}
<img alt="{{ run.screen }}" src="data:image/jpeg;base64,{{ step.picture }}">
{% endif %}
{% for line in step.lines %}
<p><b>{{ line.kind }}</b></p><pre>{{ line.text }}</pre>
{% endfor %}
</section>
{% endfor %}
</body></html>
"""
)
_ENGLISH = {
    "about": "{run}, {model} through {driver}",
    "screen": "The screen",
    "before": "Before",
    "step": "Step {number}",
    "reply": "Model",
    "hint": "Hint",
    "answer": "Answer",
    "result": "Result",
    "not understood": "Not understood",
    "consent": "Consent",
    "allow": "Allowed",
    "lasting": "Allowed for this task",
    "deny": "Refused",
    "timeout": "Not done: nobody answered in time",
    "nobody": "Not done: nobody was there to be asked",
    "paused": "Paused",
    "waiting_user": "The model asks",
    "waiting_consent": "Wants consent",
    "done": "Done",
    "failed": "Failed",
    "cancelled": "Cancelled",
}
_CHINESE = {
    "about": "{run}，{model}，通过 {driver}",
    "screen": "屏幕",
    "before": "开始之前",
    "step": "第 {number} 步",
    "reply": "模型",
    "hint": "提示",
    "answer": "回答",
    "result": "结果",
    "not understood": "无法理解",
    "consent": "许可",
    "allow": "已允许",
    "lasting": "已在本次任务中允许",
    "deny": "已拒绝",
    "timeout": "未执行：无人及时回答",
    "nobody": "未执行：无人可询问",
    "paused": "已暂停",
    "waiting_user": "模型提问",
    "waiting_consent": "需要许可",
    "done": "完成",
    "failed": "失败",
    "cancelled": "已取消",
}
_SAID = {"hint": "text", "answer": "text", "result": "text", "not understood": "reason"}
"""The field of an event that says something."""


def export_html(folder: Path, chinese: bool = False) -> str:
    """A run as a page in English or Chinese. Raises JournalError for one that cannot be read."""
    words: Mapping[str, str] = _CHINESE if chinese else _ENGLISH
    run: dict[str, Any] = {"task": "", "about": folder.name, "screen": words["screen"]}
    run["language"] = "zh-CN" if chinese else "en"
    steps: list[dict[str, Any]] = []
    step = _new_step(words["before"])

    def add(kind: str, text: str, ours: bool = True) -> None:
        said = in_chinese(text) if chinese and ours else text
        step["lines"].append({"kind": words.get(kind, kind), "text": said})

    for event in read(folder):
        match event:
            case {"event": "start", "task": task, "model": model, "driver": driver}:
                about = words["about"].format(run=folder.name, model=model, driver=driver)
                run |= {"task": task, "about": about}
            case {"event": "step", "step": number, "frame": {"file": file}}:
                steps.append(step := _new_step(words["step"].format(number=number)))
                step["file"] = folder / FRAMES / Path(str(file)).name
            case {"event": "reply", "text": text, "tool_calls": calls}:
                called = [f"{call['name']}: {call['arguments']}" for call in calls]
                add("reply", "\n".join([text, *called]), ours=False)
            case {"event": "actions", "actions": actions}:
                step["actions"] = actions
            case {"event": "state", "state": state, "reason": reason} if reason:
                add(state, reason, ours=state != "done")
            case {"event": "consent", "verdict": verdict, "offer": offer}:
                add(verdict, offer)
            case {"event": "consent", "verdict": verdict}:
                add("consent", words.get(verdict, verdict), ours=False)
            case {"event": str(kind)} if kind in _SAID:
                add(kind, event.get(_SAID[kind], ""))
    for step in steps:
        step["picture"] = _picture(step["file"], step["actions"])
    return _TEMPLATE.render(run=run, steps=steps)


def _new_step(title: str) -> dict[str, Any]:
    return {"title": title, "actions": [], "lines": []}


def _picture(path: Path, actions: list[dict[str, Any]]) -> str:
    """A smaller JPEG in Base64, with the actions marked; nothing for a frame that is gone."""
    try:
        with Image.open(path) as image:
            small = image.convert("RGB")
    except (OSError, ValueError):
        return ""
    small.thumbnail((_LONG_EDGE, _LONG_EDGE))
    mark(small, actions)
    out = io.BytesIO()
    small.save(out, "JPEG", quality=75)
    return base64.b64encode(out.getvalue()).decode()
