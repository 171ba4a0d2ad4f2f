from netstack.base.ids import ResultPartitionType
from netstack.schedule.graph.job_graph import Dataset, DistributionPattern, JobEdge, JobGraph, JobVertex
from netstack.schedule.slots.shared_slots import InputLocations, InputPreferences, preferred_locations
from netstack.schedule.slots.slots import Location

A, B, C = Location("a", "h1"), Location("b", "h1"), Location("c", "h2")


def test_more_than_eight_known_producers_are_near_nothing():
    places = [Location(f"tm{number}") for number in range(9)]
    assert preferred_locations([InputLocations(1, places)]) == ()
    assert preferred_locations([InputLocations(1, places[:8])]) == tuple(places[:8])


def test_a_group_with_more_than_eight_consumers_does_not_count():
    assert preferred_locations([InputLocations(9, [A])]) == ()
    assert preferred_locations([InputLocations(8, [A])]) == (A,)


def test_the_input_from_the_fewest_places_wins_and_of_equal_ones_the_later():
    inputs = [InputLocations(1, [A, B]), InputLocations(1, [C]), InputLocations(1, [])]
    assert preferred_locations(inputs) == (C,)
    assert preferred_locations([InputLocations(1, [A]), InputLocations(1, [B])]) == (B,)
    assert preferred_locations([InputLocations(1, [A, A]), InputLocations(1, [B, C])]) == (A, A)


def preferences(producers, consumers, pattern):
    graph = JobGraph(
        "job",
        (JobVertex("source", producers), JobVertex("sink", consumers)),
        (Dataset("d", 0, ResultPartitionType.BLOCKING),),
        (JobEdge(0, 1, pattern),),
    )
    inputs = InputPreferences(graph)

    def of(subtask, places):
        return inputs.of(1, subtask, [producers, consumers], lambda vertex, index: places.get(index))

    return of


def test_a_pointwise_consumer_would_like_to_be_at_its_producers():
    of = preferences(4, 2, DistributionPattern.POINTWISE)
    assert of(0, {0: A, 1: A, 2: B, 3: C}) == (A, A)
    assert of(1, {0: A, 1: A, 2: B, 3: C}) == (B, C)
    assert of(1, {3: C}) == (C,)
    assert of(1, {}) == ()


def test_over_an_all_to_all_edge_only_few_consumers_of_few_producers_have_a_wish():
    everywhere = dict.fromkeys(range(9), A)
    assert preferences(8, 8, DistributionPattern.ALL_TO_ALL)(7, everywhere) == (A,) * 8
    assert preferences(8, 9, DistributionPattern.ALL_TO_ALL)(7, everywhere) == ()
    assert preferences(9, 8, DistributionPattern.ALL_TO_ALL)(7, everywhere) == ()
