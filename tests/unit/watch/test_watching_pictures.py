"""Pictures: SVG that any reader takes, with the text of the page and a bar for each call."""

import xml.etree.ElementTree as ElementTree

import numpy as np
from support.installed import ROOT
from watching_pictures import drawing, timeline_drawing

from shmring.watch.page import text
from shmring.watch.timeline import RECORD, Timeline

SVG = "{http://www.w3.org/2000/svg}"


def test_a_drawing_has_the_text_of_its_page():
    lines = [[("job <a> & 'b' \"c\"", "title")], [], [("> ", ""), ("rank 2", "keeper"), (" waits", "asleep")]]
    root = ElementTree.fromstring(drawing(lines))
    texts = ["".join(one.itertext()) for one in root.iter(f"{SVG}text")]
    assert "".join(texts) == text(lines).replace("\n", "")
    assert float(root.attrib["height"]) > 3 * 18


def timeline(rank, calls):
    found = np.zeros(len(calls), RECORD)
    for one, (start, end, waited, peer, failed) in zip(found, calls, strict=True):
        one["start_ns"], one["end_ns"], one["wait_ns"], one["waited_ns"] = start, end, start, waited
        one["peer"], one["failed"] = peer, failed
    return Timeline("", {"rank": rank}, found, 0)


def test_a_timeline_has_a_bar_for_each_call_and_for_what_it_waited():
    ranks = [
        timeline(0, [(0, 100, 90, -1, 0), (100, 120, 0, 1, 0)]),
        timeline(1, [(80, 100, 0, -1, 1), (110, 0, 0, -1, 0)]),
    ]
    root = ElementTree.fromstring(timeline_drawing(ranks))
    bars = [one.attrib for one in root.iter(f"{SVG}rect")][1:]  # the first is the ground
    assert len(bars) == 4  # one call has waited, one never ended
    assert float(bars[1]["width"]) / float(bars[0]["width"]) == 0.9
    assert len({bar["fill"] for bar in bars}) == 4


def test_a_timeline_without_calls_is_drawn():
    assert ElementTree.fromstring(timeline_drawing([timeline(0, [])])).tag == f"{SVG}svg"


def test_the_pictures_of_the_page_are_there():
    page = (ROOT / "docs/watching.md").read_text()
    pictures = sorted(ROOT.glob("docs/pictures/watching-*.svg"))
    assert len(pictures) == 4
    for path in pictures:
        assert f"pictures/{path.name}" in page
        assert ElementTree.parse(path).getroot().tag == f"{SVG}svg"
