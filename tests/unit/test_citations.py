"""Every source that code, tests and docs name can be opened: a page of docs/, its heading, a file of the repository."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CHECKED = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "benchmarks",
    "clients",
    "docs",
    "examples",
    "protos",
    "scripts",
    "services",
    "tests",
)
"""Folders and files that must not cite a document outside the repository."""

OUTSIDE = re.compile(
    r"\bspec/|\bdesign(?:\.md)? [0-9]|\bdesign\.md|\b[Dd]esign,? section|\b[Tt]raps? [A-Z]?[0-9]"
    r"|\bsections? [0-9]+(?:\.[0-9]+)?|\bphases? U\b|\bhostile inputs? H[0-9]"
    r"|\b(?:controller|experience|log-format|replica-manager|seeds-map|zookeeper)\.md (?:section|trap)"
)
PUBLIC = re.compile(r"\bRFC [0-9]+,? sections? [0-9.]+")
"""A section of a public document may be named."""

PAGE = re.compile(r"\bdocs/[A-Za-z0-9_./-]+\.md(?:#[A-Za-z0-9_-]+)?")
DECISION = re.compile(r"\bdocs/decisions/([0-9]{4})\b(?!-)")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
SUFFIXES = {".py", ".md", ".proto", ".toml", ".sh", ".yml", ".ts", ".js", ".go", ".java", ".ini"}
SKIPPED = {".git", ".venv", "node_modules", "gen", "target", "build", "dist", "__pycache__", "tmp"}


def _texts(*roots: str) -> list[Path]:
    found = []
    for root in roots:
        base = ROOT / root
        found += [base] if base.is_file() else sorted(base.rglob("*"))
    return [
        path
        for path in found
        if path.suffix in SUFFIXES and path.is_file() and not SKIPPED & set(path.relative_to(ROOT).parts)
        if path != Path(__file__)
    ]


def _everything() -> list[Path]:
    roots = ("services", "clients", "examples", "protos", "tests", "docs", "scripts", "config", "benchmarks")
    return _texts(*roots, "README.md", "CONTRIBUTING.md", "Makefile")


def _without_code(text: str) -> str:
    return re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(markdown: str) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    found: set[str] = set()
    for match in re.finditer(r"^#{1,6} +(.*?)(?: +#+)? *$", _without_code(markdown), flags=re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match[1])
        base = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        name, repeats = base, 0
        while name in found:
            repeats += 1
            name = f"{base}-{repeats}"
        found.add(name)
    return found


def _fault(target: Path, anchor: str) -> str:
    if not target.exists():
        return "no such file"
    if anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8")):
        return "no such heading"
    return ""


def dead_pages(text: str) -> list[str]:
    """Return the pages of docs/ that a text names although the page or its heading does not exist."""
    dead = []
    for name in PAGE.findall(text):
        page, _, anchor = name.partition("#")
        if fault := _fault(ROOT / page, anchor):
            dead.append(f"{name}: {fault}")
    numbers = {path.name[:4] for path in (ROOT / "docs" / "decisions").glob("*.md")}
    dead += [f"docs/decisions/{number}: no such decision" for number in DECISION.findall(text) if number not in numbers]
    return dead


def dead_links(page: Path, text: str) -> list[str]:
    """Return the relative links of a page that lead to no file or no heading."""
    dead = []
    for link in LINK.findall(re.sub(r"`[^`\n]*`", "", _without_code(text))):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        if fault := _fault(page.parent / target if target else page, anchor):
            dead.append(f"{link}: {fault}")
    return dead


def outside_citations(text: str) -> list[str]:
    """Return citations of documents that are not in the repository."""
    unwrapped = re.sub(r"\s*\n[\s#/*]*", " ", text)
    return [match[0] for match in OUTSIDE.finditer(PUBLIC.sub("", unwrapped))]


def test_every_page_of_docs_that_a_file_names_exists() -> None:
    dead = [
        f"{path.relative_to(ROOT)}: {name}" for path in _everything() for name in dead_pages(path.read_text("utf-8"))
    ]
    assert not dead, "\n".join(dead)


def test_every_relative_link_of_the_docs_resolves() -> None:
    pages = [path for path in _texts("docs", "README.md", "CONTRIBUTING.md") if path.suffix == ".md"]
    dead = [f"{page.relative_to(ROOT)}: {link}" for page in pages for link in dead_links(page, page.read_text("utf-8"))]
    assert not dead, "\n".join(dead)


@pytest.mark.parametrize("room", CHECKED)
def test_no_file_cites_a_document_outside_the_repository(room: str) -> None:
    paths = _texts(room)
    assert paths, "no such room"
    found = [
        f"{path.relative_to(ROOT)}: {cited}" for path in paths for cited in outside_citations(path.read_text("utf-8"))
    ]
    assert not found, "\n".join(found)


def test_every_file_that_a_protocol_page_names_exists() -> None:
    dead = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in _texts("docs/protocol")
        for name in re.findall(
            r"`((?:services|clients|protos|tests|docs|scripts|examples)/[^`\s*]+)`", page.read_text("utf-8")
        )
        if not (ROOT / name).exists()
    ]
    assert not dead, "\n".join(dead)


PROTOCOL_PAGES = sorted((ROOT / "docs/protocol").glob("[a-z]*.md"))


def incomplete_rules(page: str) -> list[str]:
    """Return the rules of a page without a reason, a file, or a test after the file."""
    rules = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    complete = re.compile(r"`(?:services|clients|protos|tests)/[^`]+`.*\bTests?:\s+`tests/", re.DOTALL)
    return [rule.partition("\n")[0] for rule in rules if "Reason: " not in rule or not complete.search(rule)]


@pytest.mark.parametrize("page", PROTOCOL_PAGES, ids=lambda path: path.name)
def test_every_rule_of_the_protocol_names_its_reason_its_file_and_its_test(page: Path) -> None:
    text = page.read_text("utf-8")
    assert "\n## " in text
    assert incomplete_rules(text) == []


def test_a_rule_without_a_reason_a_file_or_a_test_is_found() -> None:
    why, file, test = "Reason: so.", "File: `services/a.py`.", "Test: `tests/unit/test_a.py`."
    page = f"# Page\n\n## Complete\n\n{why} {file} {test}\n\n## No test\n\n{why} {file}\n\n## No file\n\n{why} {test}\n"
    assert incomplete_rules(f"{page}\n## No reason\n\n{file} {test}\n") == ["No test", "No file", "No reason"]


def test_anchors_follow_the_rule_of_github() -> None:
    page = "# The `acks` rule, KIP-1\n\n## Twice\n\n```\n# no heading\n```\n\n## Twice\n\n## [A link](x.md): a_b\n"
    assert anchors(page) == {"the-acks-rule-kip-1", "twice", "twice-1", "a-link-a_b"}


def test_dead_citations_are_found() -> None:
    assert dead_pages("see docs/" + "nowhere.md and docs/reliability.md") == ["docs/nowhere.md: no such file"]
    assert dead_pages("docs/reliability.md#" + "no-such-rule") == ["docs/reliability.md#no-such-rule: no such heading"]
    assert dead_links(ROOT / "README.md", "[a](nowhere.md) [b](docs/reliability.md) `[c](x)`") == [
        "nowhere.md: no such file"
    ]
    assert outside_citations("as spec/a.md\n    section\n    # 5.4 says; RFC 9110 section 9 is public") == [
        "spec/",
        "section 5.4",
    ]


def test_the_log_lines_that_operations_md_quotes_exist() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "services/paceline").rglob("*.py"))
    code = re.sub(r'"\s*f?"', "", code)  # adjacent literals are one text
    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    problems = page.partition("## Problems")[2].partition("\n## ")[0]
    quoted = re.findall(r'"([a-z][^"\n]* [^"\n]*)"', problems)
    assert len(quoted) > 5
    assert [text for text in quoted if text not in code] == []
