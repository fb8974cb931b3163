"""Parses what ``nvidia-smi topo -m`` prints, in every layout of its versions, to a matrix of words.

    <blank>  GPU0    GPU1    mlx5_0  CPU Affinity    NUMA Affinity
    GPU0      X      NV2     PIX     0-23            0
    GPU1     NV2      X      NODE    0-23            0
    mlx5_0   PIX     NODE     X

Called by `files`, `topo_matrix_model` and `topo_matrix_nvlink`. Free to change while all layouts of one machine are
read alike, and damage is refused with its line and reason (`tests/topology/importers/test_topo_matrix.py`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dgcl.topology.checks import shown

#: What a path between two devices passes, from near to far. SOC is what old drivers call SYS; PSB, a switch
#: on a board of two GPUs, they tell from PIX.
LEVELS: Mapping[str, int] = {"PSB": 1, "PIX": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5, "SOC": 5}
_NVLINKS = re.compile(r"NV([1-9]|[12][0-9]|3[0-6])")  # up to 36: NVLink 6
_GPU = re.compile(r"GPU(0|[1-9][0-9]{0,3})")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.:+-]{0,63}")
_LIST = re.compile(r"[0-9]{1,6}([,-][0-9]{1,6})*")
# Colours, and "erase the rest of the line"; underlining also as it is left where the escape character is lost.
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[mK]|\[[04]m")
_LEGEND = re.compile(r"\s*(X|SYS|SOC|NODE|PHB|PXB|PIX|PSB|NV#)\s*=.*")
_NIC_LEGEND = re.compile(r"\s*(\S+):\s+(\S+)\s*")
# The command that printed the matrix, a fence around it, or a prompt: "$", "(base) [me@node dir]$ ls", "PS C:\>".
_COMMAND = re.compile(r"```.*|.*nvidia-smi\s+topo\s.*")
_PROMPT = re.compile(
    r"(\([\w.-]+\)\s*)*"
    r"([#%>]|([$\u276f\u279c]|\[?[\w.-]+@[\w.-][^@#$%>]*[#$%>]|[\w.-]+[#$%]|(PS )?[A-Z]:\\[^>]*>)(\s.*)?)"
)
# Where a terminal wraps a line, the blank between two cells may be lost.
_GLUED = re.compile(
    r"((?:NV|GPU|NIC|mlx\d+_)\d+(?=[A-Z]|mlx)|Affinity(?=[A-Z])|\b(?:SYS|SOC|NODE|PHB|PXB|PIX|PSB)(?=[A-Z0-9]))"
)
_AFFINITIES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_MOST_BYTES = 1 << 20
_MOST_GPUS = 128  # of one machine


# GPUs and NICs may come in any order; affinity columns, rows of NICs, legends and underlining may be there or
# not. What is there must be complete and consistent: every word known, the diagonal ``X``, both directions of a
# pair equal.


@dataclass(frozen=True)
class TopoMatrix:
    """A parsed matrix.

    Attributes:
        gpus: Names in the order of their numbers, ``GPU0`` first.
        nics: Names in the order of their columns.
        words: ``[i][j]`` the word between devices i and j, GPUs before NICs; ``X`` on the diagonal. NICs that the text
            has no rows for have none here.
        numas: For each GPU its NUMA node, where its row names exactly one; else None.
        cpus: For each GPU the list of its processors; empty where there is none.
        nic_names: What the legend says that a NIC is, ``{"NIC0": "mlx5_0"}``.
        lines: The line of each row, by the name of its GPU or NIC.
    """

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    words: tuple[tuple[str, ...], ...]
    numas: tuple[int | None, ...]
    cpus: tuple[str, ...]
    nic_names: Mapping[str, str]
    lines: Mapping[str, int]


def nvlinks(word: str) -> int:
    """How many bonded NVLinks a word means: 2 for ``NV2``, 0 for other words."""
    match = _NVLINKS.fullmatch(word)
    return int(match[1]) if match else 0


@dataclass(frozen=True)
class _Row:
    line: int
    words: dict[str, str]
    affinity: tuple[str, ...]


def parse_topo_matrix(text: str) -> TopoMatrix:
    """Read what ``nvidia-smi topo -m`` printed.

    Raises:
        ValueError: Cut off, garbled or contradicting itself; names the line and the reason.
    """
    if len(text) > _MOST_BYTES:
        raise ValueError("is larger than 1 MB, too large for a matrix of nvidia-smi")
    lines = [_GLUED.sub(r"\1 ", _ESCAPES.sub("", line)).rstrip() for line in text.splitlines()]
    start = next((i for i, line in enumerate(lines) if line.strip() and not _is_command(line)), None)
    if start is None:
        raise ValueError("holds no matrix of nvidia-smi topo -m: it is empty")
    columns, affinity_columns = _header(lines[start], start + 1)
    rows: dict[str, _Row] = {}
    nic_names: dict[str, str] = {}
    ended = False
    for number, line in enumerate(lines[start + 1 :], start + 2):
        words = line.split()
        # Of two GPUs at least; a row has words for paths behind its name.
        if len(words) > 1 and all(_GPU.fullmatch(word) for word in words[:2]):
            raise ValueError(f"line {number}: a second matrix begins: each machine needs a file of its own")
        if words and words[0] in columns and not ended:
            if words[0] in rows:
                raise ValueError(
                    f"line {number}: {words[0]} has a row already, in line {rows[words[0]].line}"
                )
            rows[words[0]] = _row(words, columns, affinity_columns, number)
        elif words:
            ended = _read_footer(line, number, columns, nic_names) or ended
    return _assemble(columns, affinity_columns, rows, nic_names, len(lines))


def _is_command(line: str) -> bool:
    """Whether a line is a command or a prompt, which stand around a matrix that was copied from a terminal."""
    return _COMMAND.fullmatch(line) is not None or _PROMPT.fullmatch(line.strip()) is not None


def _header(line: str, number: int) -> tuple[list[str], tuple[str, ...]]:
    words = line.split()
    if "X" in words:
        raise ValueError(f"line {number}: a row, where the header of the matrix, GPU0 GPU1 ..., is missing")
    if not any(_GPU.fullmatch(name) for name in words):
        raise ValueError(
            f"line {number}: expected the header of a matrix, GPU0 GPU1 ... (got {shown(line.strip())})"
        )
    words = re.findall(rf"{'|'.join(_AFFINITIES)}|\S+", " ".join(words))
    for index, name in enumerate(words):
        if name in words[:index]:
            raise ValueError(f"line {number}: column {name!r} twice")
    columns = [name for name in words if name not in _AFFINITIES]
    affinities = [name for name in words if name in _AFFINITIES]
    if words != [*columns, *affinities]:
        raise ValueError(
            f"line {number}: after the affinity columns nothing belongs (got {shown(words[-1])})"
        )
    for name in columns:
        if not _NAME.fullmatch(name):
            raise ValueError(f"line {number}: {shown(name)} is no name of a GPU or NIC")
    if (
        len(columns) > 2 * _MOST_GPUS
        or sum(_GPU.fullmatch(name) is not None for name in columns) > _MOST_GPUS
    ):
        raise ValueError(f"line {number}: {len(columns)} columns, more than any machine has GPUs and NICs")
    return columns, tuple(affinities)


def _row(words: list[str], columns: list[str], affinities: tuple[str, ...], number: int) -> _Row:
    name, cells = words[0], words[1:]
    for column, cell in zip(columns, cells, strict=False):
        if cell != "X" and cell not in LEVELS and not nvlinks(cell):
            raise ValueError(
                f"line {number}: {name} to {column} must be X, NV and a number, {', '.join(LEVELS)} "
                f"(got {shown(cell)})"
            )
        if (cell == "X") != (column == name):
            raise ValueError(
                f"line {number}: {name} to {column} is {cell!r}, but X is for a device and itself alone"
            )
    if len(cells) < len(columns):
        raise ValueError(
            f"line {number}: the row of {name} ends after {len(cells)} of {len(columns)} columns"
        )
    rest = tuple(cells[len(columns) :])
    if len(rest) > len(affinities):
        raise ValueError(
            f"line {number}: the row of {name} has {len(cells)} cells, more than the "
            f"{len(columns) + len(affinities)} columns of the header"
        )
    rest = tuple("N/A" if cell == "-1" else cell for cell in rest)  # no NUMA node
    for cell in rest:
        numbers = [int(number) for number in re.findall("[0-9]+", cell)]
        if cell != "N/A" and not (_LIST.fullmatch(cell) and numbers == sorted(numbers)):
            raise ValueError(
                f"line {number}: an affinity of {name} must be a list of ascending ranges such as 0-15,32-47, or N/A"
                f" (got {shown(cell)})"
            )
    if len(rest) < len(affinities):
        # In a container that owns none of a GPU's processors, its affinities, or the first, are blank.
        if (len(rest) > 1 and not rest[0].isdigit()) or rest[-1:] not in ((), ("N/A",)):
            raise ValueError(
                f"line {number}: the row of {name} has {len(rest)} affinity cells for {len(affinities)} columns"
            )
        rest = ("",) * (len(affinities) - len(rest)) + rest
    return _Row(number, dict(zip(columns, cells, strict=False)), rest)


def _read_footer(line: str, number: int, columns: list[str], nic_names: dict[str, str]) -> bool:
    """A line that is no row: whether the matrix is over with it."""
    if _is_command(line):
        return True
    if line.strip() in ("Legend:", "NIC Legend:") or _LEGEND.fullmatch(line):
        return True
    match = _NIC_LEGEND.fullmatch(line)
    if match and match[1] in columns and not _GPU.fullmatch(match[1]):
        nic_names[match[1]] = match[2]
        return True
    raise ValueError(f"line {number}: expected a row of the matrix or its legend (got {shown(line.strip())})")


def _assemble(
    columns: list[str],
    affinity_columns: tuple[str, ...],
    rows: dict[str, _Row],
    nic_names: dict[str, str],
    num_lines: int,
) -> TopoMatrix:
    gpus = sorted((name for name in columns if _GPU.fullmatch(name)), key=lambda name: int(name[3:]))
    nics = [name for name in columns if not _GPU.fullmatch(name)]
    missing = [name for name in gpus if name not in rows]
    if missing:
        raise ValueError(
            f"line {num_lines}: the text ends without a row for {missing[0]}, which the header names"
        )
    missing = [name for name in nics if name not in rows]
    if missing and len(missing) < len(nics):
        raise ValueError(
            f"line {num_lines}: the text ends without a row for {missing[0]}, though other NICs have theirs"
        )
    for name, row in rows.items():
        for other, word in row.words.items():
            back = rows[other].words[name] if other in rows else word
            if back != word and {back, word} != {"SYS", "SOC"}:
                raise ValueError(
                    f"line {row.line}: {name} to {other} is {word}, but line {rows[other].line} says {back} "
                    f"for {other} to {name}"
                )
    for name, row in rows.items():
        for other in nics:
            if nvlinks(row.words[other]):
                raise ValueError(
                    f"line {row.line}: {name} to {other} is {row.words[other]}, but NICs have no NVLinks"
                )

    def cells(column: str, pattern: str) -> list[str]:
        """A column of affinities, for each GPU; empty where they are of another form."""
        every = [dict(zip(affinity_columns, rows[gpu].affinity, strict=True)).get(column, "") for gpu in gpus]
        return [cell if re.fullmatch(pattern, cell) else "" for cell in every]

    columns = [*gpus, *nics]
    return TopoMatrix(
        gpus=tuple(gpus),
        nics=tuple(nics),
        words=tuple(tuple(rows[name].words[other] for other in columns) for name in columns if name in rows),
        numas=tuple(int(cell) if cell else None for cell in cells("NUMA Affinity", "[0-9]{1,6}")),
        cpus=tuple(cells("CPU Affinity", _LIST.pattern)),
        nic_names=nic_names,
        lines={name: row.line for name, row in rows.items()},
    )
