import numpy as np
import pytest

from netstack.schedule.structures import NOTHING, connected_components, index_array, strongly_connected_components


def components(label):
    actual = {}
    for node, component in enumerate(label.tolist()):
        actual.setdefault(component, set()).add(node)
    assert all(component == min(members) for component, members in actual.items())
    return list(actual.values())


def strongly(edges_of_node):
    source = index_array([node for node, targets in enumerate(edges_of_node) for _ in targets])
    target = index_array([target for targets in edges_of_node for target in targets])
    return components(strongly_connected_components(len(edges_of_node), source, target))


@pytest.mark.parametrize(
    ("edges_of_node", "expected"),
    [
        ([[2, 3], [0], [1], [4], []], [{0, 1, 2}, {3}, {4}]),
        (
            [[1], [2], [0], [1, 2, 4], [3, 5], [2, 6], [5], [4, 6, 7]],
            [{0, 1, 2}, {3, 4}, {5, 6}, {7}],
        ),
        (
            [[1], [2, 4, 5], [3, 6], [2, 7], [0, 5], [6], [5], [3, 6]],
            [{0, 1, 4}, {2, 3, 7}, {5, 6}],
        ),
        ([[0], [1, 0]], [{0}, {1}]),
        ([], []),
    ],
)
def test_strongly_connected_components(edges_of_node, expected):
    assert strongly(edges_of_node) == expected


def test_a_ring_of_100_000_is_one_component():
    nodes = np.arange(100_000, dtype=np.int32)
    assert not strongly_connected_components(nodes.size, nodes, np.roll(nodes, -1)).any()


def test_a_long_chain_has_no_cycle():
    nodes = np.arange(5_000, dtype=np.int32)
    label = strongly_connected_components(nodes.size, nodes[:-1], nodes[1:])
    assert label.tolist() == nodes.tolist()


def test_a_long_chain_between_two_rings_stays_apart():
    source, target = [1, 0], [0, 1]
    for node in range(1, 200):
        source.append(node)
        target.append(node + 1)
    source += [201, 200]
    target += [200, 201]
    actual = components(strongly_connected_components(202, index_array(source), index_array(target)))
    assert actual == [{0, 1}, *({node} for node in range(2, 200)), {200, 201}]


def test_connected_components():
    assert components(connected_components(6, index_array([5, 3, 1]), index_array([3, 0, 2]))) == [
        {0, 3, 5},
        {1, 2},
        {4},
    ]
    assert components(connected_components(2, NOTHING, NOTHING)) == [{0}, {1}]


def test_a_star_whose_centre_has_the_highest_number():
    leaves = np.arange(99, dtype=np.int32)
    assert not connected_components(100, np.full(99, 99, np.int32), leaves).any()
