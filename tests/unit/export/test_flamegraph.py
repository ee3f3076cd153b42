"""Flame graphs: the tree, the page and the picture."""

from __future__ import annotations

import hashlib
import json
import re
from importlib.resources import files
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.export.flame_tree import NODES_MAX, CodeKind, FlameNode, flame_tree
from bpfleakd.export.flamegraph import flamegraph_html, flamegraph_json
from bpfleakd.export.flamegraph_picture import flamegraph_svg
from bpfleakd.export.stack_values import StackValue
from bpfleakd.model.code.stack import FrameKind, StackEnd
from bpfleakd.model.report import LeakReport
from bpfleakd.web import asset

from ..samples import HOSTILE, a_frame, a_process, a_report, a_site, a_stack

MALLOC, LEAK, MAIN, START = a_stack()
BYTES = StackValue.LIVE_BYTES


def report_of(*stacks: tuple[int, tuple]) -> LeakReport:
    sites = tuple(a_site(live_bytes=live_bytes, stack=stack) for live_bytes, stack in stacks)
    return a_report(process=a_process(exe="/usr/bin/leaky"), sites=sites)


def shape(node: FlameNode) -> dict:
    return {child.name: (child.value, shape(child)) for child in node.children}


def test_stacks_share_what_they_share():
    """From the outermost frame to where they part; a node is all that goes through it."""
    other = a_frame("other")
    root = flame_tree(report_of((23, (MALLOC, LEAK, MAIN)), (101, (MALLOC, other, MAIN))), BYTES).root
    assert shape(root) == {
        "main": (124, {"leak_here": (23, {"malloc": (23, {})}), "other": (101, {"malloc": (101, {})})})
    }
    assert (root.value, root.width) == (124, 124)


def test_whose_code_it_is():
    """The program, a library, runtime-compiled, the allocator, unknown."""
    jit = a_frame("Shop::sell", module=None, kind=FrameKind.JIT)
    library = a_frame("uv_run", module="/lib/libuv.so.1")
    unknown = a_frame(None, module=None, kind=FrameKind.UNKNOWN)
    node = flame_tree(report_of((5, (MALLOC, jit, library, unknown, MAIN))), BYTES).root
    kinds = []
    while node.children:
        (node,) = node.children
        kinds.append(node.kind)
    assert kinds == [
        CodeKind.PROGRAM,
        CodeKind.UNKNOWN,
        CodeKind.LIBRARY,
        CodeKind.JIT,
        CodeKind.ALLOCATOR,
    ]


def test_a_stack_that_is_not_whole_has_a_root_of_its_own():
    """It is not drawn as if its outermost frame were the thread's first."""
    site = a_site(live_bytes=5, stack=(MALLOC, LEAK), truncated=StackEnd.DEPTH)
    root = flame_tree(a_report(sites=(site,)), BYTES).root
    assert shape(root) == {"[truncated]": (5, {"leak_here": (5, {"malloc": (5, {})})})}


def test_a_comparison_has_what_grew_shrank_came_and_went():
    """The width is the larger of the two, so sites that are gone are visible."""
    gone, new = a_frame("gone"), a_frame("new")
    now = report_of((50, (MALLOC, LEAK, MAIN)), (7, (MALLOC, new, MAIN)))
    before = report_of((20, (MALLOC, LEAK, MAIN)), (30, (MALLOC, gone, MAIN)))
    (main,) = flame_tree(now, BYTES, before).root.children
    deltas = {child.name: (child.delta, child.width) for child in main.children}
    assert deltas == {"leak_here": (30, 50), "new": (7, 7), "gone": (-30, 30)}
    assert (main.delta, main.width) == (7, 87)


def test_of_too_many_frames_the_widest_are_drawn():
    """Their figures hold what goes through the others, which are counted; no frame is without its caller."""
    stacks = [(n, (a_frame(f"leaf{n}"), a_frame(f"middle{n // 10}"), MAIN)) for n in range(1, 101)]
    report = report_of(*stacks)
    tree = flame_tree(report, BYTES, nodes_max=20)
    (main,) = tree.root.children
    assert (main.value, tree.left_out) == (5050, 1 + 11 + 100 - 20)
    middles = {child.name for child in main.children}
    drawn = {leaf.name for child in main.children for leaf in child.children}
    assert drawn == {f"leaf{n}" for n in range(100 - len(drawn) + 1, 101)}
    assert 1 + len(middles) + len(drawn) == 20


def test_a_page_says_how_much_it_leaves_out():
    """Beside the sum, which includes it."""
    stacks = [(1, (a_frame(f"leaf{n}"), MAIN)) for n in range(NODES_MAX + 23)]
    assert flamegraph_json(report_of(*stacks), BYTES)["subtitle"].endswith(
        " live, 24 narrower frames left out"
    )


@given(
    st.lists(st.tuples(st.integers(0, 50), st.lists(st.sampled_from("abc"), max_size=5)), max_size=12),
    st.lists(st.tuples(st.integers(0, 50), st.lists(st.sampled_from("abc"), max_size=5)), max_size=12),
)
def test_the_tree_is_that_of_adding_up_stack_by_stack(now, before):
    """Values, baselines and widths of any stacks, against the plain way to do it."""

    def of(rows):
        return report_of(*((size, tuple(a_frame(name) for name in names)) for size, names in rows))

    def plain(prefix):
        sums = [
            sum(size for size, names in rows if path(names)[: len(prefix)] == prefix)
            for rows in (now, before)
        ]
        names = {path(names)[: len(prefix) + 1] for _, names in (*now, *before)}
        children = {
            name[-1]: plain(name) for name in names if len(name) > len(prefix) and name[:-1] == prefix
        }
        children = {name: child for name, child in children.items() if child[2]}
        return sums[0], sums[1], max(*sums, sum(child[2] for child in children.values())), children

    def path(names):
        return tuple(reversed(names)) or ("[no stack]",)

    def drawn(node):
        return node.value, node.baseline, node.width, {child.name: drawn(child) for child in node.children}

    assert drawn(flame_tree(of(now), BYTES, of(before)).root) == plain(())


def test_nothing_without_width_is_drawn():
    """A site without outstanding bytes gets no frame."""
    assert shape(flame_tree(report_of((0, (MALLOC, LEAK, MAIN))), BYTES).root) == {}


def test_the_page_is_whole():
    """It loads nothing from anywhere, and holds its data as data, whatever names are in it."""
    page = flamegraph_html(report_of((5, (a_frame("</script><script>alert(1)"), a_frame(HOSTILE)))), BYTES)
    assert not re.search(r"""(?:src|href)\s*=|@import|url\(""", page.partition('<script id="data"')[0])
    data = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    tree = json.loads(data[1])["tree"]
    assert tree["children"][0]["children"][0]["name"] == "</script><script>alert(1)"
    assert "<script>alert(1)" not in page
    assert "\x1b" not in page
    assert page.count("<script") == page.count("</script>") == 4


def test_the_picture_is_xml_with_a_title_for_each_frame():
    """Names in full, which browsers show under the pointer."""
    svg = ElementTree.fromstring(flamegraph_svg(report_of((5, (MALLOC, a_frame("<&" * 200), MAIN))), BYTES))
    titles = [title.text.split("\n")[0] for title in svg.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["leaky, pid 4711", "main", "<&" * 200, "malloc"]
    assert "5 B (100.0%)" in next(svg.iter("{http://www.w3.org/2000/svg}title")).text


def test_widths_are_shares():
    """Two thirds of the bytes are two thirds of the width; what shares a row adds up to the row below."""
    svg = ElementTree.fromstring(flamegraph_svg(report_of((20, (MALLOC, LEAK)), (10, (MALLOC, MAIN))), BYTES))
    widths = {}
    for group in svg.iter("{http://www.w3.org/2000/svg}g"):
        rect, title = group[0], group[1]
        widths[title.text.split("\n")[0]] = float(rect.get("width"))
    assert widths["leak_here"] == 2 * widths["main"] == 800.0


def test_nothing_outstanding_can_be_drawn():
    """An empty page shows this by its figures."""
    assert "0 B live" in flamegraph_html(a_report(sites=()), BYTES)
    assert "0 B live" in flamegraph_svg(a_report(sites=()), BYTES, a_report(sites=()))


def test_what_others_wrote_is_unchanged():
    """The scripts of other projects are as scripts/vendor-assets brought them, with their licences."""
    for line in asset("vendor/CHECKSUMS").splitlines():
        digest, name = line.split()
        content = files("bpfleakd.web").joinpath("vendor", name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest
    licences = asset("vendor/LICENSES.txt")
    for project in ("d3-flame-graph", "d3-selection", "uplot"):
        assert re.search(rf"^{project} [\d.]+$", licences, re.MULTILINE)
