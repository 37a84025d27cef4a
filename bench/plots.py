"""Draws the tables of BENCHMARKS.md as SVG, without any library. `bench/report.py --plots` writes them to docs/.

The page is the source, so that a picture never shows a figure that the page does not have.
"""

import math
import pathlib
import re
from dataclasses import dataclass
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH = 860
LEFT = 300  # where bars begin; their labels end just before
RIGHT = 110  # room for the figure behind the longest bar
ROW = 30

# A card of its own colour behind everything: readable on any page, and dark where the reader's system is.
STYLE = """<style>
 text { font: 14px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328 }
 .title { font-size: 17px; font-weight: 600 }
 .note { font-size: 13px; fill: #59636e }
 .card { fill: #ffffff; stroke: #d1d9e0 }
 .grid { stroke: #d1d9e0; fill: none }
 .axis { stroke: #59636e; fill: none }
 .ours { fill: #0969da; stroke: #0969da }
 .other { fill: #8c959f; stroke: #8c959f }
 .weak { fill: #d1d9e0; stroke: #8c959f; stroke-dasharray: 3 2 }
 .line { fill: none; stroke-width: 2.5 }
 .a { stroke: #0969da } .b { stroke: #bc4c00 }
 .dot.a { fill: #0969da } .dot.b { fill: #bc4c00 }
 @media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .note { fill: #9198a1 }
  .card { fill: #0d1117; stroke: #3d444d }
  .grid { stroke: #3d444d }
  .axis { stroke: #9198a1 }
  .ours { fill: #4493f8; stroke: #4493f8 }
  .other { fill: #7d8590; stroke: #7d8590 }
  .weak { fill: #2a313c; stroke: #7d8590 }
  .a { stroke: #4493f8 } .b { stroke: #f0883e }
  .dot.a { fill: #4493f8 } .dot.b { fill: #f0883e }
 }
</style>"""


@dataclass
class Bar:
    label: str
    value: float
    shown: str
    kind: str = "ours"


class Page:
    """The tables of a page of Markdown: each one a list of rows, each row its cells by their headings."""

    def __init__(self, text):
        self.rows = []
        header = None
        for line in text.splitlines():
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else None
            if cells is None:
                header = None
            elif header is None:
                header = cells
            elif not set(line) <= set("|-: "):
                self.rows.append(dict(zip(header, cells, strict=False)))

    def find(self, what, column=0, **wanted):
        """The rows whose cell in this column matches a pattern, and whose named cells have these values."""
        found = [
            row
            for row in self.rows
            if len(row) > column
            and re.search(what, list(row.values())[column])
            and all(row.get(name) == value for name, value in wanted.items())
        ]
        if not found:
            raise SystemExit(f"BENCHMARKS.md has no row {what!r} {wanted or ''}, which a plot needs (bench/plots.py)")
        return found


def number(cell):
    return float(re.search(r"\d[\d,]*(\.\d+)?", cell).group().replace(",", ""))


def rate(row):
    return number(next(cell for name, cell in row.items() if "second" in name))


def text(x, y, words, kind="", anchor="start"):
    name = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{name}>{escape(words)}</text>'


def picture(title, note, height, parts):
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img">\n<title>{escape(title)}</title>'
    )
    card = f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>'
    words = [text(24, 34, title, "title"), text(24, 56, note, "note")]
    return "\n".join([head, STYLE, card, *words, *parts, "</svg>"]) + "\n"


def bars(title, note, groups, scale=lambda value: value, zero_is=""):
    """Horizontal bars in named groups. They begin at the zero of the scale, and go left of it if they are less."""
    values = [scale(bar.value) for _, group in groups for bar in group]
    low, high = min(0, *values), max(values)
    start = LEFT + (56 if low < 0 else 0)

    def at(value):
        return start + (value - low) / (high - low) * (WIDTH - start - RIGHT)

    zero = at(0)
    parts, y = [], 78
    for name, group in groups:
        if name:
            parts += [text(24, y + 18, name), text(zero, y + 18, zero_is, "note", "middle")]
            y += ROW
        top = y
        for bar in group:
            end = at(scale(bar.value))
            parts.append(text(LEFT - 12, y + 19, bar.label, anchor="end"))
            parts.append(
                f'<rect class="{bar.kind}" x="{min(zero, end):.1f}" y="{y + 5}" '
                f'width="{max(abs(end - zero), 1):.1f}" height="{ROW - 10}"/>'
            )
            before = end < zero
            parts.append(text(end - 8 if before else end + 8, y + 19, bar.shown, anchor="end" if before else "start"))
            y += ROW
        parts.append(f'<path class="axis" d="M{zero:.1f} {top}V{y}"/>')
        y += 10
    return picture(title, note, y + 14, parts)


def sqlite(page):
    rows = [("bare SQLite, 1 caller", page.find("^bare: first$", callers="1")[0], "other")]
    rows += [
        (f"Onceward, {row['callers']} caller{'s' if row['callers'] != '1' else ''}", row, "ours")
        for row in page.find("^onceward: first$")
    ]
    group = [Bar(label, rate(row), f"{rate(row):,.0f}", kind) for label, row, kind in rows]
    return bars(
        "First calls per second, SQLite",
        "Intent and result each synced to disk. Callers that wait together share a commit.",
        [("", group)],
    )


def peer(row):
    """A peer of BENCHMARKS.md: how many times its rate Onceward reaches in the same run."""
    cells = list(row.values())
    name, _, rest = cells[0].removesuffix(": first").partition(" (")
    remark = rest.partition(")")[0].partition(";")[0]
    name = re.sub(r" [\d.]+(,.*)?$", "", name)
    # The last column says it, alone or after "Onceward is".
    times = number(cells[-1])
    weak = any("none before the answer" in cell for cell in cells)
    remark = remark or {"DBOS": "PostgreSQL", "Powertools": "Redis"}.get(name)
    label = name + (f", {remark}" if remark else "")
    return Bar(label, times, f"{times:g} ×", "weak" if weak else "ours")


def peers(page):
    groups = []
    for callers, name in (("1", "1 caller"), ("64", "64 callers")):
        rows = page.find(r"^(agent-effects|agent-once|effect-log) ", callers=callers)
        rows += page.find(r"^(DBOS|Powertools) .*first$", callers=callers)
        groups.append((name, [peer(row) for row in rows]))
    return bars(
        "First calls: Onceward's rate divided by the peer's",
        "Each pair is of one run on one engine; the scale is logarithmic. "
        "Dashed: the peer answers before its data is synced.",
        groups,
        scale=math.log10,
        zero_is="1 ×",
    )


def servers(page):
    def group(engine, other):
        raw = page.find(rf"^{engine} raw", callers="64")[0]
        ours = page.find(rf"^onceward on {engine}: first$", callers="64")[0]
        theirs = page.find(rf"^{other} .*first$", callers="64")[0]
        limit = {"PostgreSQL": "bare statements, pipelined", "Redis": "the bare script, pipelined"}[engine]
        found = [(limit, raw, "other"), ("Onceward", ours, "ours"), (other, theirs, "other")]
        return engine, [Bar(label, rate(row), f"{rate(row):,.0f}", kind) for label, row, kind in found]

    return bars(
        "First calls per second on servers, 64 callers",
        "Servers and clients share two cores. PostgreSQL with fsync, Redis with appendfsync always.",
        [group("PostgreSQL", "DBOS"), group("Redis", "Powertools")],
    )


def growth(page):
    rows = page.find(r"^10\^\d+$")

    def column(start):
        return next(name for name in rows[0] if name.startswith(start) and "p50" in name)

    lines = [("a", "first call", column("first")), ("b", "replay from the file", column("replay"))]

    def power(row):
        return int(row["records"].removeprefix("10^"))

    powers = [power(row) for row in rows]
    left, right, top, bottom = 120, WIDTH - 220, 84, 330

    def x(value):
        return left + (value - powers[0]) / (powers[-1] - powers[0]) * (right - left)

    def y(value):
        return bottom - math.log10(value) / 3 * (bottom - top)

    parts = []
    for tick in (1, 10, 100, 1000):
        parts += [
            f'<path class="grid" d="M{left} {y(tick):.1f}H{right}"/>',
            text(left - 34, y(tick) + 5, f"{tick:,} µs", "note", "end"),
        ]
    for each in powers:
        parts.append(text(x(each), bottom + 24, f"{10**each:,}", "note", "middle"))
    parts.append(text((left + right) / 2, bottom + 48, "records in the ledger", "note", "middle"))
    for kind, label, name in lines:
        points = [(x(power(row)), y(number(row[name])), row[name]) for row in rows]
        parts.append(f'<path class="line {kind}" d="M' + "L".join(f"{px:.1f} {py:.1f}" for px, py, _ in points) + '"/>')
        for px, py, shown in points:
            parts += [
                f'<circle class="dot {kind}" cx="{px:.1f}" cy="{py:.1f}" r="4"/>',
                text(px, py - 12, shown, anchor="middle"),
            ]
        parts.append(text(right + 26, points[-1][1] + 5, label))
    return picture(
        "How the cost of a call grows, SQLite",
        "Median time of one call with one caller; both scales are logarithmic.",
        bottom + 66,
        parts,
    )


def serve(page):
    def group(kind, name):
        rows = [row for row in page.find(rf"^{kind}: ") if "what" in row]

        def label(row):
            return row["what"].removeprefix(f"{kind}: ").removeprefix("once serve, ")

        def kind_of(row):
            return "ours" if re.search("once serve|layer", row["what"]) else "other"

        return name, [Bar(label(row), rate(row), f"{rate(row):,.0f}", kind_of(row)) for row in rows]

    return bars(
        "Requests per second through once serve, 64 connections",
        "The load generator, the server and the API behind it share two cores; the scale is logarithmic.",
        [group("replay", "Replays"), group("first", "Durable first calls")],
        scale=lambda value: math.log10(value / 100),
        zero_is="100",
    )


PLOTS = {
    "bench-sqlite.svg": sqlite,
    "bench-peers.svg": peers,
    "bench-servers.svg": servers,
    "bench-growth.svg": growth,
    "bench-serve.svg": serve,
}


def drawn():
    """Every picture as it should be: its file and its text."""
    page = Page((ROOT / "BENCHMARKS.md").read_text())
    return {ROOT / "docs" / name: draw(page) for name, draw in PLOTS.items()}


def write():
    for file, svg in drawn().items():
        file.write_text(svg)
        print(file.relative_to(ROOT))


def check():
    """Ends the program with an error if a picture does not show the figures of the page."""
    old = [file.name for file, svg in drawn().items() if not file.exists() or file.read_text() != svg]
    if old:
        raise SystemExit(f"not what BENCHMARKS.md says: {', '.join(old)}. Run: python3 bench/report.py --plots")
