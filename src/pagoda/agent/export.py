"""A run as one HTML file that needs nothing else: pictures, words and what was done."""

import base64
import io
from pathlib import Path
from typing import Any

from jinja2 import Environment
from PIL import Image

from pagoda.agent.journal import FRAMES, read
from pagoda.agent.marks import mark

_LONG_EDGE = 960
# Everything is escaped: texts come from models and screens.
_TEMPLATE = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
    """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{{ run.task }}</title>
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
{% for step in run.steps %}
<section><h2>{{ step.title }}</h2>
{% if step.picture %}
<img alt="The screen" src="data:image/jpeg;base64,{{ step.picture }}">
{% endif %}
{% for line in step.lines %}
<p><b>{{ line.kind }}</b></p><pre>{{ line.text }}</pre>
{% endfor %}
</section>
{% endfor %}
</body></html>
"""
)
_SHOWN = {
    "hint": ("Hint", "text"),
    "answer": ("Answer", "text"),
    "result": ("Result", "text"),
    "not understood": ("Not understood", "reason"),
    "consent": ("Consent", "verdict"),
}


def export_html(folder: Path) -> str:
    """Raises JournalError for a run that cannot be read."""
    run: dict[str, Any] = {"task": "", "about": folder.name, "steps": []}
    step = _new_step("Before")
    for event in read(folder):
        match event:
            case {"event": "start", "task": task, "model": model, "driver": driver}:
                run |= {"task": task, "about": f"{folder.name}, {model} through {driver}"}
            case {"event": "step", "step": number, "frame": {"file": file}}:
                run["steps"].append(step := _new_step(f"Step {number}"))
                step["file"] = folder / FRAMES / Path(str(file)).name
            case {"event": "reply", "text": text, "tool_calls": calls}:
                called = [f"{call['name']}: {call['arguments']}" for call in calls]
                step["lines"].append({"kind": "Model", "text": "\n".join([text, *called])})
            case {"event": "actions", "actions": actions}:
                step["actions"] = actions
            case {"event": "state", "state": state, "reason": reason} if reason:
                step["lines"].append({"kind": str(state).capitalize(), "text": reason})
            case {"event": str(kind)} if kind in _SHOWN:
                title, field = _SHOWN[kind]
                step["lines"].append({"kind": title, "text": event.get(field, "")})
    for step in run["steps"]:
        step["picture"] = _picture(step["file"], step["actions"])
    return _TEMPLATE.render(run=run)


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
