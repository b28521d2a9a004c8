"""Texts made by the template by which a model's publisher lays chats out."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lim_jax._checks import require, require_extra
from lim_jax.checkpoints.text import ChatTemplate

PROGRAM = Path(__file__).with_name("sandbox.py")
SECONDS = 30.0  # until a process is ended whose own clock did not end it


def render_chats(
    template: ChatTemplate, chats: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    """Render a template in a process of its own for each chat, and return its text or error."""
    require_extra("jinja2", "models")
    defaults = {"tools": None, "documents": None, "add_generation_prompt": True, **template.marks}
    request = {"template": template.source, "chats": [{**defaults, **chat} for chat in chats]}
    # The process finds Jinja where this one does.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", str(PROGRAM)]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(request),
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        status = done.returncode
    except subprocess.TimeoutExpired:
        done = None
        status = -1
    require(
        status == 0,
        "chat template",
        expected="one that lays a chat out",
        got="one that does not end within its second" if status < 0 else "one that breaks Jinja",
        cure="Do not trust it: take the publisher's own.",
    )
    assert done is not None
    return json.loads(done.stdout)
