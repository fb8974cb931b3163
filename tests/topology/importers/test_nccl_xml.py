"""NCCL's topology files: what is read of them, what is refused, what is told to be missing."""

import pytest

from dgcl.topology.draft import Imported
from dgcl.topology.importers.nccl_xml import parse_nccl_xml
from dgcl.topology.machine_topology import machine_topology
from tests.support.importer_cases import XML, wires
from tests.support.samples import named


def imported(text: str) -> Imported:
    return machine_topology(parse_nccl_xml(text.encode()), "t")


def gpu(address: str, dev: int, links: str = "", sm: str = 'sm="80"', speed: str = "16 GT/s") -> str:
    return (
        f'<pci busid="{address}" class="0x030200" link_speed="{speed}" link_width="16">'
        f'<gpu dev="{dev}" {sm} rank="{dev}" gdr="1">{links}</gpu></pci>'
    )


def system(*cpus: str, version: int = 1) -> str:
    return f'<system version="{version}">{"".join(cpus)}</system>'


def cpu(numa: int, below: str, more: str = "") -> str:
    return f'<cpu numaid="{numa}" {more}>{below}</cpu>'


def test_the_hand_made_machine():
    found = imported(XML)
    assert wires(found.topology) == pytest.approx(
        {
            ("pci-03:00.0", "cpu0", "PCIe"): 12.0,
            ("gpu0", "pci-03:00.0", "PCIe"): 12.0,
            ("gpu1", "pci-03:00.0", "PCIe"): 12.0,
            ("mlx5_0", "pci-03:00.0", "PCIe"): 12.0,
            ("mlx5_0", "mlx5_0.port", "net"): 12.5,
            ("gpu2", "cpu1", "PCIe"): 6.0,  # eight lanes
            ("cpu0", "cpu1", "UPI"): 10.0,
            ("gpu0", "gpu1", "NV2"): 48.4,
        }
    )
    assert [(d.name, d.machine, d.socket) for d in found.topology.devices] == [
        ("gpu0", 0, 0),
        ("gpu1", 0, 0),
        ("gpu2", 0, 1),
    ]
    assert found.notes == ()


def test_nvswitches_are_one_and_a_gpus_links_one_port():
    links = "".join(
        f'<nvlink target="0000:c{i}:00.0" count="{count}" tclass="0x068000"/>'
        for i, count in enumerate((5, 5, 4, 4))
    )
    sm = 'sm="90"'
    text = system(cpu(0, gpu("0000:01:00.0", 0, links, sm) + gpu("0000:02:00.0", 1, links, sm)))
    found = wires(imported(text).topology)
    assert found["gpu0", "nvswitch", "NV18"] == pytest.approx(376.2)
    assert ("gpu1", "nvswitch", "NV18") in found


def test_links_to_the_processor():
    power = '<nvlink target="0004:00:00.0" count="3" tclass="0x068001"/>'
    grace = '<c2c bw="44712" count="10"/>'
    text = system(
        cpu(0, gpu("0000:01:00.0", 0, power, 'sm="70"'), 'arch="ppc64"'),
        cpu(8, gpu("0000:02:00.0", 1, grace, 'sm="90"'), 'arch="ppc64"'),
    )
    found = wires(imported(text).topology)
    assert found["gpu0", "cpu0", "NV3"] == pytest.approx(72.6)
    assert found["gpu1", "cpu8", "C2C"] == pytest.approx(447.12)
    assert found["cpu0", "cpu8", "X-bus"] == 32.0


def test_xgmi():
    def link(target: str) -> str:
        return f'<xgmi target="{target}" count="4" tclass="0x038000"/>'

    amd = 'sm="104" gcn="910" arch="38911"'
    text = system(
        cpu(
            0,
            gpu("0000:01:00.0", 0, link("0000:02:00.0"), amd)
            + gpu("0000:02:00.0", 1, link("0000:01:00.0"), amd),
        ),
        version=2,
    )
    assert wires(imported(text).topology)["gpu0", "gpu1", "XGMI4"] == 144.0


def test_ranks_order_the_devices():
    text = XML.replace('rank="0"', 'rank="7"')
    assert [device.name for device in imported(text).topology.devices] == ["gpu1", "gpu2", "gpu0"]


def test_addresses_order_devices_without_ranks():
    bare = [
        f'<pci busid="000{i}:00:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>'
        for i in (3, 1, 2)
    ]
    found = imported(system(cpu(0, bare[0]), cpu(1, "".join(bare[1:]))))
    assert [(d.name, d.socket) for d in found.topology.devices] == [("gpu0", 1), ("gpu1", 1), ("gpu2", 0)]
    assert "the 3 PCI devices of class GPU were taken for them" in found.notes[0]


@pytest.mark.parametrize("target", ["ffff:ff:ff.0", "fffffff:ffff:ff", "FFFFFFFF:FFFF:FF"])
def test_several_machines_of_one_nvlink_domain(target: str):
    link = f'<nvlink target="{target}" count="18" tclass="0x068000"/>'
    text = system(
        cpu(0, gpu("0000:01:00.0", 0, link, 'sm="100"'), 'host_hash="0xa"'),
        cpu(0, gpu("0000:01:00.0", 0, link, 'sm="100"').replace('rank="0"', 'rank="1"'), 'host_hash="0xb"'),
    )
    machine = imported(text)
    found = machine.topology
    assert [(d.name, d.machine) for d in found.devices] == [("m0.gpu0", 0), ("m1.gpu0", 1)]
    assert {("m0.gpu0", "nvswitch", "NV18"), ("m1.gpu0", "nvswitch", "NV18")} <= set(wires(found))
    assert "the file describes 2 machines, by the host_hash of its <cpu>" in machine.notes


def test_nics_of_two_ports_and_without_a_pci_device():
    nic = (
        '<pci busid="0000:05:00.0" class="0x020000" link_speed="32.0 GT/s PCIe" link_width="16"><nic>'
        '<net name="a" dev="0" speed="200000"/><net name="b" dev="1" speed="200000"/>'
        '<net name="a" dev="2" speed="200000" coll="1"/></nic></pci>'
        '<nic><net name="eth0" dev="3" speed="100000"/></nic>'
    )
    found = wires(imported(system(cpu(0, gpu("0000:01:00.0", 0) + nic))).topology)
    assert found["a", "cpu0", "PCIe"] == 48.0
    assert (found["a", "a.port", "net"], found["a", "b.port", "net"]) == (25.0, 25.0)
    assert (found["eth0", "cpu0", "bus"], found["eth0", "eth0.port", "net"]) == (12.5, 12.5)


def test_ports_that_are_listed_for_collectives_only():
    nic = (
        '<pci busid="0000:05:00.0" class="0x020000" link_speed="32.0 GT/s PCIe" link_width="16"><nic>'
        '<net name="a" dev="0" speed="400000" coll="1"/><net name="b" dev="1" speed="400000"/></nic></pci>'
        '<nic><net name="b" dev="2" speed="400000" coll="1"/></nic>'
    )
    found = imported(system(cpu(0, gpu("0000:01:00.0", 0) + nic)))
    assert [key[0] for key in wires(found.topology) if key[1].endswith(".port")] == ["a", "a"]
    assert [key[1] for key in wires(found.topology) if key[1].endswith(".port")] == ["a.port", "b.port"]


def test_virtual_interfaces_are_left_out():
    virtual = (
        "docker0",
        "br-0123456789ab",
        "br-int",
        "veth1a2b3c4",
        "virbr0",
        "vnet3",
        "cali0f",
        "lo",
        "tap0",
        "tun1",
        "tap1a2b3c4d-5e",
        "tunl0",
        "ovs-system",
        "genev_sys_6081",
        "azv1a2b3c4d5e6",
        "eni8d3f1c2b7a0",
        "cbr0",
        "vmnet8",
        "fwbr101i0",
        "gretap0",
        "macvlan0",
        "eth0.100",
    )
    physical = (
        "eth0",
        "bond0",
        "br0",
        "enp5s0f0",
        "ens3",
        "ib0",
        "mlx5_0",
        "loom",
        "eno1",
        "greatest",
        "eth7.2",
    )
    nets = "".join(f'<net name="{name}" speed="10000"/>' for name in (*virtual, *physical))
    found = imported(system(cpu(0, gpu("0000:01:00.0", 0) + f"<nic>{nets}</nic>")))
    ports = [c.b.removesuffix(".port") for c in found.topology.connections if c.b.endswith(".port")]
    assert ports == list(physical)
    (note,) = [note for note in found.notes if "virtual" in note]
    assert "br-0123456789ab, br-int" in note
    assert note.endswith("vnet3 left out")


def test_a_port_of_an_endless_name_is_refused():
    text = system(cpu(0, gpu("0000:01:00.0", 0) + f'<nic><net name="{"x" * 5000}" speed="10000"/></nic>'))
    with pytest.raises(ValueError, match=r"line \d+: name must be printable text of at most 60") as raised:
        imported(text)
    assert len(str(raised.value)) < 200


def test_a_port_of_two_speeds_is_refused():
    nets = '<net name="eth0" speed="10000"/>\n<net name="eth0" speed="{}"/>'
    text = system(cpu(0, gpu("0000:01:00.0", 0) + f"<nic>{nets}</nic>"))
    assert imported(text.format(10000)).topology.switches.count("eth0.port") == 1
    with pytest.raises(ValueError, match=r"line \d+: a second <net> 'eth0', of another speed"):
        imported(text.format(25000))


def test_links_to_the_processor_are_one_wire():
    """POWER9 lists each NVLink to the processor by itself, or all as one."""
    one = '<nvlink target="0000:00:00.{}" count="{}" tclass="0x068001"/>'
    three = imported(system(cpu(0, gpu("0000:01:00.0", 0, "".join(one.format(i, 1) for i in range(3))))))
    whole = imported(system(cpu(0, gpu("0000:01:00.0", 0, one.format(0, 3)))))
    assert {kind for _, _, kind in wires(three.topology)} == {"PCIe", "NV3"}
    assert three.topology.connections == whole.topology.connections


def test_what_is_missing_is_told():
    text = system(
        cpu(0, gpu("0000:01:00.0", 0, speed="") + gpu("0000:02:00.0", 1, speed="Unknown")),
        cpu(1, gpu("0000:03:00.0", 2) + '<pci busid="0000:04:00.0" class="0x020000" link_width="0"/>'),
    )
    notes = "\n".join(imported(text).notes)
    assert "3 PCIe devices do not tell their speed: generation 3 x16, 12 GB/s, was assumed" in notes
    assert "what joins the NUMA nodes is not told: 10 GB/s was assumed" in notes
    assert "network cards have no ports in the source" in notes


def test_links_that_lead_nowhere_are_told():
    own = '<nvlink target="0000:01:00.0" count="12" tclass="0x030200"/>'
    gone = '<nvlink target="0000:99:00.0" count="2" tclass="0x030200"/>'
    found = imported(system(cpu(0, gpu("0000:01:00.0", 0, own) + gpu("0000:02:00.0", 1, gone))))
    assert {kind for _, _, kind in wires(found.topology)} == {"PCIe"}
    notes = "\n".join(found.notes)
    assert "12 NVLinks of gpu0 lead to 0000:01:00.0, which is no other GPU here: left out" in notes
    assert "2 NVLinks of gpu1 lead to 0000:99:00.0, which is no other GPU here: left out" in notes


def test_a_virtual_port_is_told():
    slow = XML.replace('link_speed="8 GT/s" link_width="16"', 'link_speed="2.5 GT/s" link_width="1"', 1)
    found = imported(slow)
    assert wires(found.topology)["pci-03:00.0", "cpu0", "PCIe"] == pytest.approx(12 * 2.5 / 8 / 16)
    assert any("pci-03:00.0 has one lane of 2.5 GT/s, above faster devices" in note for note in found.notes)
    assert not imported(XML).notes


def test_attributes_of_newer_versions_are_told():
    found = imported(XML.replace('numaid="0"', 'numaid="0" moon="full"'))
    assert "attributes that are not known were not looked at: cpu.moon" in found.notes


def test_switches_joined_besides_the_tree():
    def switch(address: str, peer: str, below: str) -> str:
        return (
            f'<pci busid="{address}" class="0x060400" link_speed="32 GT/s" link_width="16">'
            f'<pcilink target="{peer}"/>{below}</pci>'
        )

    text = system(
        cpu(
            0,
            switch("0000:0a:00.0", "0000:0b:00.0", gpu("0000:01:00.0", 0))
            + switch("0000:0b:00.0", "0000:0a:00.0", gpu("0000:02:00.0", 1)),
        )
    )
    assert wires(imported(text).topology)["pci-0a:00.0", "pci-0b:00.0", "PCIe peer"] == 48.0


def changed(old: str, new: str, count: int = 1) -> str:
    assert old in XML
    return XML.replace(old, new, count)


@named(
    "text, message",
    {
        "graphs": ("<graphs version='1'/>", "line 1: .*<system> .got <graphs>.*NCCL_GRAPH_DUMP"),
        "version": (changed('version="1"', 'version="9"'), "line 1: version must be one of 1, 2"),
        "no version": (changed(' version="1"', ""), "line 1: <system> has no 'version'"),
        "element misspelt": (changed("<nvlink", "<nvlimk"), "line 6: <nvlimk> in <gpu>.*nvlink"),
        "attribute garbled": (
            changed('count="2"', 'cuont="2"'),
            "line 6: <nvlink> has an unknown attribute 'cuont'; did you mean 'count'",
        ),
        "typo": (changed("link_speed", "link_sqeed"), "line 3: .*'link_sqeed'; did you mean 'link_speed'"),
        "count of one end": (
            changed('count="2"', 'count="3"'),
            "line 6: 3 links from 0000:06:00.0 to 0000:07:00.0, which tells of 2",
        ),
        "no links": (changed('count="2"', 'count="0"'), "line 6: count must be an integer of 1"),
        "no number": (changed('count="2"', 'count="two"'), "line 6: count .*'two'"),
        "more than there are": (
            XML.replace('count="2"', 'count="7"'),
            "line 5: 7 NVLinks on a GPU of compute capability 70, which has 6",
        ),
        "more than Blackwell Ultra has": (
            XML.replace('sm="70"', 'sm="103"').replace('count="2"', 'count="19"'),
            "line 5: 19 NVLinks on a GPU of compute capability 103, which has 18",
        ),
        "Ada": (XML.replace('sm="70"', 'sm="89"'), "line 5: 2 NVLinks on a GPU .* 89, which has 0"),
        "target is a NIC": (
            changed('0000:07:00.0" count', '0000:05:00.0" count'),
            "line 6: target 0000:05:00.0 is no GPU by line 14",
        ),
        "target of one end": (
            changed('0000:07:00.0" count', '0000:08:00.0" count'),
            "line 11: 2 links .*which tells of 0 back",
        ),
        "target cut": (
            changed('0000:07:00.0" count', '0000:07:00" count'),
            "line 6: target must be a PCI address",
        ),
        "class cut": (changed('tclass="0x030200"', 'tclass="0x030"'), "line 6: tclass must be a PCI class"),
        "link to a NIC": (
            changed('tclass="0x030200"', 'tclass="0x020000"'),
            "line 6: tclass must be that of a GPU",
        ),
        "address twice": (
            changed('busid="0000:07', 'busid="0000:06'),
            "line 9: busid 0000:06:00.0 is already that of line 4",
        ),
        "node twice": (changed('numaid="1"', 'numaid="0"'), "line 21: numaid 0 is already that of line 2"),
        "rank twice": (changed('rank="1"', 'rank="0"'), "line 10: rank 0 is already that of line 5"),
        "no such speed": (
            changed("8 GT/s", "9 GT/s"),
            "line 3: link_speed must be one of 2.5, 5, 8.*'9 GT/s'",
        ),
        "speed cut": (changed("8 GT/s", "8 GT"), "line 3: link_speed"),
        "no such width": (
            changed('width="16"', 'width="17"'),
            "line 3: link_width must be one of 1, 2, 4.*17",
        ),
        "empty": (changed('sm="70"', 'sm=""'), "line 5: sm must be an integer"),
        "GPU with devices": (
            changed('class="0x060400"', 'class="0x030200"'),
            "line 3: a GPU has <pci> below it",
        ),
        "GPU in a switch": (
            changed('class="0x030200"', 'class="0x060400"'),
            "line 4: a <gpu> in a <pci> of another class",
        ),
        "NIC in a GPU": (
            changed('class="0x020700"', 'class="0x030200"'),
            "line 14: a <nic> in a <pci> of class GPU",
        ),
        "network speed": (changed('speed="100000"', 'speed="fast"'), "line 16: speed must be an integer"),
        "NIC without a name": (changed('name="mlx5_0"', 'name=""'), "line 16: name must be printable"),
        "bare addresses": (
            system(cpu(0, '<pci busid="0000:00:16.0"/>')),
            "no GPU: 1 PCI devices have no class",
        ),
        "nothing in it": (system(), "the file has no GPU"),
        "two in one": (
            system(cpu(0, gpu("0000:01:00.0", 0).replace("</gpu>", '</gpu><gpu dev="1"/>'))),
            "2 <gpu> in one <pci>",
        ),
        "cut": ("\n".join(XML.splitlines()[:12]), "line 12: is not well-formed"),
    },
)
def test_refused(text: str, message: str):
    with pytest.raises(ValueError, match=message):
        imported(text)
