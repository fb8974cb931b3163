"""`nvidia-smi topo -m`: every layout is read alike, damage is refused with the line and the reason."""

import re

import pytest

from dgcl.topology.importers.topo_matrix import TopoMatrix, parse_topo_matrix
from tests.support.importer_cases import MATRIX
from tests.support.samples import named

BLOCK = [line for line in MATRIX.splitlines() if line.startswith(("\t", "GPU", "mlx"))]


def rows(matrix: TopoMatrix) -> tuple[object, ...]:
    return matrix.words, matrix.numas, matrix.cpus


def test_what_is_read():
    matrix = parse_topo_matrix(MATRIX)
    assert matrix.gpus == ("GPU0", "GPU1", "GPU2")
    assert matrix.nics == ("mlx5_0",)
    assert matrix.words[:2] == (("X", "NV2", "SYS", "PIX"), ("NV2", "X", "SYS", "PIX"))
    assert matrix.words[2:] == (("SYS", "SYS", "X", "SYS"), ("PIX", "PIX", "SYS", "X"))
    assert matrix.numas == (0, 0, 1)
    assert matrix.cpus[::2] == ("0-15,32-47", "16-31,48-63")


@pytest.mark.parametrize("links", [1, 9, 10, 18, 19, 29, 30, 36])
def test_up_to_36_nvlinks_are_read(links: int):
    """6 of Volta, 12 of Ampere, 18 of Hopper and Blackwell, 36 of NVLink 6."""
    word = f"NV{links}"
    matrix = parse_topo_matrix(MATRIX.replace("NV2", word))
    assert [row[:3] for row in matrix.words[:2]] == [("X", word, "SYS"), (word, "X", "SYS")]


def spaced(width: int) -> str:
    def columns(line: str) -> list[str]:
        cells = [cell.strip() for cell in line.split("\t")]
        return [cells[0], *(cell for cell in cells[1:] if cell)]

    lines = ["".join(cell.ljust(width) for cell in columns(line)).rstrip() for line in BLOCK]
    return "\n".join([" " * width + lines[0].lstrip(), *lines[1:]]) + "\n"


@named(
    "text",
    {
        "without a legend": "\n".join(BLOCK) + "\n",
        "without a last line break": "\n".join(BLOCK),
        "wide blanks": spaced(16),
        "narrower blanks": spaced(14),
        "tabs expanded": MATRIX.expandtabs(8),
        "line ends of another system": MATRIX.replace("\n", "\r\n"),
        "underlined, before the tab": "\x1b[4m" + MATRIX.replace("ID\n", "ID\x1b[0m\n"),
        "underlined, after the tab": "\t\x1b[4m" + MATRIX[1:].replace("ID\n", "ID\x1b[0m\n"),
        "with the command": "$ nvidia-smi topo -m\n" + MATRIX,
        "with prompts": "user@host:~$ nvidia-smi topo -m\n" + MATRIX + "user@host:~$ \n",
        "fenced": "```\n" + MATRIX + "```\n",
        "empty lines around": "\n\n" + MATRIX + "\n\n",
    },
)
def test_layouts_read_the_same(text: str):
    text = text.replace("user@host:~$ \n", "$ \n")
    assert rows(parse_topo_matrix(text)) == rows(parse_topo_matrix(MATRIX))


def test_columns_in_any_order():
    cells = [[cell.strip() for cell in line.split("\t")] for line in BLOCK]
    order = [0, 4, 3, 1, 2]
    text = "\n".join("\t".join([row[i] for i in order] + row[5:]) for row in cells)
    assert rows(parse_topo_matrix(text)) == rows(parse_topo_matrix(MATRIX))


def test_rows_in_any_order():
    text = "\n".join([BLOCK[0], *reversed(BLOCK[1:])])
    assert rows(parse_topo_matrix(text)) == rows(parse_topo_matrix(MATRIX))


def test_gpus_are_sorted_by_their_numbers():
    names = [f"GPU{i}" for i in range(11)]
    header = "\t" + "\t".join(sorted(names))
    body = [f"{a}\t" + "\t".join(" X " if a == b else "NODE" for b in sorted(names)) for a in sorted(names)]
    assert parse_topo_matrix("\n".join([header, *body])).gpus == tuple(names)


def test_gpu_rows_only():
    matrix = parse_topo_matrix("\n".join(BLOCK[:4]))
    assert [row[3] for row in matrix.words] == ["PIX", "PIX", "SYS"]


def test_one_gpu_and_names_of_nics():
    text = "\tGPU0\tNIC0\tCPU Affinity\nGPU0\t X \tPHB\t0-251\nNIC0\tPHB\t X \t\n"
    text += "\nNIC Legend:\n\n  NIC0: mlx5_0\n"
    matrix = parse_topo_matrix(text)
    assert matrix.words == (("X", "PHB"), ("PHB", "X"))
    assert matrix.nic_names == {"NIC0": "mlx5_0"}


HALF = """\
\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tSYS\tPIX\t\t\tN/A
GPU1\tNV18\t X \tNODE\tSYS\t56-111,168-223\t1\tN/A
NIC0\tSYS\tNODE\t X \tSYS
NIC1\tPIX\tSYS\tSYS\t X
"""


def test_affinities_blank_beside_others():
    matrix = parse_topo_matrix(HALF)
    assert (matrix.cpus, matrix.numas) == (("", "56-111,168-223"), (None, 1))
    older = re.sub("\tGPU NUMA ID|\tN/A", "", HALF)
    assert rows(parse_topo_matrix(older)) == rows(matrix)


@pytest.mark.parametrize(
    "whole, glued",
    [
        ("NIC0\tNIC1", "NIC0NIC1"),
        ("GPU1\tNIC0", "GPU1NIC0"),
        ("NIC1\tCPU", "NIC1CPU"),
        ("CPU Affinity\tNUMA", "CPU AffinityNUMA"),
        ("Affinity\tGPU NUMA", "AffinityGPU NUMA"),
        ("NV18\tSYS", "NV18SYS"),
        ("SYS\tPIX", "SYSPIX"),
        ("SYS\t56", "SYS56"),
        ("NODE\tSYS", "NODESYS"),
    ],
)
def test_a_blank_lost_where_a_terminal_wraps_a_line(whole: str, glued: str):
    assert whole in HALF
    assert parse_topo_matrix(HALF.replace(whole, glued)) == parse_topo_matrix(HALF)
    names = HALF.replace("NIC0", "mlx5_0").replace("NIC1", "mlx5_1")
    assert parse_topo_matrix(names.replace("mlx5_0\tmlx5_1", "mlx5_0mlx5_1")) == parse_topo_matrix(names)


def test_a_list_lost_in_a_number_of_links_is_named():
    """NV18 and 1-3, or NV1 and 81-3: nobody can say."""
    text = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tNV181-3\nGPU1\tNV18\tX\t1-3\n"
    with pytest.raises(ValueError, match=r"line 2: GPU0 to GPU1 must be .*got 'NV181-3'"):
        parse_topo_matrix(text)


@pytest.mark.parametrize(
    "prompt",
    [
        "$",
        "#",
        "me@box:~$",
        "root@box1:~#",
        "[me@node dir]$ exit",
        "(base) me@box:/data$ ",
        "(base) (venv) me@box:~$ ls",
        "bash-5.1$",
        "PS C:\\Users\\me> ",
        "C:\\Users\\me>",
        "\u276f ls",
        "\u279c  ~ git:(main)",
    ],
)
def test_prompts_are_no_rows(prompt: str):
    for before in ("", prompt + "\n", prompt + " nvidia-smi topo -m\n"):
        assert parse_topo_matrix(before + MATRIX + prompt + "\n").gpus == ("GPU0", "GPU1", "GPU2")


def swapped(line: int, a: int, b: int) -> str:
    lines = MATRIX.splitlines()
    cells = lines[line].split("\t")
    cells[a], cells[b] = cells[b], cells[a]
    lines[line] = "\t".join(cells)
    return "\n".join(lines)


@named(
    "text, message",
    {
        "nothing": ("", "empty"),
        "empty lines": ("\n\n", "empty"),
        "prose": ("to be or not to be\n", r"line 1: .*header"),
        "header cut off": ("\n".join(BLOCK[1:]), r"line 1: .*header.*missing"),
        "header alone": (BLOCK[0], r"ends without a row for GPU0"),
        "a GPU's row cut off": ("\n".join(BLOCK[:3]), r"line 3: .*without a row for GPU2"),
        "a row missing": ("\n".join([*BLOCK[:2], *BLOCK[3:]]), r"without a row for GPU1"),
        "twice": ("\n".join([*BLOCK, BLOCK[2]]), r"line 6: GPU1 has a row already, in line 3"),
        "cells missing": (MATRIX.replace("SYS\t16", "16"), r"line 4: GPU2 to mlx5_0"),
        "cut": (MATRIX.replace("SYS\t X \tSYS\t16-31,48-63\t1\t\tN/A", "SYS\t X \tS"), r"line 4.*'S'"),
        "cell empty": (MATRIX.replace("GPU2\tSYS\tSYS\t X ", "GPU2\tSYS"), r"line 4"),
        "a cell too many": (MATRIX.replace("\t\tN/A", "\t\tN/A\t7", 1), r"line 2: .*more than"),
        "one way": (MATRIX.replace("NV2", "NV3", 1), r"line 2: GPU0 to GPU1 is NV3, but line 3 says NV2"),
        "no links": (MATRIX.replace("NV2", "NV0"), r"line 2.*'NV0'"),
        "more links than there can be": (MATRIX.replace("NV2", "NV37"), r"line 2.*'NV37'"),
        "unknown word": (MATRIX.replace("NV2", "NVx", 1), r"line 2: GPU0 to GPU1 must be.*'NVx'"),
        "diagonal": (MATRIX.replace("GPU0\t X ", "GPU0\tSYS", 1), r"line 2.*'SYS', but X"),
        "columns of a row swapped": (swapped(1, 1, 2), r"line 2.*X is for a device and itself"),
        "NVLink to a NIC": (MATRIX.replace("PIX\t0-15", "NV2\t0-15"), r"NICs have no NVLinks|says"),
        "affinity cut": (MATRIX.replace("0-15,32-47", "0-15,", 1), r"line 2: an affinity.*'0-15,'"),
        "affinity missing": (MATRIX.replace("\t0\t\tN/A", "\tN/A", 1), r"line 2: .*affinity cells"),
        "a column twice": (MATRIX.replace("\tGPU0\tGPU1", "\tGPU0\tGPU0"), r"line 1: column 'GPU0' twice"),
        "affinity twice": (MATRIX.replace("GPU NUMA ID", "NUMA Affinity"), r"line 1: .*twice"),
        "late column": (
            MATRIX.replace("ID\n", "ID\tmlx5_1\n", 1),
            r"line 1: after the affinity columns .*'mlx5_1'",
        ),
        "strange line": (MATRIX.replace("Legend", "Lagend"), r"line 7: .*'Lagend:'"),
        "row after the legend": (MATRIX + "GPU3\tSYS\n", r"line 13"),
        "no GPU": ("\tNIC0\nNIC0\t X \n", r"line 1: .*GPU0"),
        "too large": ("x" * (1 << 21), r"1 MB"),
    },
)
def test_damage_is_refused(text: str, message: str):
    with pytest.raises(ValueError, match=message):
        parse_topo_matrix(text)


def test_some_nics_without_rows_are_refused():
    text = "\tGPU0\tNIC0\tNIC1\nGPU0\t X \tPIX\tPIX\nNIC0\tPIX\t X \tPIX\n"
    with pytest.raises(ValueError, match="without a row for NIC1, though other NICs have theirs"):
        parse_topo_matrix(text)


def test_a_gpu_none_of_whose_processors_may_be_used():
    """Its CPU affinity is blank; its NUMA node and what is behind it are there."""
    blank = MATRIX.replace("\t0-15,32-47\t0\t\tN/A", "\t\t0\t\tN/A")
    assert parse_topo_matrix(blank).cpus == ("", "", "16-31,48-63")
    assert parse_topo_matrix(blank).numas == (0, 0, 1)
