"""A program that lays chats out by a stranger's template, run as a file in a process of its own.

Jinja's sandbox runs no code of the template's own, but a loop in it need not end, and no thread can
be stopped: time and memory are limited as a process's. It imports nothing of this library.
"""

import json
import signal
import sys
from contextlib import suppress
from datetime import datetime
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

try:
    import resource
except ImportError:  # of Windows, where the time alone is limited, by who began the process
    resource: Any = None

SECONDS = 1.0
BYTES = 2**29
LETTERS = 2**22
# A template's today: by the day that it is a prompt would be another tomorrow, and a run that was
# interrupted would not go on.
DAY = datetime(2025, 1, 1)


class Generation(Extension):
    """``{% generation %} ... {% endgeneration %}``, which only marks what an assistant says."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> Any:
        """Parse the block, and return the statements that stand inside."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def environment() -> jinja2.Environment:
    """Return the sandboxed environment of Jinja for which templates of chats are written."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    made.globals["raise_exception"] = _refuse
    made.globals["strftime_now"] = DAY.strftime
    made.filters["tojson"] = _as_json
    return made


def main() -> int:
    """Read a template and the variables of chats as JSON, and write each one's text or error."""
    request = json.load(sys.stdin)
    _limit_memory()
    json.dump([_render(request["template"], chat) for chat in request["chats"]], sys.stdout)
    return 0


def _render(template: str, variables: dict[str, Any]) -> dict[str, str]:
    """Render a template with one chat's variables, and return the text or the error."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # the process ends where it rings
    try:
        text = environment().from_string(template).render(**variables)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    if len(text) > LETTERS:
        return {"error": f"a text of more than {LETTERS} letters"}
    return {"text": text}


def _limit_memory() -> None:
    """Limit this process's memory to `BYTES`, where the system can."""
    if resource is not None:
        with suppress(ValueError, OSError):  # some systems know no such limit
            resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))


def _refuse(message: str) -> None:
    """Raise the error by which a template refuses a chat."""
    raise jinja2.TemplateError(message)


def _as_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """Write a value as JSON, without the escapes that Jinja's own filter has for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


if __name__ == "__main__":
    sys.exit(main())
