"""``--help`` of a service, generated from the table of its keys."""

from paceline.runtime.settings.fields import key_name
from paceline.runtime.settings.keys import ProcessKeys
from paceline.runtime.settings.sources import flag_name


def help_text(role: str, keys_class: type[ProcessKeys]) -> str:
    """Return the instructions to start a ``broker``, ``controller`` or ``gateway`` manually."""
    lines = [
        f"usage: python -m paceline.{role} [--config FILE] [--KEY VALUE ...]",
        "",
        "Each key a.b.c is a.b.c in the file, PACELINE_A_B_C in the environment and --a-b-c as a flag;",
        "flags beat the environment, the environment beats the file.",
        "",
        "  --config FILE        Java properties, for example config/dev.properties",
        "  --print-config       show every key's value and where it came from, then exit",
        "  --die-with-parent    end when the parent process does",
        "  --version            show the version",
        "",
    ]
    for field in sorted(keys_class.model_fields):
        info = keys_class.model_fields[field]
        extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
        default = "required" if info.is_required() else f"default {info.default}" if info.default is not None else ""
        facts = ", ".join(str(fact) for fact in (extra.get("unit"), default) if fact)
        note = info.description or (f"default of the topic key {extra['topic_key']}" if extra.get("topic_key") else "")
        lines.append(f"  {flag_name(key_name(field)):<50} {note}{f' ({facts})' if facts else ''}".rstrip())
    return "\n".join(lines) + "\n"
