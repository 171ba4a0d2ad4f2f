"""Joins two streams by a key: orders with the customers who made them, whoever comes first.

    netstack run netstack.examples.keyed_join:job -p orders=100000

    customers (by id) -\
                        join -> (by country) -> revenue -> (to one) -> countries
    orders (by customer) -/

What to look at: equal keys of both inputs come to the same subtask. `Join` keeps the customer of a key, and the orders
that came before it, in keyed state. Revenue of orders without a customer goes to a side output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from netstack import CheckpointSettings, OperatorContext, Output, StreamEnvironment, StreamSettings

COUNTRIES: Final = ("Austria", "Brazil", "Chad", "Denmark", "Egypt")

Customer: TypeAlias = "list[int | str]"
"""[id, country]"""
Order: TypeAlias = "list[int]"
"""[customer's id, cents]"""
Revenue: TypeAlias = "list[str | int]"
"""[country, cents]"""


def customers(count: int) -> Iterable[Customer]:
    """Of every customer the country."""
    return ([number, COUNTRIES[number % len(COUNTRIES)]] for number in range(count))


def orders(count: int, customers: int) -> Iterator[Order]:
    """Orders; one in a hundred of somebody unknown."""
    for number in range(count):
        yield [customers if number % 100 == 99 else number * 7 % customers, 100 + number % 900]


def customer_id(record: Customer | Order) -> int:
    """The key of both inputs."""
    return int(record[0])


def country(revenue: Revenue) -> str:
    """The key of what the join emits."""
    return str(revenue[0])


class Join:
    """An order and its customer become revenue in the customer's country."""

    def open(self, context: OperatorContext) -> None:
        """Asks for its states."""
        self.countries = context.keyed_state("countries", "")
        self.early = context.keyed_state("early", list)

    def process1(self, customer: Customer, out: Output) -> None:
        """A customer: the orders that came before have waited for it."""
        number, home = int(customer[0]), str(customer[1])
        self.countries[number] = home
        for cents in self.early.pop(number, []):
            out.collect([home, cents])

    def process2(self, order: Order, out: Output) -> None:
        """An order."""
        number, cents = order
        home = self.countries.get(number)
        if home:
            out.collect([home, cents])
        else:
            self.early[number].append(cents)

    def finish(self, out: Output) -> None:
        """Whoever has not come by now will not."""
        for cents in self.early.values():
            out.collect_to("unknown", ["nobody", sum(cents)])
        self.early.clear()


class Add:
    """The revenue of each country; all at the end."""

    def open(self, context: OperatorContext) -> None:
        """Asks for its state."""
        self.cents = context.keyed_state("cents", 0)

    def process(self, revenue: Revenue, out: Output) -> None:
        """One order more."""
        self.cents[str(revenue[0])] += int(revenue[1])

    def finish(self, out: Output) -> None:
        """There are no more."""
        for name, cents in self.cents.items():
            out.collect([name, cents])


class Table:
    """Countries with their revenue."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    def process(self, revenue: Revenue) -> None:
        """A row."""
        name, cents = str(revenue[0]), int(revenue[1])
        self.rows[name] = self.rows.get(name, 0) + cents

    def finish(self) -> dict[str, int]:
        """The result of the job."""
        return dict(sorted(self.rows.items()))

    def snapshot(self) -> dict[str, int]:
        """What came so far."""
        return dict(self.rows)

    def restore(self, states: list[dict[str, int]]) -> None:
        """Goes on; the job has one subtask of it."""
        for rows in states:
            self.rows |= rows


def job(orders: int = 20_000, customers: int = 500, parallelism: int = 2) -> StreamEnvironment:
    """The job.

    Args:
        orders: how many.
        customers: how many.
        parallelism: of the join and the sums.
    """
    settings = StreamSettings(checkpoints=CheckpointSettings(interval_s=1.0, unaligned=True))
    joined = StreamEnvironment("keyed join", parallelism=parallelism, settings=settings)
    left = joined.source(f"{__name__}:customers", name="customers", parameters={"count": customers}).set_parallelism(1)
    right = joined.source(f"{__name__}:orders", name="orders", parameters={"count": orders, "customers": customers})
    found = left.key_by(customer_id).connect(right.set_parallelism(1).key_by(customer_id), Join, name="join")
    added = found.key_by(country).process(Add, name="revenue")
    added.union(found.side_output("unknown")).global_().sink(Table, name="countries").set_parallelism(1)
    return joined
