"""Documents can be found: the index lists them all, and links lead somewhere."""

import re

from support.installed import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/maintainers/*.md")])


def links(page):
    text = re.sub(r"^```.*?^```|^<!--.*?-->$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]


def test_the_index_lists_every_document():
    docs = ROOT / "docs"
    pages = {str(page.relative_to(docs)) for page in PAGES if page.is_relative_to(docs)}
    assert pages - {"index.md"} <= set(links(docs / "index.md"))


def test_links_between_documents_lead_somewhere():
    local = [(page, target) for page in PAGES for target in links(page) if target and "://" not in target]
    assert [(page, target) for page, target in local if not (page.parent / target).exists()] == []


def test_no_merge_is_unfinished():
    assert [page for page in PAGES if re.search(r"^(<{7}|>{7}) ", page.read_text(), re.MULTILINE)] == []


def test_pages_for_users_fit_three_screens():
    """Without the comments, which readers do not see."""
    texts = {page.name: page.read_text() for page in ROOT.glob("docs/*.md")}
    seen = {name: re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL).count("\n") for name, text in texts.items()}
    assert {name: lines for name, lines in seen.items() if lines > 160} == {}


def test_lines_of_the_readme_fit_a_terminal():
    assert [line for line in (ROOT / "README.md").read_text().splitlines() if len(line) > 100] == []
