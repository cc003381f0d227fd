"""Check that the commit can be released, and tag it; CONTRIBUTING.md has the steps before this."""

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSION, CHANGELOG, TESTS = "services/paceline/__init__.py", "CHANGELOG.md", "tests/README.md"
MANIFESTS = {"clients/java/pom.xml": r"<version>([^<]+)</version>"}
TESTED = re.compile(r"`make test-all`: \d{4}-\d\d-\d\d, commit `([0-9a-f]{7,40})`: [\d,]+ passed\b(?!.*\bfailed\b)")
PRODUCT = ("services", "clients", "protos", "examples", f":!{VERSION}")


def git(*arguments: str) -> str | None:
    """Return the output of git, or None if it failed."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return None if done.returncode else done.stdout.strip()


def first(pattern: str | re.Pattern[str], text: str) -> str:
    """Return the first group of the first match, or an empty text."""
    match = re.search(pattern, text)
    return match[1] if match else ""


def problems(version: str, texts: Mapping[str, str], ask: Callable[..., str | None] = git) -> list[str]:
    """Return the reasons against a release of these files, by path, in the repository that ``ask`` asks."""
    found = [f"the version {version} is not like 0.1.0"] if not re.fullmatch(r"\d+\.\d+\.\d+", version) else []
    for path, pattern in MANIFESTS.items():
        if (other := first(pattern, texts[path])) != version:
            found.append(f"{path} has version {other}, not {version}")
    headings = re.findall(r"(?m)^## (\S+)", texts[CHANGELOG])
    if version not in headings or "Unreleased" in headings:
        found.append(f"{CHANGELOG} has the headings {headings[:3]}, which should begin with {version}")
    commit = first(TESTED, texts[TESTS])
    if not commit:
        found.append(f"{TESTS} names no run of make test-all without a failure")
    elif ask("merge-base", "--is-ancestor", commit, "HEAD") is None:
        found.append(f"make test-all ran on {commit}, which is not in the history of this commit")
    elif ask("diff", "--quiet", commit, "HEAD", "--", *PRODUCT) is None:
        found.append(f"the product has changed since make test-all ran on {commit}")
    if ask("status", "--porcelain") != "":
        found.append("the working tree has changes that are not committed")
    if ask("rev-parse", "--verify", "--quiet", f"refs/tags/v{version}") is not None:
        found.append(f"the tag v{version} exists")
    return found


def main() -> int:
    """Print the reasons against a release, or create the tag."""
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in (VERSION, CHANGELOG, TESTS, *MANIFESTS)}
    version = first(r'__version__ = "([^"]+)"', texts[VERSION])
    found = problems(version, texts)
    if not found and git("tag", "--annotate", f"v{version}", "--message", f"Paceline {version}") is None:
        found = ["git tag failed"]
    print(*(["cannot release:", *found] if found else [f"created the tag v{version}"]), sep="\n  ")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
